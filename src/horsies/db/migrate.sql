-- name: is_installed
select to_regclass(format('%%I.%%I', %(schema)s::text, 'schema_versions')) is not null;

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
