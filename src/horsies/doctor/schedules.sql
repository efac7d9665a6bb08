-- name: get_overdue_schedules
-- The longest overdue first.
select name, extract(epoch from now() - next_slot_at)::float
from {schema}.schedules
where paused_at is null
and next_slot_at < now() - %(overdue_s)s::float8 * interval '1 second'
order by next_slot_at, name
limit 1000;

-- name: get_unowned_schedules
-- Stored without an app, and not declared by any app since. Removed and disabled schedules are never due.
select name
from {schema}.schedules
where app is null
and declared
and enabled
and paused_at is null
order by name
limit 1000;

-- name: get_name_clashes
select name, app
from {schema}.schedules
where name = any(%(names)s::text[])
and declared
and app <> all(%(own)s::text[])
order by name;
