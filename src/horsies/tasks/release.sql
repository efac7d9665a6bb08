-- name: release_tasks
-- Claims whose user code never began go back, as if nobody had claimed them: the attempt does not count.
update {schema}.tasks
set
    status = 'PENDING',
    claimed_by = null,
    claimed_at = null,
    lease_until = null,
    started_at = null
from unnest(%(ids)s::uuid[], %(claim_nos)s::integer[]) as held (id, claim_no)
where tasks.id = any(%(ids)s::uuid[])
and tasks.id = held.id
and tasks.claim_no = held.claim_no
and tasks.claimed_by = %(worker)s::uuid
returning tasks.id::text;

-- name: notify_new
select pg_notify(
    '{new_channel}',
    %(priority)s::integer || ' ' || (extract(epoch from %(enqueued_at)s::timestamptz) * 1000000)::bigint || ' ' || %(queue)s::text
);

-- name: get_held
-- Every row that this worker owns, by the database's account.
select id::text, claim_no, task_name, queue_name, priority, enqueued_at, attempts + 1, ''
from {schema}.tasks
where claimed_by = %(worker)s::uuid
and status <> 'PENDING';
