-- name: lock_caps
-- Claims that count first must not run concurrently. A statement of its own: the snapshot of the next one is then taken after the lock. The
-- keys are sorted, the one of the cluster first.
select pg_advisory_xact_lock(hashtextextended('horsies cap ' || %(schema)s::text || ' ' || key, 0))
from unnest(%(keys)s::text[]) as key;

-- fragment: is_claimable
tasks.enqueued_at <= statement_timestamp()
and tasks.status = 'PENDING'
and tasks.ready
and (tasks.good_until is null or tasks.good_until > statement_timestamp())
and tasks.cancel_requested_at is null
and tasks.id <> all(%(excluded)s::uuid[])
and tasks.task_name <> all(%(avoided_names)s::text[])
and (tasks.refused_by is null or not tasks.refused_by && %(avoided_signatures)s::bigint[])

-- fragment: is_open
-- The queue is not paused, and if it was capped at run time, this claim counts its tasks. A worker that does not know of the cap yet has neither locked
-- nor counted, so it claims nothing. A sub-select and not a join, which might change the order of the lanes.
(
    select
        queues.paused_at is not null
        or (queues.max_concurrency is not null and queues.name <> all(%(counted_queues)s::text[]))
    from {schema}.queues
    where queues.name = lane.queue_name
) is not true

-- fragment: claim_limit
case
    when %(cluster_wide_cap)s::integer is null then %(limit)s::integer
    else greatest(0, least(
        %(limit)s::integer,
        %(cluster_wide_cap)s::integer - (
            select count(*) from {schema}.tasks where status <> 'PENDING' and claimed_in >= %(in_flight_from)s::xid8
        )
    ))
end

-- fragment: claim_next_tasks
-- The clock's time and not the statement's: tasks that were counted as ended must have ended before it, also on a machine that pauses
-- between the start of the statement and its snapshot. Read once for all rows.
clock as materialized (
    select clock_timestamp() as now
)
update {schema}.tasks
set
    status = %(status)s::text,
    -- Wraps around before it overflows, which only a hand-written number can cause. An overflow would fail every claim.
    claim_no = claim_no %% 2147483646 + 1,
    claimed_by = %(worker)s::uuid,
    claimed_at = (select clock.now from clock),
    claimed_in = pg_current_xact_id(),
    unknown_since = null,
    lease_until = case
        when %(status)s::text = 'CLAIMED' then (select clock.now from clock) + %(lease_ms)s::integer * interval '1 ms'
    end,
    started_at = case when %(status)s::text = 'RUNNING' then (select clock.now from clock) end
-- An array and not a join, so that only the primary key is used, whatever the statistics are.
where id = any(array(select next_tasks.id from next_tasks))
-- Compared with the time that is stored as the start, even if this statement was delayed.
and (good_until is null or good_until > (select clock.now from clock))
returning {claim_columns}

-- name: claim_from_watermarks
-- Start at a known position (a watermark) per queue and priority (a lane). Dead index entries before it are never visited, so a snapshot
-- that another session holds open does not slow down claims. The lanes are in claim order; the outer limit ends the loop as soon as there
-- are enough tasks.
with next_tasks as materialized (
    select task.id
    from unnest(
        %(queues)s::text[],
        %(priorities)s::integer[],
        %(watermarks)s::timestamptz[]
    ) as lane (queue_name, priority, watermark)
    cross join lateral (
        select tasks.id
        from {schema}.tasks
        where tasks.queue_name = lane.queue_name
        and tasks.priority = lane.priority
        and tasks.enqueued_at >= lane.watermark
        and {is_claimable}
        order by tasks.enqueued_at, tasks.id
        limit %(limit)s::integer
        for update skip locked
    ) as task
    where {is_open}
    limit {claim_limit}
),
{claim_next_tasks};

-- name: claim_from_queues
-- One lane per queue, for all of its priorities. From the start of a queue it finds every task in it, and it can apply a cap. Only a capped
-- queue is counted. A cap that was set at run time is read here, so that no worker uses an old one.
with next_tasks as materialized (
    select task.id
    from unnest(
        %(queues)s::text[],
        %(priorities)s::integer[],
        %(watermarks)s::timestamptz[],
        %(caps)s::integer[]
    ) as lane (queue_name, priority, watermark, cap)
    cross join lateral (
        select tasks.id
        from {schema}.tasks
        where tasks.queue_name = lane.queue_name
        and (tasks.priority, tasks.enqueued_at) >= (lane.priority, lane.watermark)
        and {is_claimable}
        order by tasks.priority, tasks.enqueued_at, tasks.id
        limit case
            when lane.queue_name <> all(%(counted_queues)s::text[]) then %(queue_limit)s::integer
            -- Without any cap, because one was removed a moment ago, `least` ignores the null.
            else greatest(0, least(
                %(queue_limit)s::integer,
                coalesce(
                    (select queues.max_concurrency from {schema}.queues where queues.name = lane.queue_name),
                    lane.cap
                ) - (
                    select count(*)
                    from {schema}.tasks as in_flight
                    where in_flight.queue_name = lane.queue_name
                    and in_flight.status = any(%(counted)s::text[])
                    and in_flight.status <> 'PENDING'
                    and in_flight.claimed_in >= %(in_flight_from)s::xid8
                )
            ))
        end
        for update skip locked
    ) as task
    where {is_open}
    limit {claim_limit}
),
{claim_next_tasks};

-- name: get_in_flight_from
-- The oldest claim that counts can find from now on: that of a task in flight, or of a transaction that is not visible yet. (An own
-- transaction that ends tasks must be committed first.)
select least(
    (
        select claimed_in
        from {schema}.tasks
        where status <> 'PENDING'
        and claimed_in >= %(in_flight_from)s::xid8
        order by claimed_in
        limit 1
    ),
    pg_snapshot_xmin(pg_current_snapshot())
)::text;

-- name: get_caps_set_at_run_time
select name, max_concurrency
from {schema}.queues
where max_concurrency is not null
and name = any(%(queues)s::text[]);

-- name: get_queue_heads
-- The first task of each queue that has one, as the payload that the trigger would send.
select {schema}.wakeup_payload(true, task.priority, task.enqueued_at, lane.queue_name)
from unnest(%(queues)s::text[]) as lane (queue_name)
cross join lateral (
    select tasks.priority, tasks.enqueued_at
    from {schema}.tasks
    where tasks.queue_name = lane.queue_name
    and tasks.status = 'PENDING'
    and tasks.ready
    order by tasks.priority, tasks.enqueued_at, tasks.id
    limit 1
) as task;

-- name: start_tasks
-- Prefetched tasks become RUNNING. A row that is not returned was lost (its lease ran out and another worker has it, or it has expired), or
-- its queue is full. `positions` numbers the rows of one queue in this call.
with clock as materialized (
    select clock_timestamp() as now
)
update {schema}.tasks
set
    status = 'RUNNING',
    lease_until = null,
    started_at = (select clock.now from clock)
where id = any(%(ids)s::uuid[])
and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
and claimed_by = %(worker)s::uuid
and status = 'CLAIMED'
and case
    when (%(caps)s::integer[])[width_bucket(id, %(ids)s::uuid[])] is null then true
    else (%(positions)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
        <= (%(caps)s::integer[])[width_bucket(id, %(ids)s::uuid[])] - (
            select count(*)
            from {schema}.tasks as running
            where running.queue_name = tasks.queue_name
            and running.status = 'RUNNING'
            and running.claimed_in >= %(in_flight_from)s::xid8
        )
end
and tasks.lease_until > statement_timestamp()
and (tasks.good_until is null or tasks.good_until > (select clock.now from clock))
returning tasks.id::text;

-- name: load_payloads
-- Payloads that a claim left out because they are large. Returns as many as fit into the budget, in order of ids, but at least one. The
-- others are returned without a payload, and are requested again. A payload above the limit for one task is returned as its size only.
-- Sizes are measured first; as a part of `node_inputs` the measured text grows to at most twice its size.
with payload_sizes as materialized (
    select
        id, node_id, coalesce(takes_inputs, false) as takes_inputs, args,
        octet_length(args::text) + case when takes_inputs then coalesce({schema}.input_bytes(node_id), 0) else 0 end as bytes
    from {schema}.tasks
    where id = any(%(ids)s::uuid[])
    and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
    and claimed_by = %(worker)s::uuid
),
payloads as materialized (
    select
        *,
        bytes <= %(max_bytes)s::bigint
        and (row_number() over by_id = 1 or sum(bytes) over by_id <= %(budget_bytes)s::bigint) as fits
    from payload_sizes
    window by_id as (order by bytes > %(max_bytes)s::bigint, id)
)
select
    id::text,
    bytes,
    case when fits then args::text end,
    case when fits and takes_inputs then {schema}.node_inputs(node_id, null) end
from payloads;

-- name: list_claimable_tasks
-- After a claim that failed: the rows that it would take, so that each can be tried alone.
select task.id::text
from unnest(%(queues)s::text[]) as lane (queue_name)
cross join lateral (
    select tasks.id
    from {schema}.tasks
    where tasks.queue_name = lane.queue_name
    and {is_claimable}
    order by tasks.priority, tasks.enqueued_at, tasks.id
    limit %(limit)s::integer
) as task
where {is_open};

-- name: begin_trial
begin isolation level read committed;

-- name: try_claim
-- The same update as a claim, for one row, in a transaction that is rolled back, to find out whether the server accepts it.
update {schema}.tasks
set
    status = 'RUNNING',
    claim_no = claim_no + 1,
    claimed_by = %(worker)s::uuid,
    claimed_at = clock_timestamp(),
    claimed_in = pg_current_xact_id(),
    started_at = clock_timestamp()
where id = (
    select tasks.id
    from {schema}.tasks
    where tasks.id = %(id)s::uuid
    and tasks.status = 'PENDING'
    for update skip locked
)
returning id::text, attempts + 1, args::text is not null, coalesce(attempts < cardinality(retry_delays_ms), false);

-- name: roll_back_trial
rollback;

-- name: fail_unclaimable_task
-- A row that no worker can ever claim ends here, or it would block its queue. It must still be pending.
with deleted_task as (
    delete from {schema}.tasks
    where id = %(id)s::uuid
    and status = 'PENDING'
    returning *
)
insert into {schema}.finished ({moved_columns}, status, attempts, error_code, error, finished_at)
select {moved_columns}, 'FAILED', attempts, %(error_code)s::text, %(error)s::json, statement_timestamp()
from deleted_task
returning id::text;

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
