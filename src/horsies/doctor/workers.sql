-- name: get_workers
select
    id::text, hostname, pid, queues, library_version,
    extract(epoch from now() - heartbeat_at)::float,
    extract(epoch from now() - started_at)::float,
    app
from {schema}.workers
order by started_at
limit 10000;

-- name: get_maintenance_lag
-- How long ago the lease of the maintenance leader ran out; negative while it holds.
select extract(epoch from now() - expires_at)::float
from {schema}.maintenance_lease;

-- name: get_task_clashes
-- Task names that living workers of different apps know, where their queues overlap: on other queues neither app gets a task of the other.
with known_tasks as (
    select workers.app, workers.queues, task.name
    from {schema}.workers
    cross join lateral unnest(workers.task_names) as task (name)
    where workers.app is not null
    and workers.heartbeat_at > now() - %(stale_after_s)s::float8 * interval '1 second'
)
select one.name, array_agg(distinct one.app order by one.app)
from known_tasks as one
join known_tasks as other on other.name = one.name and other.app <> one.app and other.queues && one.queues
group by one.name
order by one.name
limit 100;
