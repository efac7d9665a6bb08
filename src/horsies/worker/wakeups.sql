-- fragment: waiting_tasks
-- For each of these queues one task that could be claimed, if there is one.
unnest(%(queues)s::text[]) as served (queue_name)
cross join lateral (
    select
    from {schema}.tasks
    where tasks.queue_name = served.queue_name
    and tasks.status = 'PENDING'
    and tasks.ready
    and (select queues.paused_at from {schema}.queues where queues.name = served.queue_name) is null
    -- For the index, whatever the statistics are.
    order by tasks.priority, tasks.enqueued_at, tasks.id
    limit 1
) as waiting

-- name: look_for_work
-- Whether there are tasks to claim, and whether a task of this worker is to be cancelled, or the worker itself was asked to leave.
select
    exists (select from {waiting_tasks}),
    exists (
        select
        from {schema}.tasks
        where tasks.cancel_requested_at is not null
        and tasks.claimed_by = %(worker)s::uuid
    )
    or exists (
        select
        from {schema}.workers
        where workers.id = %(worker)s::uuid
        and workers.leave_requested_at is not null
    );

-- name: call_for_help
select pg_notify('{new_channel}', %(payload)s::text)
from {waiting_tasks}
limit 1;
