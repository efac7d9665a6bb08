-- name: get_overdue
-- The longest overdue first.
select name, extract(epoch from now() - next_slot_at)::float
from {schema}.schedules
where paused_at is null
and next_slot_at < now() - %(overdue_s)s::float8 * interval '1 second'
order by next_slot_at, name
limit 1000;
