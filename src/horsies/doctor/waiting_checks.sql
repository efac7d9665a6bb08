-- name: get_capacity
-- The slots of living workers.
select id::text, queues, processes::bigint * concurrency
from {schema}.workers
where heartbeat_at > now() - %(stale_s)s::float * interval '1 s'
limit 10000;

-- name: get_running
-- Tasks that have been running for some time, the longest first, with their workers.
select
    tasks.id::text, tasks.task_name, tasks.queue_name, tasks.claimed_by::text, tasks.started_at,
    case when isfinite(tasks.started_at) then extract(epoch from now() - tasks.started_at)::float else 0 end,
    tasks.timeout_ms is not null, workers.hostname, workers.pid
from {schema}.tasks
left join {schema}.workers on workers.id = tasks.claimed_by
where tasks.status = 'RUNNING'
and tasks.started_at < now() - %(after_s)s::float * interval '1 s'
order by tasks.started_at
limit 10000;

-- name: get_in_flight
-- Of each queue and worker: how many run, how many are claimed in advance, and how long the first of these has been due.
select
    queue_name, claimed_by::text,
    count(*) filter (where status = 'RUNNING'),
    count(*) filter (where status = 'CLAIMED'),
    extract(epoch from now() - min(enqueued_at) filter (where status = 'CLAIMED'))::float
from {schema}.tasks
where status <> 'PENDING'
group by queue_name, claimed_by;

-- name: get_usual_durations
-- How long tasks have run in the last day: a histogram of each queue and task, the sum of its newest minutes in the statistics, and the newest of those
-- that have ended since.
with wanted as materialized (
    select pair.queue_name, pair.task_name
    from unnest(%(queues)s::text[], %(tasks)s::text[]) as pair (queue_name, task_name)
),
newest as materialized (
    select finished.queue_name, finished.task_name, {schema}.duration_bucket(finished.started_at, finished.finished_at) as bucket
    from (
        select queue_name, task_name, started_at, finished_at
        from {schema}.finished
        where finished_at > coalesce((select minute from {schema}.minutes_until), now() - interval '1 hour')
        and finished_at > now() - interval '1 hour'
        and finished_at at time zone 'UTC' > (now() - interval '1 hour') at time zone 'UTC'
        order by finished_at at time zone 'UTC' desc
        limit %(limit)s::integer
    ) as finished
    join wanted using (queue_name, task_name)
),
buckets as (
    select queue_name, task_name, bucket + 1 as bucket, count(*) as count
    from newest
    where bucket is not null
    group by queue_name, task_name, bucket
    union all
    select wanted.queue_name, wanted.task_name, ran.bucket, ran.count
    from wanted
    cross join lateral (
        -- The newest minutes first, until enough of them had such tasks.
        select minute.ran
        from generate_series(
            date_trunc('minute', now()), date_trunc('minute', now()) - interval '1 day', interval '-1 minute'
        ) as past (minute)
        cross join lateral (
            select task_minutes.ran
            from {schema}.task_minutes
            where task_minutes.minute = past.minute
            and task_minutes.queue_name = left(wanted.queue_name, 200)
            and task_minutes.task_name = left(wanted.task_name, 200)
            limit 1
        ) as minute
        limit %(minutes)s::integer
    ) as point
    cross join lateral unnest(point.ran) with ordinality as ran (count, bucket)
    where ran.count > 0
)
select queue_name, task_name, array_agg(bucket order by bucket)::integer[], array_agg(count order by bucket)::bigint[]
from (
    select queue_name, task_name, bucket, sum(count) as count
    from buckets
    group by queue_name, task_name, bucket
) as summed
group by queue_name, task_name;

-- name: get_flow
-- Of each queue and task: how many have ended in the last five minutes that are in the statistics, and how long these ran together.
select
    point.queue_name, point.task_name,
    sum(point.completed + point.failed + point.cancelled + point.expired)::bigint,
    -- The middle of each bucket.
    sum((select coalesce(sum(ran.count * 0.75 * 2 ^ (ran.bucket - 1)), 0) from unnest(point.ran) with ordinality as ran (count, bucket)))::float8 / 1000
from {schema}.minutes_until
cross join lateral generate_series(
    minutes_until.minute - interval '5 minutes', minutes_until.minute - interval '1 minute', interval '1 minute'
) as past (minute)
cross join unnest(%(queues)s::text[]) as wanted (queue_name)
join {schema}.task_minutes as point on point.minute = past.minute and point.queue_name = left(wanted.queue_name, 200)
where minutes_until.minute between now() - interval '5 minutes' and now()
group by point.queue_name, point.task_name
limit 1000;

-- name: get_arrivals
-- How many of those that wait have become due in the last minute, counted up to a limit. In a queue that lags these are nearly all that have come.
select wanted.queue_name, count(*)
from unnest(%(queues)s::text[]) as wanted (queue_name)
cross join lateral (
    with recursive lane as (
        (
            select tasks.priority
            from {schema}.tasks
            where tasks.status = 'PENDING' and tasks.ready and tasks.queue_name = wanted.queue_name
            order by tasks.priority
            limit 1
        )
        union all
        select (
            select tasks.priority
            from {schema}.tasks
            where tasks.status = 'PENDING' and tasks.ready and tasks.queue_name = wanted.queue_name
            and tasks.priority > lane.priority
            order by tasks.priority
            limit 1
        )
        from lane
        where lane.priority is not null
    )
    select
    from (select lane.priority from lane where lane.priority is not null limit 100) as lane
    cross join lateral (
        select
        from {schema}.tasks
        where tasks.status = 'PENDING' and tasks.ready and tasks.queue_name = wanted.queue_name
        and tasks.priority = lane.priority
        and tasks.enqueued_at > now() - interval '1 minute'
        order by tasks.enqueued_at
        limit %(limit)s::integer
    ) as few
    limit %(limit)s::integer
) as arrived
group by wanted.queue_name;
