-- name: get_workers
select
    id::text, hostname, pid, queues, library_version,
    extract(epoch from now() - heartbeat_at)::float,
    extract(epoch from now() - started_at)::float
from {schema}.workers
order by started_at
limit 10000;

-- name: get_keeper_lag
-- How long ago the lease of the keeper ran out; below zero, it holds.
select extract(epoch from now() - until)::float
from {schema}.keeper;
