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

-- name: get_waiting
-- One step of the claim index for each queue and priority, however many rows there are; counts only as far as it matters.
with recursive lanes as (
    (
        select queue_name, priority
        from {schema}.tasks
        where status = 'PENDING' and ready
        order by queue_name, priority
        limit 1
    )
    union all
    select next.queue_name, next.priority
    from lanes
    cross join lateral (
        select tasks.queue_name, tasks.priority
        from {schema}.tasks
        where status = 'PENDING' and ready
        and (tasks.queue_name, tasks.priority) > (lanes.queue_name, lanes.priority)
        order by tasks.queue_name, tasks.priority
        limit 1
    ) as next
)
select
    lanes.queue_name,
    extract(epoch from now() - min(oldest.enqueued_at))::float,
    sum(waiting.count)::integer
from (select * from lanes limit 1000) as lanes
cross join lateral (
    select tasks.enqueued_at
    from {schema}.tasks
    where status = 'PENDING' and ready
    and tasks.queue_name = lanes.queue_name
    and tasks.priority = lanes.priority
    order by tasks.enqueued_at, tasks.id
    limit 1
) as oldest
cross join lateral (
    select count(*)
    from (
        select
        from {schema}.tasks
        where status = 'PENDING' and ready
        and tasks.queue_name = lanes.queue_name
        and tasks.priority = lanes.priority
        limit %(enough)s::integer
    ) as counted
) as waiting
group by lanes.queue_name
order by lanes.queue_name;

-- name: get_served
-- The queues of living workers.
select distinct unnest(queues)
from {schema}.workers
where heartbeat_at > now() - %(stale_s)s::float * interval '1 s';

-- name: get_paused
select name, extract(epoch from now() - paused_at)::float
from {schema}.queues
where paused_at is not null;

-- name: get_in_flight
select queue_name, count(*)::integer
from {schema}.tasks
where status <> 'PENDING'
and queue_name = any(%(queues)s::text[])
group by queue_name;
