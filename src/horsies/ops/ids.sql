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
select id::text
from {schema}.workflows
where id between %(lowest)s::uuid and %(highest)s::uuid
order by id
limit %(limit)s::bigint;

-- name: find_workers
-- Those that are registered, those that died, and those that have left snapshots of their health.
select id::text
from {schema}.workers
where id between %(lowest)s::uuid and %(highest)s::uuid
union
select id::text
from {schema}.dead_workers
where id between %(lowest)s::uuid and %(highest)s::uuid
union
select worker_id::text
from {schema}.worker_states
where worker_id between %(lowest)s::uuid and %(highest)s::uuid
order by 1
limit %(limit)s::bigint;
