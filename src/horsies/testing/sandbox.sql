-- name: get_tables
-- All tables with data, quoted for use in a statement. Partitions are included in their parents.
select format('%%I', relname)
from pg_class
join pg_namespace on pg_namespace.oid = pg_class.relnamespace
where nspname = %(schema)s::text
and relkind in ('r', 'p')
and not relispartition
and relname <> 'schema_versions';
