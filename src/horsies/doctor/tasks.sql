-- name: get_orphans
-- What the keeper looks for every second, and should have found long ago.
select id::text, task_name, extract(epoch from now() - claimed_at)::float
from {schema}.tasks
where status <> 'PENDING'
and claimed_at < now() - %(after_s)s::float * interval '1 s'
and not exists (select from {schema}.workers where workers.id = tasks.claimed_by)
limit %(limit)s::integer;

-- name: get_past_leases
select id::text, task_name, extract(epoch from now() - lease_until)::float
from {schema}.tasks
where status = 'CLAIMED'
and lease_until < now() - %(after_s)s::float * interval '1 s'
limit %(limit)s::integer;

-- name: get_overtime
select id::text, task_name, extract(epoch from now() - started_at)::float
from {schema}.tasks
where status = 'RUNNING'
and started_at + (timeout_ms + %(grace_ms)s::integer) * interval '1 ms' < now() - %(after_s)s::float * interval '1 s'
limit %(limit)s::integer;

-- name: get_unpromoted
select id::text, task_name, extract(epoch from now() - enqueued_at)::float
from {schema}.tasks
where status = 'PENDING'
and not ready
and enqueued_at < now() - %(after_s)s::float * interval '1 s'
order by enqueued_at
limit %(limit)s::integer;

-- name: get_unheard_cancels
select id::text, task_name, extract(epoch from now() - cancel_requested_at)::float
from {schema}.tasks
where cancel_requested_at is not null
and cancel_requested_at < now() - %(grace_ms)s::integer * interval '1 ms' - %(after_s)s::float * interval '1 s'
limit %(limit)s::integer;

-- name: get_served
-- The queues of living workers.
select distinct unnest(queues)
from {schema}.workers
where heartbeat_at > now() - %(stale_s)s::float * interval '1 s';
