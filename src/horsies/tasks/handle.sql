-- name: get_results
-- One snapshot over both tables: a task that moves between them is found in one of them. The time of the oldest id excludes the partitions
-- before it, and the clock those after it.
select task.id::text, status, result::text, error::text, null
from unnest(%(ids)s::uuid[]) as wanted (id)
-- One by one: `id = any(...)` reads the whole partition if it was filled and not analysed yet.
cross join lateral (
    select id, status, result, error
    from {schema}.finished
    where finished.id = wanted.id
    and finished_at >= %(since)s::timestamptz
    and finished_at < %(until)s::timestamptz
    offset 0
) as task
union all
-- A task that has not started by its `good_until` has expired, even if its row does not say so yet.
select
    id::text,
    case when status <> 'RUNNING' and good_until <= statement_timestamp() then 'EXPIRED' else status end,
    null,
    null,
    -- The difference of now and an infinite time is undefined before PostgreSQL 17.
    case when status <> 'RUNNING' and isfinite(good_until) then extract(epoch from good_until - statement_timestamp())::float8 end
from {schema}.tasks
where id = any(%(ids)s::uuid[]);

-- name: get_results_unpruned
-- For ids that were not made by horsies, whose bits are not a time.
select task.id::text, status, result::text, error::text, null
from unnest(%(ids)s::uuid[]) as wanted (id)
cross join lateral (
    select id, status, result, error
    from {schema}.finished
    where finished.id = wanted.id
    offset 0
) as task;
