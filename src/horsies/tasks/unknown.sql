-- name: set_aside
-- Claims that this worker cannot run: it does not know the task, or cannot read the arguments. User code has not begun, so they go back, and the attempt
-- does not count. Where another living worker may be able to, they are offered to it. Where none is, they leave the claim index and wait, except
-- those that nobody would have to be waited for (`may_wait`): these stay ours, and come back as 'nobody', to be ended.
with given as (
    select *
    from unnest(
        %(ids)s::uuid[], %(claim_nos)s::integer[], %(signatures)s::bigint[], %(refusals)s::json[], %(may_wait)s::boolean[]
    ) as given (id, claim_no, signature, refusal, may_wait)
),
held as materialized (
    select
        tasks.id, tasks.claim_no, given.may_wait, given.refusal,
        refused.by as refused_by,
        exists (
            select
            from {schema}.workers
            where workers.id <> %(worker)s::uuid
            and {schema}.can_run(
                workers.queues, workers.task_names, workers.signatures,
                tasks.queue_name, tasks.task_name, refused.by
            )
        ) as is_offered
    from {schema}.tasks
    join given using (id)
    cross join lateral (
        select case
            when given.signature is null then tasks.refused_by
            -- A list by hand with more dimensions has no end that something could be put at.
            when array_ndims(tasks.refused_by) > 1 then array[given.signature]
            when given.signature = any(tasks.refused_by) then tasks.refused_by
            else tasks.refused_by || given.signature
        end
    ) as refused (by)
    where tasks.id = any(%(ids)s::uuid[])
    and tasks.claim_no = given.claim_no
    and tasks.claimed_by = %(worker)s::uuid
    -- Whoever is waited for here may have given it to another worker: then it is no longer ours.
    order by tasks.id
    for update of tasks
),
returned as (
    update {schema}.tasks
    set
        status = 'PENDING',
        claimed_by = null,
        claimed_at = null,
        lease_until = null,
        started_at = null,
        progress = null,
        ready = held.is_offered,
        unknown_since = case when not held.is_offered then statement_timestamp() end,
        refused_by = held.refused_by,
        refusal = coalesce(held.refusal, tasks.refusal)
    from held
    where tasks.id = any(array(select held.id from held where held.is_offered or held.may_wait))
    and tasks.id = held.id
    and tasks.claim_no = held.claim_no
    and tasks.claimed_by = %(worker)s::uuid
    returning tasks.id
)
select held.id::text, case when held.is_offered then 'offered' when held.may_wait then 'unknown' else 'nobody' end
from held
left join returned using (id)
where returned.id is not null or not (held.is_offered or held.may_wait);

-- name: set_aside_ahead
-- What comes behind a task that no living worker knows is often more of it: as much as lies within so many rows leaves the claim index with it, or each would
-- have to be claimed once. What somebody holds locked is left to the next time.
with unknown as materialized (
    select given.queue_name, given.task_name
    from unnest(%(name_queues)s::text[], %(names)s::text[]) as given (queue_name, task_name)
    where not exists (
        select
        from {schema}.workers
        where {schema}.can_run(workers.queues, workers.task_names, workers.signatures, given.queue_name, given.task_name, null)
    )
),
ahead as materialized (
    select task.id
    from unnest(%(queues)s::text[], %(priorities)s::integer[], %(moments)s::timestamptz[]) as lane (queue_name, priority, enqueued_at)
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
    where (lane.queue_name, task.task_name) in (select unknown.queue_name, unknown.task_name from unknown)
),
locked as materialized (
    select tasks.id
    from {schema}.tasks
    where tasks.id = any(array(select ahead.id from ahead))
    and tasks.status = 'PENDING'
    and tasks.ready
    order by tasks.id
    for update skip locked
)
update {schema}.tasks
set ready = false, unknown_since = statement_timestamp()
where tasks.id = any(array(select locked.id from locked))
and tasks.status = 'PENDING';

-- name: get_unknown_names
-- Of what is set aside: the names that no living worker knows, so many at most.
with recursive name as (
    (
        select tasks.task_name
        from {schema}.tasks
        where tasks.unknown_since is not null
        order by tasks.task_name
        limit 1
    )
    union all
    select next.task_name
    from name
    cross join lateral (
        select tasks.task_name
        from {schema}.tasks
        where tasks.unknown_since is not null
        and tasks.task_name > name.task_name
        order by tasks.task_name
        limit 1
    ) as next
)
select name.task_name
from (select * from name limit %(limit)s::integer) as name
where not exists (
    select
    from {schema}.workers
    where workers.task_names is null
    or name.task_name = any(workers.task_names)
);

-- name: set_aside_more
-- Of the next rows by id, whatever they are: those of these names leave the claim index. Where the next look goes on, and how many there were.
with looked_at as materialized (
    select tasks.id, tasks.task_name
    from {schema}.tasks
    where tasks.id > %(after)s::uuid
    order by tasks.id
    limit %(limit)s::integer
),
locked as materialized (
    select tasks.id
    from {schema}.tasks
    where tasks.id = any(array(select looked_at.id from looked_at where looked_at.task_name = any(%(names)s::text[])))
    and tasks.status = 'PENDING'
    and tasks.ready
    order by tasks.id
    for update skip locked
),
changed as (
    update {schema}.tasks
    set ready = false, unknown_since = statement_timestamp()
    where tasks.id = any(array(select locked.id from locked))
    returning tasks.id
)
select
    (select looked_at.id::text from looked_at order by looked_at.id desc limit 1),
    (select count(*) from changed);

-- name: is_any_set_aside
select exists (select from {schema}.tasks where tasks.unknown_since is not null);

-- name: offer_again
-- What waits for a worker that can run it, and now there is one: back into the claim index, and whoever has room is told. By the names that workers know,
-- and then once for all tasks that differ in nothing that matters: there may be very many.
with capable as materialized (
    select distinct queue.name as queue_name, known.task_name, known.signature
    from {schema}.workers
    cross join lateral unnest(workers.queues) as queue (name)
    cross join lateral unnest(workers.task_names, workers.signatures) as known (task_name, signature)
),
alike as materialized (
    select distinct name.task_name, few.queue_name, few.refused_by
    from (
        select distinct capable.task_name
        from capable
        union
        -- For a worker that does not say what it knows: the first of those that wait.
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
        limit %(looked_at)s::integer
    ) as few
),
able as materialized (
    select task.id
    from alike
    cross join lateral (
        select tasks.id
        from {schema}.tasks
        where tasks.task_name = alike.task_name
        and tasks.queue_name = alike.queue_name
        and tasks.refused_by is not distinct from alike.refused_by
        and tasks.unknown_since is not null
        limit %(limit)s::integer
    ) as task
    where exists (
        select
        from capable
        where capable.task_name = alike.task_name
        and capable.queue_name = alike.queue_name
        and (alike.refused_by is null or capable.signature <> all(alike.refused_by))
    )
    or exists (
        select
        from {schema}.workers
        where workers.task_names is null
        and alike.queue_name = any(workers.queues)
    )
    limit %(limit)s::integer
),
locked as materialized (
    select tasks.id
    from {schema}.tasks
    where tasks.id = any(array(select able.id from able))
    and tasks.unknown_since is not null
    and tasks.status = 'PENDING'
    order by tasks.id
    for update skip locked
),
offered as (
    update {schema}.tasks
    set ready = true, unknown_since = null
    where tasks.id = any(array(select locked.id from locked))
    returning tasks.queue_name, tasks.priority, tasks.enqueued_at
),
told as (
    select pg_notify('{new_channel}', {schema}.news_of(true, priority, min(enqueued_at), queue_name))
    from offered
    group by queue_name, priority
)
select (select count(*) from offered), (select count(*) from told);

-- name: list_unknown
-- By task: how many wait, counted so far and no further; since when the first of them does; whether workers know it and could not read its arguments.
with recursive name as (
    (
        select tasks.task_name, tasks.refused_by is not null as is_refused
        from {schema}.tasks
        where tasks.unknown_since is not null
        order by tasks.task_name, (tasks.refused_by is not null)
        limit 1
    )
    union all
    select next.task_name, next.is_refused
    from name
    cross join lateral (
        select tasks.task_name, tasks.refused_by is not null as is_refused
        from {schema}.tasks
        where tasks.unknown_since is not null
        and (tasks.task_name, tasks.refused_by is not null) > (name.task_name, name.is_refused)
        order by tasks.task_name, (tasks.refused_by is not null)
        limit 1
    ) as next
)
select name.task_name, name.is_refused, few.count, few.since
from (select * from name limit %(names)s::integer) as name
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

-- name: get_impatient
-- What has waited for longer than it may: for a worker that knows it, and for one with another signature.
with recursive name as (
    (
        select tasks.task_name, tasks.refused_by is not null as is_refused
        from {schema}.tasks
        where tasks.unknown_since is not null
        order by tasks.task_name, (tasks.refused_by is not null)
        limit 1
    )
    union all
    select next.task_name, next.is_refused
    from name
    cross join lateral (
        select tasks.task_name, tasks.refused_by is not null as is_refused
        from {schema}.tasks
        where tasks.unknown_since is not null
        and (tasks.task_name, tasks.refused_by is not null) > (name.task_name, name.is_refused)
        order by tasks.task_name, (tasks.refused_by is not null)
        limit 1
    ) as next
)
select late.id::text, name.task_name, late.refusal::text
from (select * from name limit %(names)s::integer) as name
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
) as late
limit %(limit)s::integer;

-- name: lock_impatient
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[])
and unknown_since is not null
and not ready
and status = 'PENDING'
order by id
for update skip locked;
