-- name: get_locks
-- Of each worker that has announced its lock: whether anybody holds it now.
with held as materialized (
    select (classid::bigint << 32) | objid::bigint as key
    from pg_catalog.pg_locks
    where locktype = 'advisory'
    and objsubid = 1
    and granted
    and database = (select oid from pg_catalog.pg_database where datname = current_database())
)
select id::text, hashtextextended(%(scope)s::text || id::text, 0) in (select key from held)
from {schema}.workers
where holds_lock
-- What was announced to an earlier run of the server went down with it, and is announced anew.
and heartbeat_at > pg_postmaster_start_time();
