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

-- name: get_workers
select
    id::text, hostname, pid, queues, library_version,
    extract(epoch from now() - heartbeat_at)::float,
    extract(epoch from now() - started_at)::float,
    app,
    (
        select state.recycling_share::float
        from {schema}.worker_states as state
        where state.worker_id = workers.id
        order by state.snapshot_at desc
        limit 1
    )
from {schema}.workers
order by started_at
limit 10000;

-- name: get_maintenance_lag
-- How long ago the lease of the maintenance leader ran out; negative while it holds.
select extract(epoch from now() - expires_at)::float
from {schema}.maintenance_lease;

-- name: get_task_clashes
-- Task names that living workers of different apps know, where their queues overlap: on other queues neither app gets a task of the other.
with known_tasks as (
    select workers.app, workers.queues, task.name
    from {schema}.workers
    cross join lateral unnest(workers.task_names) as task (name)
    where workers.app is not null
    and workers.heartbeat_at > now() - %(stale_after_s)s::float8 * interval '1 second'
)
select one.name, array_agg(distinct one.app order by one.app)
from known_tasks as one
join known_tasks as other on other.name = one.name and other.app <> one.app and other.queues && one.queues
group by one.name
order by one.name
limit 100;

-- name: sleep
select 1
from pg_sleep(%(seconds)s::float);

-- name: get_overdue_schedules
-- The longest overdue first.
select name, extract(epoch from now() - next_slot_at)::float
from {schema}.schedules
where paused_at is null
and next_slot_at < now() - %(overdue_s)s::float8 * interval '1 second'
order by next_slot_at, name
limit 1000;

-- name: get_unowned_schedules
-- Stored without an app, and not declared by any app since. Removed and disabled schedules are never due.
select name
from {schema}.schedules
where app is null
and declared
and enabled
and paused_at is null
order by name
limit 1000;

-- name: get_name_clashes
select name, app
from {schema}.schedules
where name = any(%(names)s::text[])
and declared
and app <> all(%(own)s::text[])
order by name;
