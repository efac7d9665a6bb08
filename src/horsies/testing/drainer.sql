-- name: make_retries_due
-- Make every pending retry due now, also those of an earlier drain.
update {schema}.tasks
set enqueued_at = statement_timestamp(), ready = true, unknown_since = null
where status = 'PENDING'
and not ready
and attempts > 0;
