-- name: lock_caps
-- Whoever counts before claiming must be alone. In a statement of its own: the next one's snapshot is then younger than the lock.
-- The keys come sorted, the cluster's first.
select pg_advisory_xact_lock(hashtextextended('horsies cap ' || %(schema)s::text || ' ' || key, 0))
from unnest(%(keys)s::text[]) as key;

-- name: claim_from_marks
-- Starts at a known place per queue and priority (a lane): the dead index entries before it are never visited, so a
-- snapshot that somebody holds open does not slow claims. The lanes come in order of service; the outer limit stops the
-- loop as soon as there are enough.
with next as materialized (
    select task.id
    from unnest(
        %(queues)s::text[],
        %(priorities)s::integer[],
        %(marks)s::timestamptz[]
    ) as lane (queue_name, priority, mark)
    cross join lateral (
        select tasks.id
        from {schema}.tasks
        where tasks.queue_name = lane.queue_name
        and tasks.priority = lane.priority
        and tasks.enqueued_at >= lane.mark
        and tasks.enqueued_at <= statement_timestamp()
        and tasks.status = 'PENDING'
        and tasks.ready
        and (tasks.good_until is null or tasks.good_until > statement_timestamp())
        and tasks.cancel_requested_at is null
        and tasks.id <> all(%(excluded)s::uuid[])
        and tasks.task_name <> all(%(avoided_names)s::text[])
        and (tasks.refused_by is null or not tasks.refused_by && %(avoided_signatures)s::bigint[])
        order by tasks.enqueued_at, tasks.id
        limit %(limit)s::integer
        for update skip locked
    ) as task
    -- A sub-select, not a join, which might change the order of the lanes.
    where (select queues.paused_at from {schema}.queues where queues.name = lane.queue_name) is null
    limit case
        when %(cluster_wide_cap)s::integer is null then %(limit)s::integer
        else greatest(0, least(
            %(limit)s::integer,
            %(cluster_wide_cap)s::integer - (select count(*) from {schema}.tasks where status <> 'PENDING')
        ))
    end
),
-- The time of the clock, not of the statement: what was counted as ended must have ended before, also on a machine that pauses
-- between the statement's start and its snapshot. It is read once for all rows.
moment as materialized (
    select clock_timestamp() as now
)
update {schema}.tasks
set
    status = %(status)s::text,
    -- It begins again before it would be too large, which only a number written by hand brings about: that would fail every claim.
    claim_no = claim_no %% 2147483646 + 1,
    claimed_by = %(worker)s::uuid,
    claimed_at = (select moment.now from moment),
    unknown_since = null,
    lease_until = case
        when %(status)s::text = 'CLAIMED' then (select moment.now from moment) + %(lease_ms)s::integer * interval '1 ms'
    end,
    started_at = case when %(status)s::text = 'RUNNING' then (select moment.now from moment) end
-- An array, not a join: the primary key is then the only way in, whatever the statistics say.
where id = any(array(select next.id from next))
-- By the time that is written down as its start, whatever has held this statement up.
and (good_until is null or good_until > (select moment.now from moment))
returning
    -- What Python cannot hold as a moment must not come back: the rows would be claimed, and nobody would know which.
    id::text, claim_no, task_name, queue_name, priority, greatest(enqueued_at, 'epoch'), attempts + 1,
    -- A large payload is left out, and read when the claim is committed (load_payloads): a message ends at one gigabyte.
    case
        when pg_column_size(args) <= %(inline_bytes)s::integer and octet_length(args::text) <= %(inline_bytes)s::integer
        then args::text
    end,
    timeout_ms, coalesce(attempts < cardinality(retry_delays_ms), false), root_id::text,
    case when takes_inputs then {schema}.node_inputs(node_id, %(inline_bytes)s::integer) end, trace,
    coalesce(takes_inputs, false), child_deaths;

-- name: claim_from_queues
-- One lane per queue, whatever the priorities in it: from the start of the queue it finds everything there is, and it is where
-- a queue can be capped. Only a capped queue is counted.
with next as materialized (
    select task.id
    from unnest(
        %(queues)s::text[],
        %(priorities)s::integer[],
        %(marks)s::timestamptz[],
        %(caps)s::integer[]
    ) as lane (queue_name, priority, mark, cap)
    cross join lateral (
        select tasks.id
        from {schema}.tasks
        where tasks.queue_name = lane.queue_name
        and (tasks.priority, tasks.enqueued_at) >= (lane.priority, lane.mark)
        and tasks.enqueued_at <= statement_timestamp()
        and tasks.status = 'PENDING'
        and tasks.ready
        and (tasks.good_until is null or tasks.good_until > statement_timestamp())
        and tasks.cancel_requested_at is null
        and tasks.id <> all(%(excluded)s::uuid[])
        and tasks.task_name <> all(%(avoided_names)s::text[])
        and (tasks.refused_by is null or not tasks.refused_by && %(avoided_signatures)s::bigint[])
        order by tasks.priority, tasks.enqueued_at, tasks.id
        limit case
            when lane.cap is null then %(queue_limit)s::integer
            else greatest(0, least(
                %(queue_limit)s::integer,
                lane.cap - (
                    select count(*)
                    from {schema}.tasks as in_flight
                    where in_flight.queue_name = lane.queue_name
                    and in_flight.status = any(%(counted)s::text[])
                    and in_flight.status <> 'PENDING'
                )
            ))
        end
        for update skip locked
    ) as task
    where (select queues.paused_at from {schema}.queues where queues.name = lane.queue_name) is null
    limit case
        when %(cluster_wide_cap)s::integer is null then %(limit)s::integer
        else greatest(0, least(
            %(limit)s::integer,
            %(cluster_wide_cap)s::integer - (select count(*) from {schema}.tasks where status <> 'PENDING')
        ))
    end
),
moment as materialized (
    select clock_timestamp() as now
)
update {schema}.tasks
set
    status = %(status)s::text,
    -- It begins again before it would be too large, which only a number written by hand brings about: that would fail every claim.
    claim_no = claim_no %% 2147483646 + 1,
    claimed_by = %(worker)s::uuid,
    claimed_at = (select moment.now from moment),
    unknown_since = null,
    lease_until = case
        when %(status)s::text = 'CLAIMED' then (select moment.now from moment) + %(lease_ms)s::integer * interval '1 ms'
    end,
    started_at = case when %(status)s::text = 'RUNNING' then (select moment.now from moment) end
where id = any(array(select next.id from next))
and (good_until is null or good_until > (select moment.now from moment))
returning
    id::text, claim_no, task_name, queue_name, priority, greatest(enqueued_at, 'epoch'), attempts + 1,
    case
        when pg_column_size(args) <= %(inline_bytes)s::integer and octet_length(args::text) <= %(inline_bytes)s::integer
        then args::text
    end,
    timeout_ms, coalesce(attempts < cardinality(retry_delays_ms), false), root_id::text,
    case when takes_inputs then {schema}.node_inputs(node_id, %(inline_bytes)s::integer) end, trace,
    coalesce(takes_inputs, false), child_deaths;

-- name: survey_queues
-- Where something waits: of each queue the first row, told as the trigger tells of it.
select {schema}.news_of(true, task.priority, task.enqueued_at, lane.queue_name)
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
-- CLAIMED rows of the buffer become RUNNING. A row that is not returned was lost (its lease ran out and another worker has it, or
-- its time was over before it began), or its queue is full. `position` counts the rows of one queue in this call.
with moment as materialized (
    select clock_timestamp() as now
)
update {schema}.tasks
set
    status = 'RUNNING',
    lease_until = null,
    started_at = (select moment.now from moment)
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
        )
end
and tasks.lease_until > statement_timestamp()
and (tasks.good_until is null or tasks.good_until > (select moment.now from moment))
returning tasks.id::text;

-- name: load_payloads
-- What a claim has left out because it is large. As many tasks as the budget has room for, in the order of their ids, and at least one;
-- the others come back without, and are asked for again. What is larger than a task may be comes back with its size alone. Measured first:
-- what the measured text grows to as a part of `node_inputs` is at most twice as long.
with sized as materialized (
    select
        id, node_id, coalesce(takes_inputs, false) as takes_inputs, args,
        octet_length(args::text) + case when takes_inputs then coalesce({schema}.input_bytes(node_id), 0) else 0 end as bytes
    from {schema}.tasks
    where id = any(%(ids)s::uuid[])
    and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
    and claimed_by = %(worker)s::uuid
),
chosen as materialized (
    select
        *,
        bytes <= %(max_bytes)s::bigint
        and (row_number() over by_id = 1 or sum(bytes) over by_id <= %(budget_bytes)s::bigint) as fits
    from sized
    window by_id as (order by bytes > %(max_bytes)s::bigint, id)
)
select
    id::text,
    bytes,
    case when fits then args::text end,
    case when fits and takes_inputs then {schema}.node_inputs(node_id, null) end
from chosen;

-- name: list_claimable
-- After a claim that was refused: which rows it would take, so that each can be tried by itself.
select task.id::text
from unnest(%(queues)s::text[]) as lane (queue_name)
cross join lateral (
    select tasks.id
    from {schema}.tasks
    where tasks.queue_name = lane.queue_name
    and tasks.enqueued_at <= statement_timestamp()
    and tasks.status = 'PENDING'
    and tasks.ready
    and (tasks.good_until is null or tasks.good_until > statement_timestamp())
    and tasks.cancel_requested_at is null
    and tasks.id <> all(%(excluded)s::uuid[])
    and tasks.task_name <> all(%(avoided_names)s::text[])
    and (tasks.refused_by is null or not tasks.refused_by && %(avoided_signatures)s::bigint[])
    order by tasks.priority, tasks.enqueued_at, tasks.id
    limit %(limit)s::integer
) as task
where (select queues.paused_at from {schema}.queues where queues.name = lane.queue_name) is null;

-- name: begin_trial
begin isolation level read committed;

-- name: try_claim
-- The same change as a claim, for one row, in a transaction that is rolled back: does the server take it?
update {schema}.tasks
set
    status = 'RUNNING',
    claim_no = claim_no + 1,
    claimed_by = %(worker)s::uuid,
    claimed_at = clock_timestamp(),
    started_at = clock_timestamp()
where id = (
    select tasks.id
    from {schema}.tasks
    where tasks.id = %(id)s::uuid
    and tasks.status = 'PENDING'
    for update skip locked
)
returning id::text, attempts + 1, args::text is not null, coalesce(attempts < cardinality(retry_delays_ms), false);

-- name: end_trial
rollback;

-- name: fail_unclaimable
-- A row that no worker can ever claim ends here, or it would stand before all others of its queue. It must still be waiting.
with ended as (
    delete from {schema}.tasks
    where id = %(id)s::uuid
    and status = 'PENDING'
    returning *
)
insert into {schema}.finished (
    id, task_name, queue_name, priority, status, args, error_code, error,
    sent_at, enqueued_at, good_until, attempts, claim_no, finished_at, root_id, node_id, trace
)
select
    id, task_name, queue_name, priority, 'FAILED', args, %(error_code)s::text, %(error)s::json,
    sent_at, enqueued_at, good_until, attempts, claim_no, statement_timestamp(), root_id, node_id, trace
from ended
returning id::text;
