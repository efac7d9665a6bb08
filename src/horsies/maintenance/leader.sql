-- name: get_worker_locks
-- For each worker that has announced its advisory lock: whether any session holds it now.
with held_locks as materialized (
    select (classid::bigint << 32) | objid::bigint as key
    from pg_catalog.pg_locks
    where locktype = 'advisory'
    and objsubid = 1
    and granted
    and database = (select oid from pg_catalog.pg_database where datname = current_database())
)
select id::text, hashtextextended(%(scope)s::text || id::text, 0) in (select key from held_locks)
from {schema}.workers
where holds_lock
-- A lock announced before the server's last restart is gone, and will be announced again.
and heartbeat_at > pg_postmaster_start_time();
