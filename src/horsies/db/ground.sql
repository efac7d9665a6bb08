-- name: which_database
-- The same for every way that leads to it; needs no privilege.
-- Every name has its schema: the doctor asks it in sessions in which no search_path was set.
select extract(epoch from pg_catalog.pg_postmaster_start_time()), oid
from pg_catalog.pg_database
where datname operator(pg_catalog.=) pg_catalog.current_database();
