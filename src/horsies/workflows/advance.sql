-- name: lock_roots
-- A process that changes anything in a tree of runs locks the row of the root first, in order of ids. A statement of its own: the snapshot
-- of the next one is then taken after the lock. The statements of a step are long and fast: planning them each time would take three times
-- as long as executing them, so they use generic plans.
--
-- A generic plan may be made while the tables are empty, and must still work for a step that touches 50 000 nodes. Behind a pooler each
-- statement is planned alone, without statistics. So the statements of a step leave the planner no choice that is quadratic or reads whole
-- tables (`tests/workflows/test_growth.py`):
-- - A table is joined with the rows of a CTE by `id = any(array[row.id])`, which is one probe of the primary key per row. A plain equality
--   may be planned as a merge or hash join, which reads the whole table, and `id = any(array(select ...))` next to it as a nested loop,
--   which reads the whole CTE for each row.
-- - Further conditions on such a table are inside a `case` together with a column of the CTE. Alone they would be estimated to leave few
--   rows of the table, so few that reading the CTE for each of them seems cheap.
-- - Where nothing is updated, a lateral subquery with `offset 0` does the same. The same holds for ancestors: whether one of them is paused
--   is read from their rows by id, not from the index of live runs.
select set_config('plan_cache_mode', 'force_generic_plan', true)
from {schema}.workflows
where id = any(%(roots)s::uuid[])
order by id
for update;

-- fragment: is_below_paused
-- Whether an ancestor of `run` is paused.
exists (
    select from (
        select ancestor.status
        from {schema}.workflows as ancestor
        where ancestor.id = any(run.ancestors)
        offset 0
    ) as ancestor
    where ancestor.status = 'PAUSED'
)

-- fragment: can_start_run
-- Whether the run of the sub-workflow or map in `nodes` can start: otherwise rows changed by hand would require another step forever.
-- A scalar subquery, which the planner cannot turn into a hash of all runs.
coalesce(
    (select coalesce(child_run.parent_node = nodes.id, false) from {schema}.workflows as child_run where child_run.id = nodes.child_id),
    nodes.kind = 'map' and (
        nodes.source is null and nodes.item is not null
        or exists (select from {schema}.nodes as source where source.id = nodes.source)
    )
)

-- name: advance_nodes
-- One step. Resolve the nodes of tasks that ended in this transaction, and propagate the end of these and of all other nodes that have
-- ended to their dependents and their run. A dependent that is decided becomes READY or SKIPPED; the next step propagates a skip.
with ended_tasks as materialized (
    select task.id, task.node_id, task.status, task.result, task.error
    from unnest(%(task_ids)s::uuid[]) as wanted (id)
    cross join lateral (
        select id, node_id, status, result, error
        from {schema}.finished
        where finished.id = wanted.id
        and finished.finished_at >= now()
        and finished.finished_at < now() + interval '1 day'
        and finished.node_id is not null
        offset 0
    ) as task
),
nodes_of_ended_tasks as (
    update {schema}.nodes
    set
        status = case when ended_tasks.status = 'COMPLETED' then 'COMPLETED' else 'FAILED' end,
        result = ended_tasks.result,
        error = ended_tasks.error,
        finished_at = statement_timestamp(),
        propagated = true
    from ended_tasks
    where nodes.id = any(array[ended_tasks.node_id])
    and case when nodes.task_id = ended_tasks.id then nodes.status = 'ENQUEUED' end
    returning nodes.workflow_id, nodes.index, nodes.status, nodes.dependents, nodes.awaited_by
),
unpropagated_nodes as (
    update {schema}.nodes
    set propagated = true, finished_at = coalesce(finished_at, statement_timestamp())
    where root_id = any(%(roots)s::uuid[])
    and not propagated
    and status in ('COMPLETED', 'FAILED', 'SKIPPED')
    returning workflow_id, index, status, dependents, awaited_by
),
resolved_nodes as materialized (
    select * from nodes_of_ended_tasks
    union all
    select * from unpropagated_nodes
),
tally as materialized (
    select edge.id, sum(edge.resolved) as resolved, sum(edge.succeeded) as succeeded, sum(edge.awaited) as awaited
    from (
        select dependent.id, 1 as resolved, case when resolved_nodes.status = 'COMPLETED' then 1 else 0 end as succeeded, 0 as awaited
        from resolved_nodes
        cross join unnest(resolved_nodes.dependents) as dependent (id)
        union all
        select dependent.id, 0, 0, 1
        from resolved_nodes
        cross join unnest(resolved_nodes.awaited_by) as dependent (id)
    ) as edge
    group by edge.id
),
updated_nodes as (
    update {schema}.nodes
    set
        resolved = nodes.resolved + tally.resolved,
        succeeded = nodes.succeeded + tally.succeeded,
        awaits_left = nodes.awaits_left - tally.awaited,
        status = case
            when nodes.succeeded + tally.succeeded >= needed then case when nodes.awaits_left > tally.awaited then 'PENDING' else 'READY' end
            -- No join needs more nodes than it waits for. Counting these reads a long `waits_for` from TOAST, so it is delayed until it can
            -- make a difference: once for a join of all, not once for each dependency.
            when nodes.resolved + tally.resolved = nodes.succeeded + tally.succeeded then 'PENDING'
            when allow_failed_deps and nodes.resolved + tally.resolved < needed then 'PENDING'
            when allow_failed_deps and nodes.awaits_left > tally.awaited then 'PENDING'
            when allow_failed_deps and nodes.resolved + tally.resolved >= cardinality(waits_for) then 'READY'
            when allow_failed_deps then 'PENDING'
            when nodes.succeeded + tally.succeeded + cardinality(waits_for) - nodes.resolved - tally.resolved < needed then 'SKIPPED'
            else 'PENDING'
        end
    from tally
    where nodes.id = any(array[tally.id])
    and case when tally.resolved + tally.awaited > 0 then nodes.status = 'PENDING' end
),
run_counts as materialized (
    select
        run.*,
        -- The failure of an optional node does not pause the run.
        run.failed <> '{}' and exists (
            select unnest(run.failed)
            except
            select unnest(workflows.optional)
            from {schema}.workflows
            where workflows.id = run.workflow_id
        ) as has_failure
    from (
        select
            workflow_id,
            count(*) as count,
            count(*) filter (where status <> 'SKIPPED') as ran,
            coalesce(array_agg(index) filter (where status = 'FAILED'), '{}') as failed
        from resolved_nodes
        group by workflow_id
    ) as run
)
update {schema}.workflows
set
    unresolved = workflows.unresolved - run_counts.count,
    in_flight = case when max_parallel is null then 0 else workflows.in_flight - run_counts.ran end,
    status = case
        when workflows.status = 'RUNNING' and on_error = 'pause' and run_counts.has_failure then 'PAUSED'
        else workflows.status
    end
from run_counts
where workflows.id = any(array[run_counts.workflow_id])
-- Whether this paused the run: the next step withdraws its tasks from their queues. Waiters of the run are notified.
returning
    workflows.root_id::text,
    workflows.status = 'PAUSED' and run_counts.has_failure,
    case when workflows.status = 'PAUSED' then pg_notify('{done_channel}', workflows.id::text)::text end;

-- name: withdraw_tasks
-- Tasks of paused runs that have not started leave their queue, and their nodes become READY again. A failed attempt counts as started.
with held_tasks as materialized (
    select node.task_id
    from {schema}.workflows as run
    cross join lateral (
        select nodes.task_id
        from {schema}.nodes
        where nodes.workflow_id = run.id
        and nodes.status = 'ENQUEUED'
        offset 0
    ) as node
    where run.root_id = any(%(roots)s::uuid[])
    and run.status in ('RUNNING', 'PAUSED')
    and (
        run.status = 'PAUSED'
        or {is_below_paused}
    )
),
deleted_tasks as (
    delete from {schema}.tasks
    where id = any(array(select held_tasks.task_id from held_tasks))
    and status = 'PENDING'
    and attempts = 0
    returning id, node_id
),
ready_nodes as (
    update {schema}.nodes
    set status = 'READY', task_id = null
    where id = any(array(select deleted_tasks.node_id from deleted_tasks))
    returning workflow_id
)
update {schema}.workflows
set in_flight = in_flight - withdrawn_tasks.count
from (select workflow_id, count(*) as count from ready_nodes group by workflow_id) as withdrawn_tasks
where workflows.id = any(array[withdrawn_tasks.workflow_id])
and case when withdrawn_tasks.count > 0 then max_parallel is not null end;

-- name: expand_maps
-- Create a run for each map that is ready, with a node for each item. If the source is not a list, the map fails.
with ready_maps as materialized (
    select nodes.*, source.result as list, source.status = 'COMPLETED' and json_typeof(source.result) = 'array' as is_list
    from {schema}.nodes
    cross join lateral (
        select source.status, source.result
        from {schema}.nodes as source
        where source.id = nodes.source
        union all
        -- The list was given when the workflow was built.
        select 'COMPLETED', nodes.item
        where nodes.source is null
        and nodes.item is not null
        offset 0
    ) as source
    where nodes.root_id = any(%(roots)s::uuid[])
    and nodes.status = 'READY'
    and nodes.kind = 'map'
    and not exists (select from {schema}.workflows where workflows.id = nodes.child_id)
),
failed_maps as (
    update {schema}.nodes
    set status = 'FAILED', error = %(no_list)s::json, finished_at = statement_timestamp()
    where id = any(array(select ready_maps.id from ready_maps where ready_maps.is_list is not true))
),
new_runs as (
    insert into {schema}.workflows (
        id, root_id, ancestors, parent_node, name, is_map, max_parallel, unresolved
    )
    select
        ready_maps.child_id, ready_maps.root_id, parent_run.ancestors || parent_run.id, ready_maps.id, parent_run.name, true, ready_maps.max_parallel,
        json_array_length(ready_maps.list)
    from ready_maps
    cross join lateral (
        select workflows.id, workflows.ancestors, workflows.name
        from {schema}.workflows
        where workflows.id = ready_maps.workflow_id
        offset 0
    ) as parent_run
    where ready_maps.is_list
)
insert into {schema}.nodes (
    id, root_id, workflow_id, index, node_id, kind, waits_for, dependents, needed, allow_failed_deps,
    {sent_columns}, good_until, args, refs, inputs, results_of, takes_inputs, wants_meta, item, made_by
)
select
    gen_random_uuid(), root_id, child_id, item.number - 1, node_id || '[' || item.number - 1 || ']', 'task', '{}', '{}', 0, false,
    {sent_columns}, good_until, args, refs, inputs, results_of, takes_inputs, wants_meta, item.value, task_name
from ready_maps
cross join lateral json_array_elements(case when ready_maps.is_list then ready_maps.list else '[]' end) with ordinality as item (value, number);

-- name: start_runs
-- Start the runs of sub-workflows and maps that are ready, and mark their nodes without dependencies as READY.
with ready_nodes as materialized (
    select nodes.id, nodes.child_id
    from {schema}.nodes
    cross join lateral (
        select workflows.ancestors
        from {schema}.workflows
        where workflows.id = nodes.workflow_id
        and workflows.status = 'RUNNING'
        offset 0
    ) as run
    where nodes.root_id = any(%(roots)s::uuid[])
    and nodes.status = 'READY'
    and nodes.kind <> 'task'
    and not {is_below_paused}
),
started_runs as (
    update {schema}.workflows
    set
        status = 'RUNNING',
        error = null,
        started_at = statement_timestamp(),
        finished_at = null,
        deadline = statement_timestamp() + time_limit_ms * interval '1 ms'
    where id = any(array(select ready_nodes.child_id from ready_nodes))
    returning id, parent_node
),
running_nodes as (
    update {schema}.nodes
    set status = 'RUNNING'
    where id = any(array(select started_runs.parent_node from started_runs))
)
update {schema}.nodes
set status = 'READY'
where workflow_id = any(array(select started_runs.id from started_runs))
and status = 'PENDING'
and awaits_left <= 0
and (succeeded >= needed or allow_failed_deps and resolved >= cardinality(waits_for));

-- name: enqueue_ready_nodes
-- Enqueue the tasks of READY nodes, unless their run or an ancestor is paused, or the run has reached `max_parallel`.
with ready_nodes as materialized (
    select node.id
    from {schema}.workflows as run
    cross join lateral (
        select nodes.id
        from {schema}.nodes
        where nodes.workflow_id = run.id
        and nodes.status = 'READY'
        and nodes.kind = 'task'
        order by nodes.index
        limit case when run.max_parallel is not null then greatest(0, run.max_parallel - run.in_flight) end
    ) as node
    where run.root_id = any(%(roots)s::uuid[])
    and run.status = 'RUNNING'
    and not {is_below_paused}
),
enqueued_nodes as (
    update {schema}.nodes
    set status = 'ENQUEUED', task_id = {schema}.new_id()
    where id = any(array(select ready_nodes.id from ready_nodes))
    and status = 'READY'
    returning *
),
updated_runs as (
    update {schema}.workflows
    set in_flight = workflows.in_flight + new_tasks.count
    from (select workflow_id, count(*) as count from enqueued_nodes group by workflow_id) as new_tasks
    where workflows.id = any(array[new_tasks.workflow_id])
    and case when new_tasks.count > 0 then workflows.max_parallel is not null end
)
insert into {schema}.tasks ({sent_columns}, id, args, good_until, root_id, node_id, takes_inputs)
select {sent_columns}, task_id, args, good_until, root_id, id, takes_inputs
from enqueued_nodes
order by workflow_id, index;

-- name: finish_runs
-- End the runs in which all nodes were propagated, and with each the node of the parent run that it belongs to; the next step propagates
-- that node. A paused run does not end in failure: it may be resumed to retry what failed. Returns for each tree whether another step is
-- needed, in one row for runs that ended here and in another for the rest.
with complete_runs as materialized (
    select
        workflows.id,
        workflows.status,
        workflows.is_map,
        details.optional,
        details.bytes,
        items.count as items,
        items.succeeded,
        bounds.min_item_success,
        details.bytes is null and case
            when bounds.max_failures is not null or bounds.min_item_success is not null
            then items.count - items.succeeded <= coalesce(bounds.max_failures, items.count)
            and items.succeeded >= coalesce(bounds.min_item_success, 0)
            when workflows.success_cases is null then not exists (
                select from {schema}.nodes
                where nodes.workflow_id = workflows.id
                and nodes.status = 'FAILED'
                and details.optional[width_bucket(nodes.index, details.optional)] is distinct from nodes.index
            )
            else exists (
                select from json_array_elements(workflows.success_cases) as cases (required)
                where not exists (
                    select from json_array_elements_text(cases.required) as wanted (index)
                    cross join lateral (
                        select nodes.status
                        from {schema}.nodes
                        where nodes.workflow_id = workflows.id
                        and nodes.index = wanted.index::integer
                        offset 0
                    ) as node
                    where node.status <> 'COMPLETED'
                )
            )
        end as is_successful
    from {schema}.workflows
    cross join lateral (
        select
            -- Sorted, and read from the row once: each failed node is found in it by binary search.
            array(select unnest(workflows.optional) order by 1) as optional,
            -- The list of a map's results is one value. If it exceeded PostgreSQL's limit, this statement would fail each time, and with it
            -- the whole batch of the worker. The size of an uncompressed value is known without reading it. NULL: not too large.
            case when workflows.is_map then (
                select case when sum(size.bytes) > %(max_bytes)s::bigint then sum(size.bytes) end
                from {schema}.nodes as item
                cross join lateral (
                    select 2 + case
                        when pg_column_compression(item.result) is null then pg_column_size(item.result)
                        else octet_length(item.result::text)
                    end as bytes
                ) as size
                where item.workflow_id = workflows.id
            ) end as bytes
        offset 0
    ) as details
    left join lateral (
        select map.max_failures, map.min_item_success
        from {schema}.nodes as map
        where workflows.is_map
        and map.id = workflows.parent_node
        offset 0
    ) as bounds on true
    -- Counted only if the map has such a bound.
    cross join lateral (
        select count(*) as count, count(*) filter (where item.status = 'COMPLETED') as succeeded
        from {schema}.nodes as item
        where (bounds.max_failures is not null or bounds.min_item_success is not null)
        and item.workflow_id = workflows.id
    ) as items
    where workflows.root_id = any(%(roots)s::uuid[])
    and workflows.status in ('RUNNING', 'PAUSED')
    and workflows.unresolved = 0
),
ended_runs as (
    update {schema}.workflows
    set
        status = case when complete_runs.is_successful then 'COMPLETED' else 'FAILED' end,
        finished_at = statement_timestamp(),
        error = case when not complete_runs.is_successful then coalesce(
            (
                select nodes.error
                from {schema}.nodes
                where nodes.workflow_id = complete_runs.id
                and nodes.status = 'FAILED'
                order by
                    complete_runs.optional[width_bucket(nodes.index, complete_runs.optional)] is not distinct from nodes.index,
                    nodes.finished_at,
                    nodes.index
                limit 1
            ),
            replace(%(too_large)s::text, '<bytes>', to_char(complete_runs.bytes, 'FM999,999,999,999,999'))::json,
            case when complete_runs.is_map then replace(
                replace(replace(%(too_few)s::text, '<succeeded>', complete_runs.succeeded::text), '<items>', complete_runs.items::text),
                '<least>', complete_runs.min_item_success::text
            )::json end,
            %(no_success)s::json
        ) end
    from complete_runs
    where workflows.id = any(array[complete_runs.id])
    and (complete_runs.is_successful or complete_runs.status = 'RUNNING')
    returning workflows.id, workflows.root_id, workflows.parent_node, workflows.status, workflows.error, workflows.is_map, workflows.output
),
parent_nodes as (
    update {schema}.nodes
    set
        status = ended_runs.status,
        error = case
            when ended_runs.status = 'COMPLETED' or ended_runs.is_map then ended_runs.error
            else coalesce(
                (
                    -- Prepended to the message as text. The functions that parse JSON reject a string with a null character in any part of
                    -- the error, and would fail the step. An error that was not written by the library may look different, and stays as it
                    -- is.
                    select (prefix.text || substr(summary.text, 2, length(summary.text) - 2) || substr(ended_runs.error::text, length(prefix.text) + 1))::json
                    from (select substring(ended_runs.error::text from '^\{"error_code":"[A-Z0-9_]*","message":"') as text) as prefix
                    cross join lateral (
                        select to_json(
                            case
                                when count(*) filter (where inner_node.status = 'FAILED') = 0 then ''
                                else case when count(*) filter (where inner_node.status = 'FAILED') = 1 then 'node ' else 'nodes ' end
                                || array_to_string(
                                    (array_agg('''' || inner_node.node_id || '''' order by inner_node.finished_at, inner_node.index)
                                        filter (where inner_node.status = 'FAILED'))[1:3],
                                    ', '
                                )
                                || case
                                    when count(*) filter (where inner_node.status = 'FAILED') <= 3 then ''
                                    else ' and ' || count(*) filter (where inner_node.status = 'FAILED') - 3 || ' more'
                                end
                                || ' failed, '
                            end
                            || count(*) filter (where inner_node.status = 'COMPLETED') || ' of ' || count(*) || ' nodes succeeded: '
                        )::text as text
                        from {schema}.nodes as inner_node
                        where inner_node.workflow_id = ended_runs.id
                    ) as summary
                    where prefix.text is not null
                ),
                ended_runs.error
            )
        end,
        finished_at = statement_timestamp(),
        result = case when ended_runs.status = 'COMPLETED' then case
            when ended_runs.is_map then (
                select coalesce(json_agg(item.result order by item.index) filter (where item.status = 'COMPLETED'), '[]')
                from {schema}.nodes as item
                where item.workflow_id = ended_runs.id
            )
            else coalesce(
                (
                    select output.result
                    from {schema}.nodes as output
                    where output.workflow_id = ended_runs.id
                    and output.index = ended_runs.output
                ),
                'null'
            )
        end end
    from ended_runs
    where nodes.id = any(array[ended_runs.parent_node])
    and case when ended_runs.id is not null then nodes.status = 'RUNNING' end
)
select
    ended_runs.root_id::text,
    bool_or(ended_runs.parent_node is not null),
    -- In the transaction, unlike the notifications of tasks: there are few, and their ids are not known before.
    count(pg_notify('{done_channel}', ended_runs.id::text))
from ended_runs
group by ended_runs.root_id
union all
select
    root.id::text,
    exists (
        select from {schema}.nodes
        where nodes.root_id = root.id
        and not nodes.propagated
        and nodes.status in ('COMPLETED', 'FAILED', 'SKIPPED')
    )
    or exists (
        select from {schema}.nodes
        cross join lateral (
            select workflows.ancestors
            from {schema}.workflows
            where workflows.id = nodes.workflow_id
            and workflows.status = 'RUNNING'
            offset 0
        ) as run
        where nodes.root_id = root.id
        and nodes.status = 'READY'
        and nodes.kind <> 'task'
        and {can_start_run}
        and not {is_below_paused}
    ),
    0
from unnest(%(roots)s::uuid[]) as root (id);

-- name: begin_step
begin isolation level read committed;

-- name: commit_step
commit;

-- name: get_unfinished_trees
-- Trees with something left to do that depends on no task. A row that is true has instead the last run that was examined, if there are more.
with examined_runs as materialized (
    -- Steps leave no work of the third kind below; rows changed by hand may. Therefore some live runs are examined each time, so that the cost
    -- does not grow with their number.
    select id, root_id, status, unresolved, max_parallel, in_flight, ancestors
    from {schema}.workflows
    where status in ('RUNNING', 'PAUSED')
    and (root_id, id) > (%(after_root)s::uuid, %(after_run)s::uuid)
    order by root_id, id
    limit %(runs)s::integer
),
unfinished as (
    select root_id
    from {schema}.nodes
    where not propagated
    and status in ('COMPLETED', 'FAILED', 'SKIPPED')
    union all
    select nodes.root_id
    from {schema}.nodes
    join {schema}.workflows as run on run.id = nodes.workflow_id
    where nodes.status = 'READY'
    and nodes.kind <> 'task'
    and run.status = 'RUNNING'
    and {can_start_run}
    and not {is_below_paused}
    union all
    select root_id
    from examined_runs as run
    where status = 'RUNNING'
    and (
        unresolved = 0
        or exists (
            select from {schema}.nodes
            where nodes.workflow_id = run.id
            and nodes.status = 'READY'
            and nodes.kind = 'task'
            and (run.max_parallel is null or run.in_flight < run.max_parallel)
            offset 0
        )
        and not {is_below_paused}
    )
)
(
    select distinct false, unfinished.root_id::text, null
    from unfinished
    where unfinished.root_id <> all(%(excluded)s::uuid[])
    limit %(limit)s::integer
)
union all
(
    select true, root_id::text, id::text
    from examined_runs
    order by root_id, id
    offset %(runs)s::integer - 1
);
