-- name: register_worker
insert into {schema}.workers (id, hostname, pid, processes, concurrency, queues, library_version, app, task_names, signatures)
values (
    %(id)s::uuid,
    %(hostname)s::text,
    %(pid)s::integer,
    %(processes)s::integer,
    %(concurrency)s::integer,
    %(queues)s::text[],
    %(library_version)s::text,
    %(app)s::text,
    %(task_names)s::text[],
    %(signatures)s::bigint[]
)
-- The statement may be repeated after a lost answer.
on conflict (id) do nothing
returning extract(epoch from clock_timestamp())::float8, leave_requested_at is not null;

-- name: get_task_clashes
-- Other apps whose workers know tasks of this worker, on queues that both serve, with a few of the names.
select other.app, (array_agg(distinct known.name order by known.name))[:10]
from {schema}.workers as one
join {schema}.workers as other on other.app <> one.app and other.queues && one.queues
cross join lateral unnest(one.task_names) as known (name)
where one.id = %(id)s::uuid
and known.name = any(other.task_names)
group by other.app
order by other.app;

-- name: record_heartbeat
-- The children only if they have changed.
update {schema}.workers
set
    heartbeat_at = clock_timestamp(),
    holds_lock = %(holds_lock)s::boolean,
    children = coalesce(%(children)s::json, children)
where id = %(id)s::uuid
returning extract(epoch from heartbeat_at)::float8, leave_requested_at is not null;

-- name: update_known_tasks
update {schema}.workers
set task_names = %(task_names)s::text[], signatures = %(signatures)s::bigint[]
where id = %(id)s::uuid;

-- name: acquire_worker_lock
-- Held until the session ends. If another session holds it exclusively, it is not one of ours; do not wait.
select pg_try_advisory_lock_shared(hashtextextended(%(name)s::text, 0));

-- name: insert_snapshot
insert into {schema}.worker_states (
    worker_id, hostname, pid, processes, concurrency, queues, tasks_running, tasks_claimed,
    memory_usage_mb, children_memory_mb, cpu_percent, children_cpu_percent, recycling_share, worker_started_at
)
select
    id, hostname, pid, processes, concurrency, queues,
    %(tasks_running)s::integer,
    %(tasks_claimed)s::integer,
    %(memory_usage_mb)s::real,
    %(children_memory_mb)s::real,
    %(cpu_percent)s::real,
    %(children_cpu_percent)s::real,
    %(recycling_share)s::real,
    started_at
from {schema}.workers
where id = %(id)s::uuid;

-- name: deregister_worker
-- All results that the worker knew of are saved. Tasks that it still owns were claimed by a transaction whose answer was lost, and have not
-- started: release them, uncounted, before the row of the worker is deleted.
with released_tasks as (
    update {schema}.tasks
    set status = 'PENDING', claimed_by = null, claimed_at = null, lease_until = null, started_at = null
    where claimed_by = %(id)s::uuid
    and status <> 'PENDING'
    returning queue_name, priority, enqueued_at
),
deleted_worker as (
    delete from {schema}.workers
    where id = %(id)s::uuid
)
select pg_notify('{new_channel}', 'any ' || {schema}.wakeup_payload(true, priority, min(enqueued_at), queue_name))
from released_tasks
group by queue_name, priority;
