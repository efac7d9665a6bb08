-- name: get_ended
-- One snapshot over both tables: a task that is moving between them is seen in one of them, never in neither. The id's
-- own time prunes the days before it was made, and the clock those to come.
select status, result::text, error::text, null
from {schema}.finished
where id = %(id)s::uuid
and finished_at >= %(since)s::timestamptz
and finished_at < %(until)s::timestamptz
union all
-- What has not begun when its time is over has expired, whether or not anybody has written that down yet.
select
    case when status <> 'RUNNING' and good_until <= statement_timestamp() then 'EXPIRED' else status end,
    null,
    null,
    case when status <> 'RUNNING' then extract(epoch from good_until - statement_timestamp())::float8 end
from {schema}.tasks
where id = %(id)s::uuid;

-- name: get_ended_unpruned
-- For ids that were not made by us, whose time says nothing.
select status, result::text, error::text, null
from {schema}.finished
where id = %(id)s::uuid;
