-- name: which_database
-- The same for every way that leads to it; needs no privilege.
select pg_postmaster_start_time(), oid
from pg_database
where datname = current_database();
