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
-- Said again after an answer that was lost.
on conflict (id) do nothing
returning extract(epoch from clock_timestamp())::float8;

-- name: get_task_clashes
-- Other apps, and which of this worker's tasks their workers know too, where their queues overlap; a few names of each.
select other.app, (array_agg(distinct known.name order by known.name))[:10]
from {schema}.workers as one
join {schema}.workers as other on other.app <> one.app and other.queues && one.queues
cross join lateral unnest(one.task_names) as known (name)
where one.id = %(id)s::uuid
and known.name = any(other.task_names)
group by other.app
order by other.app;

-- name: beat
update {schema}.workers
set heartbeat_at = clock_timestamp(), holds_lock = %(holds_lock)s::boolean
where id = %(id)s::uuid
returning extract(epoch from heartbeat_at)::float8;

-- name: change_tasks
update {schema}.workers
set task_names = %(task_names)s::text[], signatures = %(signatures)s::bigint[]
where id = %(id)s::uuid;

-- name: take_lock
-- For as long as this session lasts. Whoever holds it alone is a stranger, and is not waited for.
select pg_try_advisory_lock_shared(hashtextextended(%(name)s::text, 0));

-- name: take_snapshot
insert into {schema}.worker_states (
    worker_id, hostname, pid, processes, concurrency, queues, tasks_running, tasks_claimed,
    memory_usage_mb, children_memory_mb, cpu_percent, children_cpu_percent, worker_started_at
)
select
    id, hostname, pid, processes, concurrency, queues,
    %(tasks_running)s::integer,
    %(tasks_claimed)s::integer,
    %(memory_usage_mb)s::real,
    %(children_memory_mb)s::real,
    %(cpu_percent)s::real,
    %(children_cpu_percent)s::real,
    started_at
from {schema}.workers
where id = %(id)s::uuid;

-- name: retire_worker
-- All that it knew of has been written down. What is still its own was claimed by a commit that was answered to nobody and has not begun: it
-- goes back, uncounted, before the row that speaks for it is gone.
with released as (
    update {schema}.tasks
    set status = 'PENDING', claimed_by = null, claimed_at = null, lease_until = null, started_at = null
    where claimed_by = %(id)s::uuid
    and status <> 'PENDING'
    returning queue_name, priority, enqueued_at
),
retired as (
    delete from {schema}.workers
    where id = %(id)s::uuid
)
select pg_notify('{new_channel}', {schema}.news_of(true, priority, min(enqueued_at), queue_name))
from released
group by queue_name, priority;
