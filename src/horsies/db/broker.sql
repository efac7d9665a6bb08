-- name: ping
select 1;

-- name: notify
select pg_notify(%(channel)s::text, %(payload)s::text), pg_backend_pid();

-- name: which_database
-- The same for every way that leads to it; needs no privilege.
select pg_postmaster_start_time(), oid
from pg_database
where datname = current_database();
