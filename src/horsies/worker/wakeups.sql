-- fragment: waiting_tasks
-- For each of these queues one task that could be claimed, if there is one. None of a queue that is at its cap: no worker may take more, and each that
-- tried would take the lock of the cap.
unnest(%(queues)s::text[], %(caps)s::integer[]) as served (queue_name, cap)
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
cross join lateral (
    select coalesce((select queues.max_concurrency from {schema}.queues where queues.name = served.queue_name), served.cap) as cap
) as queue
where (
    queue.cap is null
    or queue.cap > (
        select count(*)
        from {schema}.tasks as in_flight
        where in_flight.queue_name = served.queue_name
        and in_flight.status = any(%(counted)s::text[])
        and in_flight.status <> 'PENDING'
        and in_flight.claimed_in >= '0'::xid8
    )
)
and (
    %(cluster_wide_cap)s::integer is null
    or %(cluster_wide_cap)s::integer > (
        select count(*) from {schema}.tasks where status <> 'PENDING' and claimed_in >= '0'::xid8
    )
)

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
        -- A later heartbeat has read it. Without this, a worker that waits for long tasks would send one after each poll.
        and workers.leave_requested_at > workers.heartbeat_at
    );

-- name: call_for_help
select pg_notify('{new_channel}', %(payload)s::text)
from {waiting_tasks}
limit 1;
