-- name: begin_action
-- The statement may be repeated after a lost answer.
insert into {schema}.audit (id, actor, action, target)
values (%(id)s::uuid, %(actor)s::text, %(action)s::text, %(target)s::text)
on conflict (id) do nothing;

-- name: end_action
update {schema}.audit
set count = %(count)s::integer
where id = %(id)s::uuid;

-- name: list_actions
-- The order is that of the column. `id` alone would be the text that is returned, and all rows would be sorted.
select id::text, at, actor, action, target, count
from {schema}.audit
where id < coalesce(%(after)s::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
order by audit.id desc
limit %(limit)s::integer;
