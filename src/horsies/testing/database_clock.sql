-- name: get_time_shifts
-- For each table, the SET clause that moves all of its times back.
select
    format('%%I', relname),
    string_agg(format('%%1$I = %%1$I - %%2$L::interval', attname, make_interval(secs => %(seconds)s::float8)), ', ')
from pg_class
join pg_namespace on pg_namespace.oid = pg_class.relnamespace
join pg_attribute on pg_attribute.attrelid = pg_class.oid
where nspname = %(schema)s::text
and relkind in ('r', 'p')
and not relispartition
and relname not in ('schema_versions', 'schedules', 'schedule_runs')
and atttypid = 'timestamptz'::regtype
and not attisdropped
group by relname
order by relname;
