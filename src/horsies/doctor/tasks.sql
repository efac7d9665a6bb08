-- name: get_orphans
-- Orphans that the maintenance leader, which checks every second, should have rescued long ago. A hand-written row may have no claim time,
-- and the difference of now and an infinite time is undefined before PostgreSQL 17.
select id::text, task_name, case when isfinite(claimed_at) then extract(epoch from now() - claimed_at)::float end
from {schema}.tasks
where status <> 'PENDING'
and coalesce(claimed_at, sent_at) < now() - %(after_s)s::float * interval '1 s'
and not exists (select from {schema}.workers where workers.id = tasks.claimed_by)
limit %(limit)s::integer;

-- name: get_expired_leases
select id::text, task_name, case when isfinite(lease_until) then extract(epoch from now() - lease_until)::float end
from {schema}.tasks
where status = 'CLAIMED'
and lease_until < now() - %(after_s)s::float * interval '1 s'
limit %(limit)s::integer;

-- name: get_overtime_tasks
select id::text, task_name, case when isfinite(started_at) then extract(epoch from now() - started_at)::float end
from {schema}.tasks
where status = 'RUNNING'
and started_at + (timeout_ms + %(grace_ms)s::integer) * interval '1 ms' < now() - %(after_s)s::float * interval '1 s'
limit %(limit)s::integer;

-- name: get_unpromoted_tasks
select id::text, task_name, extract(epoch from now() - enqueued_at)::float
from {schema}.tasks
where status = 'PENDING'
and not ready
and unknown_since is null
and enqueued_at < now() - %(after_s)s::float * interval '1 s'
order by enqueued_at
limit %(limit)s::integer;

-- name: get_unexpired_tasks
select id::text, task_name, case when isfinite(good_until) then extract(epoch from now() - good_until)::float end
from {schema}.tasks
where good_until is not null
and status <> 'RUNNING'
and good_until < now() - %(after_s)s::float * interval '1 s'
order by good_until
limit %(limit)s::integer;

-- name: get_ignored_cancels
select id::text, task_name, case when isfinite(cancel_requested_at) then extract(epoch from now() - cancel_requested_at)::float end
from {schema}.tasks
where cancel_requested_at is not null
and cancel_requested_at < now() - %(grace_ms)s::integer * interval '1 ms' - %(after_s)s::float * interval '1 s'
limit %(limit)s::integer;

-- name: get_served_queues
-- The queues of living workers.
select distinct unnest(queues)
from {schema}.workers
where heartbeat_at > now() - %(stale_s)s::float * interval '1 s';
