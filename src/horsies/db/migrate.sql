-- name: is_installed
-- A plain query, not to_regclass: that one asks the session's cache, which still says no after waiting for another's migration.
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

-- name: begin
begin isolation level read committed;

-- name: commit
commit;

-- name: lock_migrations
select pg_advisory_xact_lock(hashtextextended('horsies migrations ' || %(schema)s::text, 0));

-- name: has_schema
select exists (select from pg_namespace where nspname = %(schema)s::text);

-- name: create_schema
create schema {schema};

-- name: create_versions
create table {schema}.schema_versions (
    version integer not null primary key,
    name text not null,
    -- The oldest library version number that still runs on this schema.
    compatible_since integer not null,
    applied_at timestamptz not null default now()
);

-- name: record_version
insert into {schema}.schema_versions (version, name, compatible_since)
values (%(version)s::integer, %(name)s::text, %(compatible_since)s::integer);
