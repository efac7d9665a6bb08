-- name: get_workers
select
    id::text, hostname, pid, queues, library_version,
    extract(epoch from now() - heartbeat_at)::float,
    extract(epoch from now() - started_at)::float,
    app
from {schema}.workers
order by started_at
limit 10000;

-- name: get_keeper_lag
-- How long ago the lease of the keeper ran out; below zero, it holds.
select extract(epoch from now() - until)::float
from {schema}.keeper;

-- name: get_task_clashes
-- Names of tasks that living workers of different apps know, where their queues overlap: elsewhere neither is given a task of the other.
with living as (
    select workers.app, workers.queues, known.name
    from {schema}.workers
    cross join lateral unnest(workers.task_names) as known (name)
    where workers.app is not null
    and workers.heartbeat_at > now() - %(stale_after_s)s::float8 * interval '1 second'
)
select one.name, array_agg(distinct one.app order by one.app)
from living as one
join living as other on other.name = one.name and other.app <> one.app and other.queues && one.queues
group by one.name
order by one.name
limit 100;
