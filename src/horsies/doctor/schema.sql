-- name: get_missing_privileges
-- The privileges that horsies needs and this user lacks. Partitions are accessed through `finished`, whose privileges apply.
with own_tables as (
    select pg_class.oid, relname, relkind
    from pg_class
    join pg_namespace on pg_namespace.oid = relnamespace
    where nspname = %(schema)s::text
    and relkind in ('r', 'p', 'v')
    and not relispartition
),
needed_privileges as (
    select own_tables.*, privilege
    from own_tables
    cross join unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) as privilege
    where privilege = 'SELECT' or relkind <> 'v' and relname <> 'schema_versions'
)
select 'USAGE', 'the schema'
from pg_namespace
where nspname = %(schema)s::text
and not has_schema_privilege(oid, 'USAGE')
union all
select string_agg(privilege, ', ' order by privilege), relname::text
from needed_privileges
where not has_table_privilege(oid, privilege)
group by relname
union all
select 'EXECUTE', proname::text
from pg_proc
join pg_namespace on pg_namespace.oid = pronamespace
where nspname = %(schema)s::text
and not has_function_privilege(pg_proc.oid, 'EXECUTE')
order by 2;

-- name: get_unpinned_functions
-- A function whose body was parsed when it was created needs no path. Neither do functions in C; none of ours are.
select format('%%I(%%s)', proname, pg_get_function_identity_arguments(pg_proc.oid))
from pg_proc
join pg_namespace on pg_namespace.oid = pronamespace
join pg_language on pg_language.oid = prolang
where nspname = %(schema)s::text
and lanname not in ('c', 'internal')
and prosqlbody is null
and not exists (
    select
    from unnest(proconfig) as setting
    where setting = 'search_path=pg_catalog, pg_temp'
    or setting = 'search_path="pg_catalog", "pg_temp"'
)
order by 1;

-- name: get_foreign_dependencies
-- Views, defaults, constraints, conditions of triggers and parsed functions are bound permanently to operators and functions: to those of
-- PostgreSQL, for which no dependency is recorded, or of the schema itself. Anything else was in the search_path when they were created.
select distinct pg_describe_object(classid, objid, 0), pg_describe_object(refclassid, refobjid, 0)
from pg_depend
left join pg_operator on refclassid = 'pg_operator'::regclass and pg_operator.oid = refobjid
left join pg_proc as used on refclassid = 'pg_proc'::regclass and used.oid = refobjid
join pg_namespace on pg_namespace.oid = coalesce(oprnamespace, used.pronamespace)
left join pg_rewrite on classid = 'pg_rewrite'::regclass and pg_rewrite.oid = objid
left join pg_trigger on classid = 'pg_trigger'::regclass and pg_trigger.oid = objid
left join pg_attrdef on classid = 'pg_attrdef'::regclass and pg_attrdef.oid = objid
left join pg_constraint on classid = 'pg_constraint'::regclass and pg_constraint.oid = objid
left join pg_class on pg_class.oid = coalesce(ev_class, tgrelid, adrelid, conrelid)
left join pg_proc as ours on classid = 'pg_proc'::regclass and ours.oid = objid
where refclassid in ('pg_operator'::regclass, 'pg_proc'::regclass)
and nspname not in ('pg_catalog', %(schema)s::text)
and coalesce(pg_class.relnamespace, ours.pronamespace) = (select oid from pg_namespace where nspname = %(schema)s::text)
-- A trigger added by a user calls a function of that user, on purpose.
and refobjid is distinct from tgfoid
order by 1, 2
limit 20;

-- name: get_schema_creators
-- Except the owner and members of the owner's role.
select case when grantee = 0 then 'PUBLIC' else pg_get_userbyid(grantee)::text end
from pg_namespace
cross join lateral aclexplode(nspacl)
where nspname = %(schema)s::text
and privilege_type = 'CREATE'
and grantee <> nspowner
and (grantee = 0 or not pg_has_role(grantee, nspowner, 'MEMBER'))
order by 1;

-- name: get_open_schemas
select nspname::text
from pg_namespace
cross join lateral aclexplode(nspacl)
where nspname <> %(schema)s::text
and privilege_type = 'CREATE'
and grantee = 0
order by 1;

-- name: get_trigger
-- In replica sessions it does not fire, unless it is set to fire always.
select tgenabled::text, current_setting('session_replication_role') = 'replica'
from pg_trigger
where tgrelid = (
    select pg_class.oid
    from pg_class
    join pg_namespace on pg_namespace.oid = relnamespace
    where nspname = %(schema)s::text
    and relname = 'tasks'
)
and tgname = 'tasks_notify_new';

-- name: get_partitions_ahead
-- How many days from today on have a partition, without a gap, and how many rows the default partition holds, up to a limit.
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
