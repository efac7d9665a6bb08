-- name: set_aside_claims
-- Release claims that this worker cannot run: it does not know the task, or cannot read the arguments. User code has not started, so the
-- attempt does not count. If another living worker may be able to run the task, it is offered to it. If not, the task leaves the claim
-- index and waits. A task that must not wait (`may_wait`) stays claimed and is returned as 'no_worker', to be ended.
with unfit_claims as (
    select *
    from unnest(
        %(ids)s::uuid[], %(claim_nos)s::integer[], %(signatures)s::bigint[], %(refusals)s::json[], %(may_wait)s::boolean[]
    ) as unfit_claims (id, claim_no, signature, refusal, may_wait)
),
held_tasks as materialized (
    select
        tasks.id, tasks.claim_no, unfit_claims.may_wait, unfit_claims.refusal,
        refusals.by as refused_by,
        exists (
            select
            from {schema}.workers
            where workers.id <> %(worker)s::uuid
            and {schema}.can_run(
                workers.queues, workers.task_names, workers.signatures,
                tasks.queue_name, tasks.task_name, refusals.by
            )
        ) as is_offered
    from {schema}.tasks
    join unfit_claims using (id)
    cross join lateral (
        select case
            when unfit_claims.signature is null then tasks.refused_by
            -- A hand-written array of more dimensions cannot be appended to.
            when array_ndims(tasks.refused_by) > 1 then array[unfit_claims.signature]
            when unfit_claims.signature = any(tasks.refused_by) then tasks.refused_by
            else tasks.refused_by || unfit_claims.signature
        end
    ) as refusals (by)
    where tasks.id = any(%(ids)s::uuid[])
    and tasks.claim_no = unfit_claims.claim_no
    and tasks.claimed_by = %(worker)s::uuid
    -- The session that holds the lock may have released the task: then this worker does not own it any more.
    order by tasks.id
    for update of tasks
),
released_tasks as (
    update {schema}.tasks
    set
        status = 'PENDING',
        claimed_by = null,
        claimed_at = null,
        lease_until = null,
        started_at = null,
        progress = null,
        ready = held_tasks.is_offered,
        unknown_since = case when not held_tasks.is_offered then statement_timestamp() end,
        refused_by = held_tasks.refused_by,
        refusal = coalesce(held_tasks.refusal, tasks.refusal)
    from held_tasks
    where tasks.id = any(array(select held_tasks.id from held_tasks where held_tasks.is_offered or held_tasks.may_wait))
    and tasks.id = held_tasks.id
    and tasks.claim_no = held_tasks.claim_no
    and tasks.claimed_by = %(worker)s::uuid
    returning tasks.id
)
select held_tasks.id::text, case when held_tasks.is_offered then 'offered' when held_tasks.may_wait then 'unknown' else 'no_worker' end
from held_tasks
left join released_tasks using (id)
where released_tasks.id is not null or not (held_tasks.is_offered or held_tasks.may_wait);

-- name: set_aside_following_tasks
-- The tasks behind one that no living worker knows are often of the same name: those within the next rows leave the claim index with it, or
-- each would have to be claimed once. Locked rows are left to the next time.
with unknown_names as materialized (
    select name.queue_name, name.task_name
    from unnest(%(name_queues)s::text[], %(names)s::text[]) as name (queue_name, task_name)
    where not exists (
        select
        from {schema}.workers
        where {schema}.can_run(workers.queues, workers.task_names, workers.signatures, name.queue_name, name.task_name, null)
    )
),
following_tasks as materialized (
    select task.id
    from unnest(%(queues)s::text[], %(priorities)s::integer[], %(times)s::timestamptz[]) as lane (queue_name, priority, enqueued_at)
    cross join lateral (
        select tasks.id, tasks.task_name
        from {schema}.tasks
        where tasks.queue_name = lane.queue_name
        and tasks.priority = lane.priority
        and tasks.enqueued_at >= lane.enqueued_at
        and tasks.status = 'PENDING'
        and tasks.ready
        order by tasks.enqueued_at, tasks.id
        limit %(limit)s::integer
    ) as task
    where (lane.queue_name, task.task_name) in (select unknown_names.queue_name, unknown_names.task_name from unknown_names)
),
locked_tasks as materialized (
    select tasks.id
    from {schema}.tasks
    where tasks.id = any(array(select following_tasks.id from following_tasks))
    and tasks.status = 'PENDING'
    and tasks.ready
    order by tasks.id
    for update skip locked
)
update {schema}.tasks
set ready = false, unknown_since = statement_timestamp()
where tasks.id = any(array(select locked_tasks.id from locked_tasks))
and tasks.status = 'PENDING';

-- name: get_unknown_names
-- Names of waiting tasks that no living worker knows, up to a limit.
-- A name is listed at most twice.
select name.task_name
from (
    select distinct names.task_name
    from {schema}.unknown_task_names(2 * %(limit)s::integer) as names
    order by names.task_name
    limit %(limit)s::integer
) as name
where not exists (
    select
    from {schema}.workers
    where workers.task_names is null
    or name.task_name = any(workers.task_names)
);

-- name: set_aside_named_tasks
-- Of the next rows by id, those with one of these names leave the claim index. Returns where the next page starts, and how many rows were
-- changed.
with page as materialized (
    select tasks.id, tasks.task_name
    from {schema}.tasks
    where tasks.id > %(after)s::uuid
    order by tasks.id
    limit %(limit)s::integer
),
locked_tasks as materialized (
    select tasks.id
    from {schema}.tasks
    where tasks.id = any(array(select page.id from page where page.task_name = any(%(names)s::text[])))
    and tasks.status = 'PENDING'
    and tasks.ready
    order by tasks.id
    for update skip locked
),
changed_tasks as (
    update {schema}.tasks
    set ready = false, unknown_since = statement_timestamp()
    where tasks.id = any(array(select locked_tasks.id from locked_tasks))
    returning tasks.id
)
select
    (select page.id::text from page order by page.id desc limit 1),
    (select count(*) from changed_tasks);

-- name: has_unknown_tasks
select exists (select from {schema}.tasks where tasks.unknown_since is not null);

-- name: offer_tasks_again
-- Return tasks to the claim index for which there is a worker now, and notify workers. By the names that workers know, and then once for
-- all tasks that are equal in what matters: there may be very many.
with known_tasks as materialized (
    select distinct queue.name as queue_name, task.task_name, task.signature
    from {schema}.workers
    cross join lateral unnest(workers.queues) as queue (name)
    cross join lateral unnest(workers.task_names, workers.signatures) as task (task_name, signature)
),
task_groups as materialized (
    select distinct name.task_name, sample.queue_name, sample.refused_by
    from (
        select distinct known_tasks.task_name
        from known_tasks
        union
        -- For workers that do not say what they know: the first tasks that wait.
        select first.task_name
        from (
            select tasks.task_name
            from {schema}.tasks
            where tasks.unknown_since is not null
            order by tasks.task_name, (tasks.refused_by is not null), tasks.unknown_since
            limit %(limit)s::integer
        ) as first
        where exists (select from {schema}.workers where workers.task_names is null)
    ) as name
    cross join lateral (
        select tasks.queue_name, tasks.refused_by
        from {schema}.tasks
        where tasks.task_name = name.task_name
        and tasks.unknown_since is not null
        order by (tasks.refused_by is not null), tasks.unknown_since
        limit %(sample_size)s::integer
    ) as sample
),
runnable_tasks as materialized (
    select task.id
    from task_groups
    cross join lateral (
        select tasks.id
        from {schema}.tasks
        where tasks.task_name = task_groups.task_name
        and tasks.queue_name = task_groups.queue_name
        and tasks.refused_by is not distinct from task_groups.refused_by
        and tasks.unknown_since is not null
        limit %(limit)s::integer
    ) as task
    where exists (
        select
        from known_tasks
        where known_tasks.task_name = task_groups.task_name
        and known_tasks.queue_name = task_groups.queue_name
        and (task_groups.refused_by is null or known_tasks.signature <> all(task_groups.refused_by))
    )
    or exists (
        select
        from {schema}.workers
        where workers.task_names is null
        and task_groups.queue_name = any(workers.queues)
    )
    limit %(limit)s::integer
),
locked_tasks as materialized (
    select tasks.id
    from {schema}.tasks
    where tasks.id = any(array(select runnable_tasks.id from runnable_tasks))
    and tasks.unknown_since is not null
    and tasks.status = 'PENDING'
    order by tasks.id
    for update skip locked
),
offered_tasks as (
    update {schema}.tasks
    set ready = true, unknown_since = null
    where tasks.id = any(array(select locked_tasks.id from locked_tasks))
    returning tasks.queue_name, tasks.priority, tasks.enqueued_at
),
notifications as (
    select pg_notify('{new_channel}', 'any ' || {schema}.wakeup_payload(true, priority, min(enqueued_at), queue_name))
    from offered_tasks
    group by queue_name, priority
)
select (select count(*) from offered_tasks), (select count(*) from notifications);

-- name: list_unknown_tasks
-- By task: whether workers know it and could not read its arguments; how many wait, up to a limit; and since when the first of them does.
select name.task_name, name.is_refused, few.count, few.since
from {schema}.unknown_task_names(%(names)s::integer) as name
cross join lateral (
    select count(*) as count, min(counted.unknown_since) as since
    from (
        select tasks.unknown_since
        from {schema}.tasks
        where tasks.task_name = name.task_name
        and (tasks.refused_by is not null) = name.is_refused
        and tasks.unknown_since is not null
        order by tasks.unknown_since
        limit %(counted)s::integer
    ) as counted
) as few
order by name.task_name, name.is_refused;

-- name: get_overdue_tasks
-- Tasks that have waited longer than allowed: for a worker that knows them, or for one with another signature.
select task.id::text, name.task_name, task.refusal::text
from {schema}.unknown_task_names(%(names)s::integer) as name
cross join lateral (
    select tasks.id, tasks.refusal
    from {schema}.tasks
    where tasks.task_name = name.task_name
    and (tasks.refused_by is not null) = name.is_refused
    and tasks.unknown_since < statement_timestamp()
        - case when name.is_refused then %(refused_ms)s::bigint else %(unknown_ms)s::bigint end * interval '1 ms'
    and tasks.id <> all(%(excluded)s::uuid[])
    order by tasks.unknown_since
    limit %(limit)s::integer
) as task
limit %(limit)s::integer;

-- name: lock_overdue_tasks
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[])
and unknown_since is not null
and not ready
and status = 'PENDING'
order by id
for update skip locked;
