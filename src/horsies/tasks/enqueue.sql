-- name: enqueue_tasks
-- One statement however many there are: the trigger notifies once for all of them.
insert into {schema}.tasks (
    id, task_name, queue_name, priority, args, timeout_ms, retry_delays_ms, retry_jitter, retry_for
)
select id, task_name, queue_name, priority, args, timeout_ms, delays_ms::integer[], jitter, retry_for::text[]
from unnest(
    %(ids)s::uuid[],
    %(task_names)s::text[],
    %(queue_names)s::text[],
    %(priorities)s::integer[],
    %(args)s::json[],
    %(timeouts_ms)s::integer[],
    -- Lists within a list, so they travel as text.
    %(delays_ms)s::text[],
    %(jitters)s::real[],
    %(retry_for)s::text[]
) as new (id, task_name, queue_name, priority, args, timeout_ms, delays_ms, jitter, retry_for);

-- name: begin_again
begin isolation level read committed;

-- name: enqueue_tasks_again
-- The first attempt's COMMIT may have been answered to nobody: what is already there stays as it is.
insert into {schema}.tasks (
    id, task_name, queue_name, priority, args, timeout_ms, retry_delays_ms, retry_jitter, retry_for
)
select id, task_name, queue_name, priority, args, timeout_ms, delays_ms::integer[], jitter, retry_for::text[]
from unnest(
    %(ids)s::uuid[],
    %(task_names)s::text[],
    %(queue_names)s::text[],
    %(priorities)s::integer[],
    %(args)s::json[],
    %(timeouts_ms)s::integer[],
    -- Lists within a list, so they travel as text.
    %(delays_ms)s::text[],
    %(jitters)s::real[],
    %(retry_for)s::text[]
) as new (id, task_name, queue_name, priority, args, timeout_ms, delays_ms, jitter, retry_for)
on conflict (id) do nothing;

-- name: withdraw_finished
-- A statement of its own, so that its snapshot is younger than the insert: a first attempt that was committed, run and
-- finished has left `tasks`, and must not run again.
delete from {schema}.tasks
where id = any(%(ids)s::uuid[])
and exists (select from {schema}.finished where finished.id = tasks.id);

-- name: commit_again
commit;
