-- name: hasten_retries
-- Every failed attempt is followed by the next one at once, also one of an earlier drain.
update {schema}.tasks
set enqueued_at = statement_timestamp(), ready = true, unknown_since = null
where status = 'PENDING'
and not ready
and attempts > 0;
