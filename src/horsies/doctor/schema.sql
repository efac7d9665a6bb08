-- name: get_missing_privileges
-- What this user may not do, of what horsies does. Rows of the days are reached through `finished`, whose rights decide.
with own as (
    select pg_class.oid, relname, relkind
    from pg_class
    join pg_namespace on pg_namespace.oid = relnamespace
    where nspname = %(schema)s::text
    and relkind in ('r', 'p', 'v')
    and not relispartition
),
needed as (
    select own.*, privilege
    from own
    cross join unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) as privilege
    where privilege = 'SELECT' or relkind <> 'v' and relname <> 'schema_versions'
)
select 'USAGE', 'the schema'
from pg_namespace
where nspname = %(schema)s::text
and not has_schema_privilege(oid, 'USAGE')
union all
select string_agg(privilege, ', ' order by privilege), relname::text
from needed
where not has_table_privilege(oid, privilege)
group by relname
union all
select 'EXECUTE', proname::text
from pg_proc
join pg_namespace on pg_namespace.oid = pronamespace
where nspname = %(schema)s::text
and not has_function_privilege(pg_proc.oid, 'EXECUTE')
order by 2;

-- name: get_trigger
select tgenabled::text
from pg_trigger
where tgrelid = (
    select pg_class.oid
    from pg_class
    join pg_namespace on pg_namespace.oid = relnamespace
    where nspname = %(schema)s::text
    and relname = 'tasks'
)
and tgname = 'tasks_notify_new';

-- name: get_days
-- How many days from today on have their partition, without a gap; and what the default partition holds, if not too much.
select
    (
        select count(*) filter (where is_there)
        from (
            select bool_and(partition.oid is not null) over (order by day) as is_there
            from generate_series(0, %(ahead)s::integer - 1) as day
            left join (
                select pg_class.oid, relname
                from pg_class
                join pg_namespace on pg_namespace.oid = relnamespace
                where nspname = %(schema)s::text
            ) as partition
                on partition.relname = 'finished_' || to_char((now() at time zone 'UTC')::date + day, 'YYYYMMDD')
        ) as days
    )::integer,
    (select count(*) from (select from {schema}.finished_default limit %(enough)s::integer) as stray)::integer;
