-- name: get_tables
-- All that holds data, as they are written in a statement. Partitions go with their tables.
select format('%%I', relname)
from pg_class
join pg_namespace on pg_namespace.oid = pg_class.relnamespace
where nspname = %(schema)s::text
and relkind in ('r', 'p')
and not relispartition
and relname <> 'schema_versions';
