-- name: get_ended
-- One snapshot over both tables: a task that is moving between them is seen in one of them, never in neither. The id's
-- own time prunes the days before it was made.
select status, result::text, error::text
from {schema}.finished
where id = %(id)s::uuid
and finished_at >= %(since)s::timestamptz
union all
select status, null, null
from {schema}.tasks
where id = %(id)s::uuid;

-- name: get_ended_unpruned
-- For ids that were not made by us, whose time says nothing.
select status, result::text, error::text
from {schema}.finished
where id = %(id)s::uuid;
