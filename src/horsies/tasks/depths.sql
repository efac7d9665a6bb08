-- name: get_queue_depths
-- For each queue: the number of waiting tasks, up to a limit; the age of the oldest; the number in flight; whether it is paused; the number
-- of unknown tasks. Only the indexes of claims are used, so the cost does not depend on the backlog. The oldest task is the oldest of the
-- first tasks of all priorities.
with unknown_tasks as materialized (
    -- Limited over all queues together, because there are few.
    select few.queue_name, count(*) as count
    from (
        select tasks.queue_name
        from {schema}.tasks
        where tasks.unknown_since is not null
        -- In index order, or the planner would search the whole table for the few.
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
            -- Otherwise the planner would search the whole table for the tasks of an empty queue when others are long.
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
    coalesce((select unknown_tasks.count from unknown_tasks where unknown_tasks.queue_name = queue.name), 0)
from unnest(%(queues)s::text[]) as queue (name);
