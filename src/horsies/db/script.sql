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

-- name: create_schema
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
