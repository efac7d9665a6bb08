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

-- name: identify_database
-- The same for every connection that leads to this database; needs no privilege.
-- Every name is qualified: the doctor runs it in sessions without a search_path.
select extract(epoch from pg_catalog.pg_postmaster_start_time()), oid
from pg_catalog.pg_database
where datname operator(pg_catalog.=) pg_catalog.current_database();

-- Parts of the script that `horsies migrate --sql` prints. The library itself does not run them.

-- name: refuse_other_encoding
do $$
begin
    if current_setting('server_encoding') <> 'UTF8' then
        raise exception 'the encoding of this database is %%, which cannot hold every text; horsies needs UTF8', current_setting('server_encoding');
    end if;
end
$$;

-- name: refuse_installed_schema
do $$
begin
    if exists (
        select
        from pg_class
        join pg_namespace on pg_namespace.oid = pg_class.relnamespace
        where nspname = %(schema)s::text
        and relname = 'schema_versions'
    ) then
        raise exception 'horsies is installed here already; print the script again, from the version that is there';
    end if;
end
$$;

-- name: refuse_other_version
do $$
begin
    if (select max(version) from {schema}.schema_versions) <> %(version)s::integer then
        raise exception 'the schema is not at version %(version)s any more; print the script again';
    end if;
end
$$;

-- name: create_schema_if_missing
-- "if not exists" would require the privilege even when there is nothing to create.
do $$
begin
    if not exists (select from pg_namespace where nspname = %(schema)s::text) then
        create schema {schema};
    end if;
end
$$;

-- name: create_partitions
-- Create partitions ahead, for users who may not create tables later.
do $$
declare
    day timestamp;
begin
    for day in
        select date_trunc('day', now() at time zone 'UTC') + make_interval(days => ahead)
        from generate_series(0, %(ahead)s::integer - 1) as ahead
    loop
        execute format(
            'create table if not exists %%I.%%I partition of %%I.finished for values from (%%L) to (%%L)',
            %(schema)s::text,
            'finished_' || to_char(day, 'YYYYMMDD'),
            %(schema)s::text,
            to_char(day, 'YYYY-MM-DD 00:00+00'),
            to_char(day + interval '1 day', 'YYYY-MM-DD 00:00+00')
        );
    end loop;
end
$$;
