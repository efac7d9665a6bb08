-- compatible_since: 1
-- Child processes that died with this task in their hands before it began. Such a release costs no attempt until there were too many.
alter table {schema}.tasks add column child_deaths integer not null default 0;

-- How many bytes of text the task of a node is handed beside its arguments.
create function {schema}.input_bytes(node uuid) returns bigint language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select
            coalesce(octet_length(nodes.item::text), 0)
            + coalesce((
                select sum(coalesce(octet_length(input.result::text), 0) + coalesce(octet_length(input.error::text), 0))
                from {schema}.nodes as input
                where input.id = any(nodes.inputs)
            ), 0)
        from {schema}.nodes
        where nodes.id = node
    );
end
$$;

-- The same as before, unless it is larger than this: then nothing. What is stored is looked at first, without reading it.
create function {schema}.node_inputs(node uuid, max_bytes integer) returns text language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    stored bigint;
    made text;
begin
    if max_bytes is not null then
        select
            coalesce(pg_column_size(nodes.item), 0)
            + coalesce((
                select sum(coalesce(pg_column_size(input.result), 0) + coalesce(pg_column_size(input.error), 0))
                from {schema}.nodes as input
                where input.id = any(nodes.inputs)
            ), 0)
        into stored
        from {schema}.nodes
        where nodes.id = node;
        if stored > max_bytes then
            return null;
        end if;
    end if;
    made := {schema}.node_inputs(node);
    return case when max_bytes is null or octet_length(made) <= max_bytes then made end;
end
$$;
