-- name: is_installed
-- A plain query instead of to_regclass, which uses the session's cache: after waiting for another process's migration it still finds
-- nothing.
select exists (
    select
    from pg_class
    join pg_namespace on pg_namespace.oid = pg_class.relnamespace
    where nspname = %(schema)s::text
    and relname = 'schema_versions'
);

-- name: get_version
select version, compatible_since
from {schema}.schema_versions
order by version desc
limit 1;

-- name: begin_migration
begin isolation level read committed;

-- name: commit_migration
commit;

-- name: roll_back_migration
rollback;

-- name: set_lock_timeout
select set_config('lock_timeout', %(lock_timeout)s::text, true);

-- name: get_lock_holders
-- Sessions that hold, or may hold, what a migration waits for: its advisory lock, or a lock on a table of the schema. Longest transaction
-- first.
-- Of other users' sessions only superusers and members of pg_read_all_stats see more than the pid and the user.
with migration_lock as (
    select hashtextextended('horsies migrations ' || %(schema)s::text, 0) as key
),
lock_holders as (
    select distinct pid
    from pg_locks
    cross join migration_lock
    where granted
    and pid <> pg_backend_pid()
    and (
        locktype = 'advisory'
        and (classid::bigint << 32 | objid::bigint) = migration_lock.key
        and objsubid = 1
        or locktype = 'relation'
        and relation in (
            select pg_class.oid
            from pg_class
            join pg_namespace on pg_namespace.oid = relnamespace
            where nspname = %(schema)s::text
        )
    )
    and database = (select oid from pg_database where datname = current_database())
)
select
    pid, coalesce(usename::text, '?'), coalesce(application_name, '?'),
    coalesce(extract(epoch from clock_timestamp() - xact_start)::integer::text, '?')
from lock_holders
join pg_stat_activity using (pid)
order by xact_start nulls last, pid
limit 5;

-- name: lock_migrations
select pg_advisory_xact_lock(hashtextextended('horsies migrations ' || %(schema)s::text, 0));

-- name: has_schema
select exists (select from pg_namespace where nspname = %(schema)s::text);

-- name: create_schema
create schema {schema};

-- name: create_schema_versions
create table {schema}.schema_versions (
    version integer not null primary key,
    name text not null,
    -- The oldest library version number that can still use this schema.
    compatible_since integer not null,
    applied_at timestamptz not null default now()
);

-- name: record_version
insert into {schema}.schema_versions (version, name, compatible_since)
values (%(version)s::integer, %(name)s::text, %(compatible_since)s::integer);
