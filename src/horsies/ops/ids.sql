-- name: find_tasks
-- Each part is a range of an index and is limited by itself, so that a short prefix does not read everything.
select id::text
from (
    (
        select id
        from {schema}.tasks
        where id between %(lowest)s::uuid and %(highest)s::uuid
        order by id
        limit %(limit)s::bigint
    )
    union
    (
        select id
        from {schema}.finished
        where id between %(lowest)s::uuid and %(highest)s::uuid
        order by id
        limit %(limit)s::bigint
    )
) as found
order by id
limit %(limit)s::bigint;

-- name: find_workflows
-- The order is that of the column. `id` alone would be the text that is returned, and all rows of the range would be sorted.
select id::text
from {schema}.workflows
where id between %(lowest)s::uuid and %(highest)s::uuid
order by workflows.id
limit %(limit)s::bigint;

-- name: find_workers
-- Those that are registered, those that died, and those that have left snapshots of their health: of these, the index is read from one worker to the next.
with recursive known as (
    (
        select worker_id
        from {schema}.worker_states
        where worker_id between %(lowest)s::uuid and %(highest)s::uuid
        order by worker_id
        limit 1
    )
    union all
    select next.worker_id
    from known
    cross join lateral (
        select worker_states.worker_id
        from {schema}.worker_states
        where worker_states.worker_id > known.worker_id
        and worker_states.worker_id <= %(highest)s::uuid
        order by worker_states.worker_id
        limit 1
    ) as next
)
select id::text
from (
    (
        select id
        from {schema}.workers
        where id between %(lowest)s::uuid and %(highest)s::uuid
        order by id
        limit %(limit)s::bigint
    )
    union
    (
        select id
        from {schema}.dead_workers
        where id between %(lowest)s::uuid and %(highest)s::uuid
        order by id
        limit %(limit)s::bigint
    )
    union
    (select worker_id from known limit %(limit)s::bigint)
) as found
order by found.id
limit %(limit)s::bigint;
