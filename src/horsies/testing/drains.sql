-- name: hasten_retry
-- A failed attempt is followed by the next one at once.
update {schema}.tasks
set enqueued_at = statement_timestamp(), ready = true
where id = %(id)s::uuid
and status = 'PENDING';
