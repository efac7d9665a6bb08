-- name: register_worker
insert into {schema}.workers (id, hostname, pid, processes, queues, library_version)
values (
    %(id)s::uuid,
    %(hostname)s::text,
    %(pid)s::integer,
    %(processes)s::integer,
    %(queues)s::text[],
    %(library_version)s::text
)
-- Said again after an answer that was lost.
on conflict (id) do nothing;

-- name: beat
update {schema}.workers
set heartbeat_at = now()
where id = %(id)s::uuid
returning id;

-- name: retire_worker
delete from {schema}.workers
where id = %(id)s::uuid;
