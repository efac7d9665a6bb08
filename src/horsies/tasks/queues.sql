-- name: pause_queue
insert into {schema}.queues (name, paused_at)
values (%(name)s::text, now())
on conflict (name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at);

-- name: resume_queue
update {schema}.queues
set paused_at = null
where name = %(name)s::text;

-- name: notify_resumed
-- Everyone looks from the start: what waits in this queue was told of long ago.
select pg_notify('{new_channel}', '*');

-- name: get_paused_queues
select name
from {schema}.queues
where paused_at is not null
order by name;
