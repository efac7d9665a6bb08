-- name: list_workers
with in_flight as (
    select
        claimed_by,
        count(*) filter (where status = 'CLAIMED') as claimed,
        count(*) filter (where status = 'RUNNING') as running
    from {schema}.tasks
    where status <> 'PENDING'
    group by claimed_by
)
select
    workers.id::text, workers.hostname, workers.pid, workers.processes, workers.concurrency, workers.queues,
    workers.library_version, workers.started_at,
    extract(epoch from greatest(clock_timestamp() - workers.heartbeat_at, interval '0'))::float8,
    coalesce(in_flight.claimed, 0), coalesce(in_flight.running, 0),
    newest_state.memory_usage_mb::float8, newest_state.children_memory_mb::float8, workers.app
from {schema}.workers
left join in_flight on in_flight.claimed_by = workers.id
left join lateral (
    select memory_usage_mb, children_memory_mb
    from {schema}.worker_states
    where worker_states.worker_id = workers.id
    order by snapshot_at desc
    limit 1
) as newest_state on true
order by workers.started_at, workers.id;

-- name: find_workers
select id::text
from {schema}.workers
where id between %(lowest)s::uuid and %(highest)s::uuid
union
select worker_id::text
from {schema}.worker_states
where worker_id between %(lowest)s::uuid and %(highest)s::uuid
order by 1;

-- name: get_heartbeats
select id::text, heartbeat_at
from {schema}.workers
where id = any(%(ids)s::uuid[]);

-- name: request_heartbeat
select pg_notify('{control_channel}', id::text || ' ping')
from unnest(%(ids)s::uuid[]) as id;
