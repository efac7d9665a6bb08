-- name: claim_from_marks
-- Starts at a known place per queue and priority (a lane): the dead index entries before it are never visited, so a
-- snapshot that somebody holds open does not slow claims. The lanes come in order of service; the outer limit stops the
-- loop as soon as there are enough.
with next as materialized (
    select task.id
    from unnest(%(queues)s::text[], %(priorities)s::integer[], %(marks)s::timestamptz[]) as lane (queue_name, priority, mark)
    cross join lateral (
        select tasks.id
        from {schema}.tasks
        where tasks.queue_name = lane.queue_name
        and tasks.priority = lane.priority
        and tasks.enqueued_at >= lane.mark
        and tasks.enqueued_at <= now()
        and tasks.status = 'PENDING'
        and tasks.ready
        and (tasks.good_until is null or tasks.good_until > now())
        order by tasks.enqueued_at, tasks.id
        limit %(limit)s::integer
        for update skip locked
    ) as task
    limit %(limit)s::integer
)
update {schema}.tasks
set
    status = %(status)s::text,
    claim_no = claim_no + 1,
    claimed_by = %(worker)s::uuid,
    claimed_at = now(),
    lease_until = case when %(status)s::text = 'CLAIMED' then now() + %(lease_ms)s::integer * interval '1 ms' end,
    started_at = case when %(status)s::text = 'RUNNING' then now() end
-- An array, not a join: the primary key is then the only way in, whatever the statistics say.
where id = any(array(select next.id from next))
returning id::text, claim_no, task_name, queue_name, priority, enqueued_at, attempts + 1, args::text;

-- name: claim_from_start
-- The same without marks: finds everything there is.
with next as materialized (
    select task.id
    from unnest(%(queues)s::text[]) as lane (queue_name)
    cross join lateral (
        select tasks.id
        from {schema}.tasks
        where tasks.queue_name = lane.queue_name
        and tasks.enqueued_at <= now()
        and tasks.status = 'PENDING'
        and tasks.ready
        and (tasks.good_until is null or tasks.good_until > now())
        order by tasks.priority, tasks.enqueued_at, tasks.id
        limit %(limit)s::integer
        for update skip locked
    ) as task
    limit %(limit)s::integer
)
update {schema}.tasks
set
    status = %(status)s::text,
    claim_no = claim_no + 1,
    claimed_by = %(worker)s::uuid,
    claimed_at = now(),
    lease_until = case when %(status)s::text = 'CLAIMED' then now() + %(lease_ms)s::integer * interval '1 ms' end,
    started_at = case when %(status)s::text = 'RUNNING' then now() end
where id = any(array(select next.id from next))
returning id::text, claim_no, task_name, queue_name, priority, enqueued_at, attempts + 1, args::text;

-- name: start_tasks
-- CLAIMED rows of the buffer become RUNNING. A row that is not returned was lost: its lease ran out and another worker
-- has it, or its time was over before it began.
update {schema}.tasks
set
    status = 'RUNNING',
    lease_until = null,
    started_at = now()
from unnest(%(ids)s::uuid[], %(claim_nos)s::integer[]) as held (id, claim_no)
where tasks.id = any(%(ids)s::uuid[])
and tasks.id = held.id
and tasks.claim_no = held.claim_no
and tasks.claimed_by = %(worker)s::uuid
and tasks.status = 'CLAIMED'
and tasks.lease_until > now()
and (tasks.good_until is null or tasks.good_until > now())
returning tasks.id::text;
