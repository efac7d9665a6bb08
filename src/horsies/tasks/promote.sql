-- name: promote_tasks
-- Tasks that have become due join the claim index, and workers are notified. A row that cannot be updated does not fail it (see the
-- function).
select payload
from {schema}.promote_tasks(%(limit)s::integer) as payload;

-- name: get_next_due
-- Seconds until the next task is due, null if there is none; and whether a task is due already, because it is locked or cannot be promoted,
-- which must not hide the tasks after it.
select
    (
        select extract(epoch from tasks.enqueued_at - clock_timestamp())::float8
        from {schema}.tasks
        where tasks.status = 'PENDING'
        and not tasks.ready
        and tasks.unknown_since is null
        and tasks.enqueued_at > statement_timestamp()
        order by tasks.enqueued_at
        limit 1
    ),
    exists (
        select
        from {schema}.tasks
        where tasks.status = 'PENDING'
        and not tasks.ready
        and tasks.unknown_since is null
        and tasks.enqueued_at <= statement_timestamp()
    );
