-- name: pause_queue
insert into {schema}.queues (name, paused_at)
values (%(name)s::text, now())
on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at);

-- name: resume_queue
update {schema}.queues
set paused_at = null
where name = %(name)s::text;

-- name: notify_resumed
-- Everyone looks from the start: what waits in this queue was told of long ago.
select pg_notify('{new_channel}', '*');

-- name: get_paused_queues
select name
from {schema}.queues
where paused_at is not null
order by name;

-- name: list_queues
-- However many tasks wait, so much is read and no more: the first of each queue and priority, and a bounded number to count.
with recursive lane as (
    (
        select queue_name, priority, enqueued_at
        from {schema}.tasks
        where status = 'PENDING'
        and ready
        order by queue_name, priority, enqueued_at
        limit 1
    )
    union all
    select next.queue_name, next.priority, next.enqueued_at
    from lane
    cross join lateral (
        select tasks.queue_name, tasks.priority, tasks.enqueued_at
        from {schema}.tasks
        where tasks.status = 'PENDING'
        and tasks.ready
        and (tasks.queue_name, tasks.priority) > (lane.queue_name, lane.priority)
        order by tasks.queue_name, tasks.priority, tasks.enqueued_at
        limit 1
    ) as next
),
waiting as (
    select line.queue_name, line.oldest_at, counted.count
    from (select queue_name, min(enqueued_at) as oldest_at from lane group by queue_name) as line
    cross join lateral (
        select count(*) as count
        from (
            select
            from {schema}.tasks
            where tasks.queue_name = line.queue_name
            and tasks.status = 'PENDING'
            and tasks.ready
            -- Or the few of a short queue would be looked for in the whole table, where others are long.
            order by tasks.priority, tasks.enqueued_at
            limit %(counted)s::integer
        ) as few
    ) as counted
),
delayed as (
    -- Of all queues together: those that are not due have no index by queue.
    select queue_name, count(*) as count, sum(count(*)) over () >= %(counted)s::integer as is_more
    from (
        select queue_name
        from {schema}.tasks
        where status = 'PENDING'
        and not ready
        and unknown_since is null
        limit %(counted)s::integer
    ) as few
    group by queue_name
),
in_flight as (
    select
        queue_name,
        count(*) filter (where status = 'CLAIMED') as claimed,
        count(*) filter (where status = 'RUNNING') as running
    from {schema}.tasks
    where status <> 'PENDING'
    group by queue_name
),
served as (
    select queue_name, count(*) as count
    from {schema}.workers
    cross join unnest(queues) as queue_name
    group by queue_name
)
select
    queue_name,
    coalesce(waiting.count, 0),
    coalesce(delayed.count, 0),
    coalesce(in_flight.claimed, 0),
    coalesce(in_flight.running, 0),
    coalesce(waiting.count >= %(counted)s::integer, false),
    coalesce(delayed.is_more, false),
    -- `greatest` alone would make zero of null.
    case when waiting.oldest_at is not null then greatest(0, extract(epoch from clock_timestamp() - waiting.oldest_at))::float8 end,
    queues.paused_at,
    coalesce(served.count, 0)
from waiting
full join delayed using (queue_name)
full join in_flight using (queue_name)
full join served using (queue_name)
full join (select name as queue_name, paused_at from {schema}.queues where paused_at is not null) as queues using (queue_name)
order by queue_name;
