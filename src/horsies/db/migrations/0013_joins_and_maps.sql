-- compatible_since: 1
alter table {schema}.nodes
    -- Nodes of the same run, by their index, that must have ended before this one runs, whatever its join says; and how many of them have not reported
    -- their end. `waits_for` has only those that count in the join. A library that does not know of this runs a node as soon as its join is met.
    add column awaits integer[],
    add column awaits_left integer not null default 0,
    -- The other direction: the nodes that await this one.
    add column awaited_by uuid[],
    -- Of a map: when it counts as failed, if not by any failure. The array that it goes through, if no other node makes it, is its `item`.
    add column max_failures integer,
    add column min_item_success integer,
    -- Maps of whose items the task is handed all results, after its `inputs`.
    add column results_of uuid[];

-- The results of all items of a map, in their order, as the JSON array of a list of TaskResults. NULL: it never had items.
create function {schema}.item_results(map uuid) returns text language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select '[' || coalesce((
            select string_agg(
                case
                    when item.status = 'COMPLETED' then '{"ok":' || coalesce(item.result::text, 'null') || '}'
                    when item.status = 'FAILED' and item.error is not null then '{"err":' || item.error::text || '}'
                    else '{"err":' || json_build_object(
                        'error_code', case when item.status = 'SKIPPED' then 'UPSTREAM_SKIPPED' else 'RESULT_NOT_READY' end,
                        'message', case
                            when item.status = 'SKIPPED' then 'item ' || item.index || ' was skipped: the map was stopped'
                            else 'item ' || item.index || ' is ' || item.status || ': it has no result yet'
                        end,
                        'data', null
                    )::text || '}'
                end,
                ',' order by item.index
            )
            from {schema}.nodes as item
            where item.workflow_id = workflows.id
        ), '') || ']'
        from {schema}.workflows
        where workflows.id = (select nodes.child_id from {schema}.nodes where nodes.id = map)
    );
end
$$;

-- As before, and with the results of the items of maps. These stand after the other inputs, each as the value of a node that has succeeded: a library that
-- does not know of them puts them into the arguments as well.
create or replace function {schema}.node_inputs(node uuid) returns text language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select json_build_object(
            'refs', nodes.refs,
            -- As text: what is only passed on is never decoded on its way.
            'item', nodes.item::text,
            'inputs', case when nodes.inputs <> '{}' or nodes.results_of is not null then (
                select json_agg(
                    json_build_object(
                        'node_id', input.node_id,
                        'status', input.status,
                        'made_by', input.made_by,
                        'makes_list', input.makes_list,
                        'result', input.result,
                        'error', input.error
                    )
                    order by input.place
                )
                from (
                    select
                        wanted.place, other.node_id, other.status, other.made_by, other.makes_list,
                        other.result::text as result, other.error::text as error
                    from unnest(nodes.inputs) with ordinality as wanted (id, place)
                    cross join lateral (
                        select other.node_id, other.status, other.made_by, other.makes_list, other.result, other.error
                        from {schema}.nodes as other
                        where other.id = wanted.id
                        offset 0
                    ) as other
                    union all
                    select
                        cardinality(nodes.inputs) + wanted.place, map.node_id,
                        case when map.results is null then map.status else 'COMPLETED' end,
                        null, false, map.results, case when map.results is null then map.error::text end
                    from unnest(nodes.results_of) with ordinality as wanted (id, place)
                    cross join lateral (
                        select other.node_id, other.status, other.error, {schema}.item_results(other.id) as results
                        from {schema}.nodes as other
                        where other.id = wanted.id
                        offset 0
                    ) as map
                ) as input
            ) end,
            'meta', case when nodes.wants_meta then (
                select json_build_object(
                    -- An item belongs to the run of its map's node, for all that its task knows.
                    'workflow_id',
                    case
                        when workflows.is_map then workflows.ancestors[cardinality(workflows.ancestors)]
                        else workflows.id
                    end,
                    'root_id', workflows.root_id,
                    'workflow_name', workflows.name,
                    'node_id', nodes.node_id
                )
                from {schema}.workflows
                where workflows.id = nodes.workflow_id
            ) end
        )
        from {schema}.nodes
        where nodes.id = node
    );
end
$$;

create or replace function {schema}.input_bytes(node uuid) returns bigint language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select
            coalesce(octet_length(nodes.item::text), 0)
            + coalesce((
                select sum(coalesce(octet_length(input.result::text), 0) + coalesce(octet_length(input.error::text), 0))
                from {schema}.nodes as input
                where input.id = any(nodes.inputs)
            ), 0)
            + coalesce((
                select sum(8 + coalesce(octet_length(item.result::text), 0) + coalesce(octet_length(item.error::text), 0))
                from unnest(nodes.results_of) as wanted (id)
                cross join lateral (select map.child_id from {schema}.nodes as map where map.id = wanted.id offset 0) as map
                cross join lateral (
                    select item.result, item.error from {schema}.nodes as item where item.workflow_id = map.child_id offset 0
                ) as item
            ), 0)
        from {schema}.nodes
        where nodes.id = node
    );
end
$$;

create or replace function {schema}.node_inputs(node uuid, max_bytes integer) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
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
            + coalesce((
                select sum(8 + coalesce(pg_column_size(item.result), 0) + coalesce(pg_column_size(item.error), 0))
                from unnest(nodes.results_of) as wanted (id)
                cross join lateral (select map.child_id from {schema}.nodes as map where map.id = wanted.id offset 0) as map
                cross join lateral (
                    select item.result, item.error from {schema}.nodes as item where item.workflow_id = map.child_id offset 0
                ) as item
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
