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

-- name: get_settings
-- `transaction_read_only` would describe the doctor's own transaction, which is read-only on purpose.
select
    current_setting('server_version_num')::integer,
    current_setting('server_version'),
    pg_is_in_recovery(),
    current_setting('default_transaction_read_only') = 'on',
    array(select name from unnest(array['fsync', 'full_page_writes']) as name where current_setting(name) = 'off'),
    current_setting('synchronous_commit') = 'off';

-- name: get_connections
-- Limit and number of connections of the server, the database and the user. -1 means no limit. The counts need no privilege.
select 'the server',
    current_setting('max_connections')::integer
    - current_setting('superuser_reserved_connections')::integer
    - coalesce(current_setting('reserved_connections', true)::integer, 0),
    (select sum(numbackends) from pg_stat_database)::integer
union all
select 'the database', datconnlimit, (select numbackends from pg_stat_database where datid = pg_database.oid)
from pg_database
where datname = current_database()
union all
select 'the user', rolconnlimit, (select count(*) from pg_stat_activity where usename = current_user)::integer
from pg_roles
where rolname = current_user;

-- name: get_queue_usage
-- The used share of PostgreSQL's notification queue, and the sessions that are idle in a transaction and may hold it back.
select
    pg_notification_queue_usage(),
    array(
        select pid
        from pg_stat_activity
        where state like 'idle in transaction%%'
        order by xact_start
        limit 5
    );

-- name: get_clock
select extract(epoch from clock_timestamp())::float;

-- name: get_id_skew
-- The first 48 bits of an id are the milliseconds of its sender's clock; `sent_at` is from the database's clock. Only the newest ids are
-- compared.
with newest_tasks as (
    (select id, sent_at from {schema}.tasks order by id desc limit 100)
    union all
    (select id, sent_at from {schema}.finished order by id desc limit 100)
),
id_skews as (
    select ('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0 - extract(epoch from sent_at) as by_s
    from newest_tasks
    where substr(id::text, 15, 1) = '7'
    and sent_at > now() - interval '1 day'
)
select
    count(*)::integer,
    (count(*) filter (where abs(by_s) > %(max_s)s::float))::integer,
    (percentile_disc(0.5) within group (order by by_s) filter (where abs(by_s) > %(max_s)s::float))::float
from id_skews;

-- name: get_heartbeats_ahead
select count(*)::integer, extract(epoch from max(heartbeat_at) - clock_timestamp())::float
from {schema}.workers
where heartbeat_at > clock_timestamp() + %(max_s)s::float * interval '1 s';

-- name: get_long_transactions
-- Only of this database: transactions in other databases do not keep our dead rows.
select
    pid,
    coalesce(nullif(application_name, ''), 'no application name'),
    usename::text,
    coalesce(state, backend_type, 'hidden'),
    extract(epoch from now() - xact_start)::float,
    age(backend_xmin)
from pg_stat_activity
where datname = current_database()
and pid <> pg_backend_pid()
and backend_type is distinct from 'autovacuum worker'
and xact_start < now() - %(max_s)s::float * interval '1 s'
order by xact_start
limit 20;

-- name: are_sessions_hidden
select not pg_has_role('pg_read_all_stats', 'USAGE')
and exists (select from pg_stat_activity where datname = current_database() and usename <> current_user);

-- name: get_prepared_transactions
select gid, owner::text, extract(epoch from now() - prepared)::float, age(transaction)
from pg_prepared_xacts
where database = current_database()
and prepared < now() - %(max_s)s::float * interval '1 s'
order by prepared
limit 20;

-- name: get_replication_slots
select slot_name::text, active, age, behind
from pg_replication_slots
cross join lateral (
    select
        coalesce(greatest(age(xmin), age(catalog_xmin)), 0) as age,
        coalesce(pg_wal_lsn_diff(
            case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, restart_lsn
        ), 0)::bigint as behind
) as lag
where age > %(max_age)s::bigint or behind > %(max_bytes)s::bigint
order by slot_name
limit 20;

-- name: get_unvacuumed_tables
-- Whether the server runs no autovacuum at all, and the tables for which it is disabled.
select
    current_setting('autovacuum') = 'off' or current_setting('track_counts') = 'off',
    array(
        select relname::text
        from pg_class
        join pg_namespace on pg_namespace.oid = relnamespace
        where nspname = %(schema)s::text
        and relkind = 'r'
        and exists (
            select from pg_options_to_table(reloptions)
            where option_name = 'autovacuum_enabled'
            and not option_value::boolean
        )
        order by relname
        limit 20
    );

-- name: get_dead_rows
-- `tasks` is vacuumed after 2 000 dead rows, the others after a fifth of their rows.
select relname::text, n_live_tup, n_dead_tup, extract(epoch from now() - greatest(last_vacuum, last_autovacuum))::float
from pg_stat_all_tables
where schemaname = %(schema)s::text
and relname in ('tasks', 'nodes', 'workflows', 'workers', 'keys')
and n_dead_tup > %(max_dead)s::bigint
and (relname = 'tasks' or n_dead_tup > 0.3 * n_live_tup)
order by relname;

-- name: get_bloat
-- The size of heap and indexes, compared with a generous estimate of what the rows need.
select relname, n_live_tup, taken, needed::bigint
from (
    select
        pg_stat_all_tables.relname::text,
        n_live_tup,
        pg_relation_size(relid) + pg_indexes_size(relid) as taken,
        n_live_tup * (
            1.5 * (28 + coalesce((
                select sum(avg_width)
                from pg_stats
                where pg_stats.schemaname = %(schema)s::text
                and pg_stats.tablename = pg_stat_all_tables.relname
            ), 300))
            + 120 * (select count(*) from pg_index where indrelid = relid)
        ) as needed
    from pg_stat_all_tables
    where pg_stat_all_tables.schemaname = %(schema)s::text
    and relname in ('tasks', 'nodes', 'workflows', 'workers', 'keys')
) as sizes
where taken > %(min_bytes)s::bigint
and taken > 5 * needed
order by relname;
