-- name: request_leave
-- The first request counts: a worker leaves once.
update {schema}.workers
set leave_requested_at = coalesce(leave_requested_at, now())
where id = any(%(ids)s::uuid[])
returning id::text;

-- name: notify_workers
-- The worker reads its row. Nothing but the row can make it leave.
select pg_notify('{control_channel}', id::text || ' ping')
from {schema}.workers
where id = any(%(ids)s::uuid[]);

-- name: get_children
select children::text
from {schema}.workers
where id = %(id)s::uuid;
