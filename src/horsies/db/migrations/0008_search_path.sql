-- compatible_since: 1
-- What runs in the sessions of others (hand-written INSERTs, sends inside a caller's transaction) must not depend on their search_path: an
-- operator in `public` that matches better than PostgreSQL's own would be preferred, and run with the rights of whoever inserts.

-- A body that is parsed now, once: it has no search_path to depend on, and can still be inlined.
create or replace function {schema}.new_id() returns uuid
language sql volatile parallel safe
return (
    select (
        substr(milliseconds, 1, 8) || '-' || substr(milliseconds, 9, 4) || '-7' || substr(gen_random_uuid()::text, 16)
    )::uuid
    from lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') as milliseconds
);

create or replace function {schema}.news_of(ready boolean, priority integer, enqueued_at timestamptz, queue_name text) returns text
language sql volatile
return case
    when ready
    then priority || ' ' || (extract(epoch from enqueued_at) * 1000000)::bigint || ' ' || queue_name
    else 'later ' || (extract(epoch from enqueued_at - clock_timestamp()) * 1000000)::bigint
end;

-- All others set it while they run: PL/pgSQL parses what it executes, and when it executes it.
do $$
declare
    unpinned regprocedure;
begin
    for unpinned in
        select pg_proc.oid
        from pg_proc
        join pg_namespace on pg_namespace.oid = pronamespace
        where nspname = '{schema_text}'
        and prosqlbody is null
        and not exists (select from unnest(proconfig) as setting where setting like 'search_path=%')
    loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', unpinned);
    end loop;
end
$$;
