-- name: identify_database
-- The same for every connection that leads to this database; needs no privilege.
-- Every name is qualified: the doctor runs it in sessions without a search_path.
select extract(epoch from pg_catalog.pg_postmaster_start_time()), oid
from pg_catalog.pg_database
where datname operator(pg_catalog.=) pg_catalog.current_database();
