-- name: get_ended
-- One snapshot over both tables: a task that is moving between them is seen in one of them, never in neither. The time of
-- the oldest id prunes the days before it was made, and the clock those to come.
select ended.id::text, status, result::text, error::text, null
from unnest(%(ids)s::uuid[]) as wanted (id)
-- One by one: `id = any(...)` reads the whole of a day that was filled and not analysed yet.
cross join lateral (
    select id, status, result, error
    from {schema}.finished
    where finished.id = wanted.id
    and finished_at >= %(since)s::timestamptz
    and finished_at < %(until)s::timestamptz
    offset 0
) as ended
union all
-- What has not begun when its time is over has expired, whether or not anybody has written that down yet.
select
    id::text,
    case when status <> 'RUNNING' and good_until <= statement_timestamp() then 'EXPIRED' else status end,
    null,
    null,
    -- An infinite moment has no distance from now before PostgreSQL 17.
    case when status <> 'RUNNING' and isfinite(good_until) then extract(epoch from good_until - statement_timestamp())::float8 end
from {schema}.tasks
where id = any(%(ids)s::uuid[]);

-- name: get_ended_unpruned
-- For ids that were not made by us, whose time says nothing.
select ended.id::text, status, result::text, error::text, null
from unnest(%(ids)s::uuid[]) as wanted (id)
cross join lateral (
    select id, status, result, error
    from {schema}.finished
    where finished.id = wanted.id
    offset 0
) as ended;
