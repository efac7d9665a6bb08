-- name: pause_queue
insert into {schema}.queues (name, paused_at)
values (%(name)s::text, now())
on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at);

-- name: resume_queue
update {schema}.queues
set paused_at = null
where name = %(name)s::text;

-- name: set_queue_cap
insert into {schema}.queues (name, max_concurrency)
values (%(name)s::text, %(max_concurrency)s::integer)
on conflict (name) do update set max_concurrency = excluded.max_concurrency;

-- name: notify_queues_changed
-- All workers claim from the start of their queues, because what waits was announced long ago. With such a claim they also read the caps.
select pg_notify('{new_channel}', '*');

-- fragment: oldest_head
-- The oldest of the first tasks of each priority of `queue`: not all of its tasks are read.
with recursive head as (
    (
        select tasks.priority, tasks.enqueued_at
        from {schema}.tasks
        where tasks.queue_name = queue.queue_name
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
        where tasks.queue_name = queue.queue_name
        and tasks.priority > head.priority
        and tasks.status = 'PENDING'
        and tasks.ready
        order by tasks.priority, tasks.enqueued_at
        limit 1
    ) as next
)
select min(heads.enqueued_at)
from (select head.enqueued_at from head limit %(priorities)s::integer) as heads

-- name: list_queues
-- The cost does not depend on the backlog: reads the names of the queues one after the other, and counts up to a limit.
with recursive queue_names as (
    (
        select queue_name
        from {schema}.tasks
        where status = 'PENDING'
        and ready
        order by queue_name
        limit 1
    )
    union all
    select next.queue_name
    from queue_names
    cross join lateral (
        select tasks.queue_name
        from {schema}.tasks
        where tasks.status = 'PENDING'
        and tasks.ready
        and tasks.queue_name > queue_names.queue_name
        order by tasks.queue_name
        limit 1
    ) as next
),
waiting_counts as (
    select
        queue.queue_name, counted.count, counted.count >= queue.counted as is_more,
        case when counted.count >= queue.counted then (
            {oldest_head}
        ) else counted.oldest_at end as oldest_at
    -- All queues share the limit, so that many long queues take no longer than one.
    from (
        select
            queue_name,
            least(%(counted)s::integer, greatest(%(counted_at_least)s::integer, %(counted_together)s::integer / count(*) over ())) as counted
        from (select queue_name from queue_names limit %(queues)s::integer) as few
    ) as queue
    cross join lateral (
        select count(*) as count, min(few.enqueued_at) as oldest_at
        from (
            select tasks.enqueued_at
            from {schema}.tasks
            where tasks.queue_name = queue.queue_name
            and tasks.status = 'PENDING'
            and tasks.ready
            -- Otherwise the planner would search the whole table for the few tasks of a short queue when others are long.
            order by tasks.priority, tasks.enqueued_at
            limit queue.counted
        ) as few
    ) as counted
),
not_due_counts as (
    -- Limited over all queues together: tasks that are not due have no index by queue. In the order of theirs, or all of it would be read.
    select
        queue_name,
        count(*) filter (where attempts = 0) as scheduled,
        count(*) filter (where attempts > 0) as retrying,
        sum(count(*)) over () >= %(not_due)s::integer as is_more
    from (
        select queue_name, attempts
        from {schema}.tasks
        where status = 'PENDING'
        and not ready
        and unknown_since is null
        order by enqueued_at
        limit %(not_due)s::integer
    ) as few
    group by queue_name
),
in_flight_counts as (
    select
        queue_name,
        count(*) filter (where status = 'CLAIMED') as claimed,
        count(*) filter (where status = 'RUNNING') as running
    from {schema}.tasks
    where status <> 'PENDING'
    group by queue_name
),
worker_counts as (
    select queue_name, count(*) as count
    from {schema}.workers
    cross join unnest(queues) as queue_name
    group by queue_name
)
select
    queue_name,
    coalesce(waiting_counts.count, 0),
    coalesce(not_due_counts.scheduled, 0),
    coalesce(not_due_counts.retrying, 0),
    coalesce(in_flight_counts.claimed, 0),
    coalesce(in_flight_counts.running, 0),
    coalesce(waiting_counts.is_more, false),
    coalesce(not_due_counts.is_more, false),
    -- `greatest` alone would turn null into zero.
    case when waiting_counts.oldest_at is not null then greatest(0, extract(epoch from clock_timestamp() - waiting_counts.oldest_at))::float8 end,
    queues.paused_at,
    coalesce(worker_counts.count, 0),
    queues.max_concurrency
from waiting_counts
full join not_due_counts using (queue_name)
full join in_flight_counts using (queue_name)
full join worker_counts using (queue_name)
full join (
    select name as queue_name, paused_at, max_concurrency
    from {schema}.queues
    where paused_at is not null
    or max_concurrency is not null
) as queues using (queue_name)
order by queue_name;

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
    queue.queue_name,
    (
        select count(*)
        from (
            select
            from {schema}.tasks
            where tasks.queue_name = queue.queue_name
            and tasks.status = 'PENDING'
            and tasks.ready
            -- Otherwise the planner would search the whole table for the tasks of an empty queue when others are long.
            order by tasks.priority, tasks.enqueued_at
            limit %(counted)s::integer
        ) as waiting
    ),
    coalesce(greatest(0, extract(epoch from clock_timestamp() - ({oldest_head})))::float8, 0),
    (
        select count(*)
        from {schema}.tasks
        where tasks.queue_name = queue.queue_name
        and tasks.status <> 'PENDING'
    ),
    exists (select from {schema}.queues where queues.name = queue.queue_name and queues.paused_at is not null),
    coalesce((select unknown_tasks.count from unknown_tasks where unknown_tasks.queue_name = queue.queue_name), 0)
from unnest(%(queues)s::text[]) as queue (queue_name);

-- name: get_server_info
select current_database()::text, current_setting('server_version'), max(version)
from {schema}.schema_versions;

-- name: count_workflows
select status, count(*)
from (
    select status
    from {schema}.workflows
    where status in ('RUNNING', 'PAUSED')
    and id = root_id
    limit %(counted)s::integer
) as few
group by status;
