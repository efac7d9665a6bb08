-- name: get_orphans
-- What the keeper looks for every second, and should have found long ago. A row by hand may not know when it was claimed; and an infinite moment has no
-- distance from now before PostgreSQL 17.
select id::text, task_name, case when isfinite(claimed_at) then extract(epoch from now() - claimed_at)::float end
from {schema}.tasks
where status <> 'PENDING'
and coalesce(claimed_at, sent_at) < now() - %(after_s)s::float * interval '1 s'
and not exists (select from {schema}.workers where workers.id = tasks.claimed_by)
limit %(limit)s::integer;

-- name: get_past_leases
select id::text, task_name, case when isfinite(lease_until) then extract(epoch from now() - lease_until)::float end
from {schema}.tasks
where status = 'CLAIMED'
and lease_until < now() - %(after_s)s::float * interval '1 s'
limit %(limit)s::integer;

-- name: get_overtime
select id::text, task_name, case when isfinite(started_at) then extract(epoch from now() - started_at)::float end
from {schema}.tasks
where status = 'RUNNING'
and started_at + (timeout_ms + %(grace_ms)s::integer) * interval '1 ms' < now() - %(after_s)s::float * interval '1 s'
limit %(limit)s::integer;

-- name: get_unpromoted
select id::text, task_name, extract(epoch from now() - enqueued_at)::float
from {schema}.tasks
where status = 'PENDING'
and not ready
and unknown_since is null
and enqueued_at < now() - %(after_s)s::float * interval '1 s'
order by enqueued_at
limit %(limit)s::integer;

-- name: get_unexpired
select id::text, task_name, case when isfinite(good_until) then extract(epoch from now() - good_until)::float end
from {schema}.tasks
where good_until is not null
and status <> 'RUNNING'
and good_until < now() - %(after_s)s::float * interval '1 s'
order by good_until
limit %(limit)s::integer;

-- name: get_unheard_cancels
select id::text, task_name, case when isfinite(cancel_requested_at) then extract(epoch from now() - cancel_requested_at)::float end
from {schema}.tasks
where cancel_requested_at is not null
and cancel_requested_at < now() - %(grace_ms)s::integer * interval '1 ms' - %(after_s)s::float * interval '1 s'
limit %(limit)s::integer;

-- name: get_served
-- The queues of living workers.
select distinct unnest(queues)
from {schema}.workers
where heartbeat_at > now() - %(stale_s)s::float * interval '1 s';
