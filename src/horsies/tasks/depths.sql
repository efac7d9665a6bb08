-- name: get_depths
-- Of each queue: what waits now, counted so far and no further; how long the oldest of it has waited; what is in flight; whether it is paused.
-- All by the two indexes that claims use, so that it costs the same with any backlog: the oldest is looked for at the head of each priority.
with unknown as materialized (
    -- Of all queues together, as they are few: so many at most.
    select few.queue_name, count(*) as count
    from (
        select tasks.queue_name
        from {schema}.tasks
        where tasks.unknown_since is not null
        -- By the index, or the few would be looked for in the whole table.
        order by tasks.task_name, (tasks.refused_by is not null), tasks.unknown_since
        limit %(counted)s::integer
    ) as few
    group by few.queue_name
)
select
    queue.name,
    (
        select count(*)
        from (
            select
            from {schema}.tasks
            where tasks.queue_name = queue.name
            and tasks.status = 'PENDING'
            and tasks.ready
            -- Or a queue that is empty would be looked for in the whole table, where others are long.
            order by tasks.priority, tasks.enqueued_at
            limit %(counted)s::integer
        ) as waiting
    ),
    coalesce((
        with recursive head as (
            (
                select tasks.priority, tasks.enqueued_at
                from {schema}.tasks
                where tasks.queue_name = queue.name
                and tasks.status = 'PENDING'
                and tasks.ready
                order by tasks.priority, tasks.enqueued_at
                limit 1
            )
            union all
            select next.priority, next.enqueued_at
            from head
            cross join lateral (
                select tasks.priority, tasks.enqueued_at
                from {schema}.tasks
                where tasks.queue_name = queue.name
                and tasks.priority > head.priority
                and tasks.status = 'PENDING'
                and tasks.ready
                order by tasks.priority, tasks.enqueued_at
                limit 1
            ) as next
        )
        select greatest(0, extract(epoch from clock_timestamp() - min(heads.enqueued_at)))::float8
        from (select head.enqueued_at from head limit %(priorities_at_most)s::integer) as heads
    ), 0),
    (
        select count(*)
        from {schema}.tasks
        where tasks.queue_name = queue.name
        and tasks.status <> 'PENDING'
    ),
    exists (select from {schema}.queues where queues.name = queue.name and queues.paused_at is not null),
    coalesce((select unknown.count from unknown where unknown.queue_name = queue.name), 0)
from unnest(%(queues)s::text[]) as queue (name);
