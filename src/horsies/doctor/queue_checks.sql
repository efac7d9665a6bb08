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
and started_at < now() - %(after_s)s::float * interval '1 s' - (timeout_ms::bigint + %(grace_ms)s::integer) * interval '1 ms'
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

-- name: get_crashes
-- Tasks whose children died, by name: those in flight, the first that are due later, the first of each queue (a released task returns to its
-- place), and the newest failures. The errors are searched as text, because JSON with \u0000 cannot be parsed here.
with recursive queue as (
    (
        select queue_name
        from {schema}.tasks
        where status = 'PENDING' and ready
        order by queue_name
        limit 1
    )
    union all
    select (
        select tasks.queue_name
        from {schema}.tasks
        where tasks.status = 'PENDING' and tasks.ready and tasks.queue_name > queue.queue_name
        order by tasks.queue_name
        limit 1
    )
    from queue
    where queue.queue_name is not null
),
live as (
    (
        select id, task_name, child_deaths, failed_attempts
        from {schema}.tasks
        where status <> 'PENDING'
        and (child_deaths > 0 or attempts > 0)
        limit %(limit)s::integer
    )
    union all
    (
        select few.id, few.task_name, few.child_deaths, few.failed_attempts
        from (
            select id, task_name, child_deaths, failed_attempts, attempts
            from {schema}.tasks
            where status = 'PENDING' and not ready and unknown_since is null
            order by enqueued_at
            limit %(limit)s::integer
        ) as few
        where few.child_deaths > 0 or few.attempts > 0
    )
    union all
    (
        select few.id, few.task_name, few.child_deaths, few.failed_attempts
        from (select queue_name from queue where queue_name is not null limit 100) as queue
        cross join lateral (
            select id, task_name, child_deaths, failed_attempts, attempts
            from {schema}.tasks
            where tasks.status = 'PENDING' and tasks.ready and tasks.queue_name = queue.queue_name
            order by tasks.priority, tasks.enqueued_at, tasks.id
            limit 20
        ) as few
        where few.child_deaths > 0 or few.attempts > 0
    )
),
crash as (
    select
        attempt.id, attempt.task_name, true as is_live,
        -- Of a worker that died with several tasks, any may be the cause; a task that was there twice is suspect. A child that died before
        -- a task started, once, died of another one.
        count(*) filter (where not of_worker)
            + case when count(*) filter (where of_worker) > 1 then count(*) filter (where of_worker) else 0 end
            + case when attempt.child_deaths > 1 then attempt.child_deaths else 0 end as deaths,
        (array_agg(attempt.message order by attempt.number desc))[1] as message,
        (array_agg(substring(attempt.tail from '"ended_at" : "([^"]+)"') order by attempt.number desc))[1] as at,
        (array_agg(substring(attempt.tail from '"worker" : "([0-9a-f-]{36})"') order by attempt.number desc))[1] as worker
    from (
        select
            live.id, live.task_name, live.child_deaths, parts.number, parts.message, parts.tail,
            parts.message like 'worker %% died while it ran this task%' as of_worker
        from live
        left join lateral (
            select number, {schema}.error_message(item.error) as message, right(item.error::text, 400) as tail
            from unnest(live.failed_attempts) with ordinality as item (error, number)
            where left(item.error::text, 200) like '%%"error_code" : "WORKER_CRASHED"%%'
        ) as parts on true
        -- Most tasks have failed in other ways.
        where parts.number is not null or live.child_deaths > 1
    ) as attempt
    group by attempt.id, attempt.task_name, attempt.child_deaths
    union all
    select newest.id, newest.task_name, false, 1, newest.message, to_json(newest.finished_at) #>> '{}', newest.claimed_by::text
    from (
        select
            item.id, item.task_name, item.error_code, item.finished_at, item.claimed_by,
            case when item.error_code = 'WORKER_CRASHED' then {schema}.error_message(item.error) end as message
        from {schema}.finished as item
        where item.status = 'FAILED'
        and item.finished_at > now() - %(since_s)s::float * interval '1 s'
        and item.finished_at at time zone 'UTC' > (now() - %(since_s)s::float * interval '1 s') at time zone 'UTC'
        order by item.finished_at at time zone 'UTC' desc
        limit %(limit)s::integer
    ) as newest
    where newest.error_code = 'WORKER_CRASHED'
    and newest.message not like 'worker %% died while it ran this task%'
),
crashes as (
    select
        task_name, sum(deaths)::bigint as deaths, count(*) filter (where is_live) as live, count(*) filter (where not is_live) as ended,
        (array_agg(id::text order by is_live desc, deaths desc))[1] as example,
        (array_agg(message order by at desc nulls last))[1] as message,
        max(at) as at,
        (array_agg(worker order by at desc nulls last))[1] as worker
    from crash
    where deaths > 0
    group by task_name
    order by sum(deaths) desc, task_name
    limit 100
)
select
    crashes.*,
    coalesce(
        (select hostname || ' pid ' || pid from {schema}.workers where workers.id::text = crashes.worker),
        (select hostname || ' pid ' || pid from {schema}.dead_workers where dead_workers.id::text = crashes.worker)
    )
from crashes
order by deaths desc, task_name;

-- name: get_mixed_queues
-- Queues that living workers of different apps serve.
select queue_name, array_agg(distinct app order by app)
from {schema}.workers
cross join unnest(queues) as queue_name
where app is not null
and heartbeat_at > now() - %(stale_s)s::float * interval '1 s'
group by queue_name
having count(distinct app) > 1
order by queue_name
limit 100;

-- name: get_dead_workers
-- With the tasks that they held, the newest first.
select
    id::text, hostname, pid, app, found_at, tasks_held,
    extract(epoch from now() - last_heartbeat_at)::float, task_ids::text[]
from {schema}.dead_workers
where found_at > now() - %(since_s)s::float * interval '1 s'
order by found_at desc
limit 100;

-- name: get_now
select statement_timestamp();

-- name: get_paused_workflows
-- The newest first, with the last node that has failed if failures pause it.
select
    run.root_id::text, run.name, node.node_id, node.task_name,
    left(substring(left(node.error::text, 4000) from '"error_code"\s*:\s*"((?:[^"\\]|\\.)*)'), 200),
    {schema}.error_message(case when node.is_sensitive is not true then node.error end),
    case when isfinite(node.finished_at) then node.finished_at end
from (
    select id, root_id, name, on_error
    from {schema}.workflows
    where status = 'PAUSED'
    order by id desc
    limit %(limit)s::integer
) as run
left join lateral (
    select nodes.node_id, nodes.task_name, nodes.error, nodes.is_sensitive, nodes.finished_at
    from {schema}.nodes
    where nodes.workflow_id = run.id
    and nodes.status = 'FAILED'
    order by nodes.finished_at desc nulls last
    limit 1
) as node on run.on_error = 'pause'
order by run.id desc;

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

-- name: get_minutes_lag
-- How old the statistics are that the maintenance leader wrote last.
select extract(epoch from now() - minute)::float
from {schema}.minutes_until;

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
-- Stored without an app, and not declared by any app since. Removed and disabled schedules are never due; those that were created at run time
-- have no app.
select name
from {schema}.schedules
where app is null
and not is_dynamic
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
and (is_dynamic or app <> all(%(own)s::text[]))
order by name;
