-- name: lock_roots
-- Whoever changes anything in a tree of runs holds the row at its top, first of all, in the order of the ids. In a statement of its own: the
-- next one's snapshot is then younger than the lock. The statements of a step are long and quick: planning them each time would take
-- three times as long as running them, so they are planned once, which their author vouches for.
--
-- A statement that is planned once may be planned while the tables are empty, and then has to do for a step that touches 50 000 nodes; behind
-- a pooler each is planned for itself, without statistics. So the statements of a step leave the planner no choice that becomes quadratic, or
-- reads whole tables (`tests/workflows/test_growth.py`):
-- - A table is joined with the rows of a CTE by `id = any(array[row.id])`, which is one probe of the primary key for each row. A plain equality
--   may be planned as a merge or a hash join, which reads all of the table, and `id = any(array(select ...))` beside it as a nested loop, which
--   reads all of the CTE for each row.
-- - Further conditions on such a table stand in a `case` together with the CTE. By themselves they would be estimated to leave few rows of the
--   table, so few that it seems cheap to read the CTE for each of them.
-- - Where nothing is updated, a lateral subquery with `offset 0` does the same. So do runs above: whether one of them is paused is asked
--   of their rows, by their ids, not of the index of live runs.
select set_config('plan_cache_mode', 'force_generic_plan', true)
from {schema}.workflows
where id = any(%(roots)s::uuid[])
order by id
for update;

-- name: advance_nodes
-- One step: the nodes of tasks that ended in this transaction are resolved, and these and all others that have ended untold tell those
-- that wait for them, and their run. Who was told enough is READY, or SKIPPED; what is skipped has news of its own, for the next step.
with ended as materialized (
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
resolved as (
    update {schema}.nodes
    set
        status = case when ended.status = 'COMPLETED' then 'COMPLETED' else 'FAILED' end,
        result = ended.result,
        error = ended.error,
        finished_at = statement_timestamp(),
        told = true
    from ended
    where nodes.id = any(array[ended.node_id])
    and case when nodes.task_id = ended.id then nodes.status = 'ENQUEUED' end
    returning nodes.workflow_id, nodes.index, nodes.status, nodes.dependents, nodes.awaited_by
),
untold as (
    update {schema}.nodes
    set told = true, finished_at = coalesce(finished_at, statement_timestamp())
    where root_id = any(%(roots)s::uuid[])
    and not told
    and status in ('COMPLETED', 'FAILED', 'SKIPPED')
    returning workflow_id, index, status, dependents, awaited_by
),
news as materialized (
    select * from resolved
    union all
    select * from untold
),
tally as materialized (
    select edge.id, sum(edge.resolved) as resolved, sum(edge.succeeded) as succeeded, sum(edge.awaited) as awaited
    from (
        select dependent.id, 1 as resolved, case when news.status = 'COMPLETED' then 1 else 0 end as succeeded, 0 as awaited
        from news
        cross join unnest(news.dependents) as dependent (id)
        union all
        select dependent.id, 0, 0, 1
        from news
        cross join unnest(news.awaited_by) as dependent (id)
    ) as edge
    group by edge.id
),
counted as (
    update {schema}.nodes
    set
        resolved = nodes.resolved + tally.resolved,
        succeeded = nodes.succeeded + tally.succeeded,
        awaits_left = nodes.awaits_left - tally.awaited,
        status = case
            when nodes.succeeded + tally.succeeded >= needed then case when nodes.awaits_left > tally.awaited then 'PENDING' else 'READY' end
            -- No join asks for more than it waits for. To count those, a long `waits_for` is read from where it is stored out of line, so that
            -- is left until it can make a difference: once for a join of all, not once for each node that it waits for.
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
told as materialized (
    select
        run.*,
        -- The failure of an optional node pauses nothing.
        run.failed <> '{}' and exists (
            select unnest(run.failed)
            except
            select unnest(workflows.optional)
            from {schema}.workflows
            where workflows.id = run.workflow_id
        ) as is_bad
    from (
        select
            workflow_id,
            count(*) as count,
            count(*) filter (where status <> 'SKIPPED') as ran,
            coalesce(array_agg(index) filter (where status = 'FAILED'), '{}') as failed
        from news
        group by workflow_id
    ) as run
)
update {schema}.workflows
set
    unresolved = workflows.unresolved - told.count,
    in_flight = case when max_parallel is null then 0 else workflows.in_flight - told.ran end,
    status = case
        when workflows.status = 'RUNNING' and on_error = 'pause' and told.is_bad then 'PAUSED'
        else workflows.status
    end
from told
where workflows.id = any(array[told.workflow_id])
-- Of what was paused by this, perhaps: the next step takes back what waits in queues, and whoever waits for the run is told.
returning
    workflows.root_id::text,
    workflows.status = 'PAUSED' and told.is_bad,
    case when workflows.status = 'PAUSED' then pg_notify('{done_channel}', workflows.id::text)::text end;

-- name: withdraw_tasks
-- What is held back and has not begun waits here, not in its queue. An attempt that failed has begun.
with held as materialized (
    select node.task_id
    from {schema}.workflows
    cross join lateral (
        select nodes.task_id
        from {schema}.nodes
        where nodes.workflow_id = workflows.id
        and nodes.status = 'ENQUEUED'
        offset 0
    ) as node
    where workflows.root_id = any(%(roots)s::uuid[])
    and workflows.status in ('RUNNING', 'PAUSED')
    and (
        workflows.status = 'PAUSED'
        or exists (
            select from (
                select above.status
                from {schema}.workflows as above
                where above.id = any(workflows.ancestors)
                offset 0
            ) as above
            where above.status = 'PAUSED'
        )
    )
),
gone as (
    delete from {schema}.tasks
    where id = any(array(select held.task_id from held))
    and status = 'PENDING'
    and attempts = 0
    returning id, node_id
),
back as (
    update {schema}.nodes
    set status = 'READY', task_id = null
    where id = any(array(select gone.node_id from gone))
    returning workflow_id
)
update {schema}.workflows
set in_flight = in_flight - withdrawn.count
from (select workflow_id, count(*) as count from back group by workflow_id) as withdrawn
where workflows.id = any(array[withdrawn.workflow_id])
and case when withdrawn.count > 0 then max_parallel is not null end;

-- name: open_maps
-- The items of a map become nodes of a run of its own. What is no list cannot be gone over.
with opening as materialized (
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
hopeless as (
    update {schema}.nodes
    set status = 'FAILED', error = %(no_list)s::json, finished_at = statement_timestamp()
    where id = any(array(select opening.id from opening where opening.is_list is not true))
),
runs as (
    insert into {schema}.workflows (
        id, root_id, ancestors, parent_node, name, is_map, max_parallel, unresolved
    )
    select
        opening.child_id, opening.root_id, above.ancestors || above.id, opening.id, above.name, true, opening.max_parallel,
        json_array_length(opening.list)
    from opening
    cross join lateral (
        select workflows.id, workflows.ancestors, workflows.name
        from {schema}.workflows
        where workflows.id = opening.workflow_id
        offset 0
    ) as above
    where opening.is_list
)
insert into {schema}.nodes (
    id, root_id, workflow_id, index, node_id, kind, waits_for, dependents, needed, allow_failed_deps,
    task_name, queue_name, priority, timeout_ms, retry_delays_ms, retry_jitter, retry_for, good_until,
    args, refs, inputs, results_of, takes_inputs, wants_meta, item, made_by, trace
)
select
    gen_random_uuid(), root_id, child_id, item.number - 1, node_id || '[' || item.number - 1 || ']', 'task', '{}', '{}', 0, false,
    task_name, queue_name, priority, timeout_ms, retry_delays_ms, retry_jitter, retry_for, good_until,
    args, refs, inputs, results_of, takes_inputs, wants_meta, item.value, task_name, trace
from opening
cross join lateral json_array_elements(case when opening.is_list then opening.list else '[]' end) with ordinality as item (value, number);

-- name: open_runs
-- Sub-workflows and maps that are ready begin: their run, and in it what waits for nobody.
with opening as materialized (
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
    and not exists (
        select from (
            select above.status
            from {schema}.workflows as above
            where above.id = any(run.ancestors)
            offset 0
        ) as above
        where above.status = 'PAUSED'
    )
),
begun as (
    update {schema}.workflows
    set
        status = 'RUNNING',
        error = null,
        started_at = statement_timestamp(),
        finished_at = null,
        deadline = statement_timestamp() + time_limit_ms * interval '1 ms'
    where id = any(array(select opening.child_id from opening))
    returning id, parent_node
),
opened as (
    update {schema}.nodes
    set status = 'RUNNING'
    where id = any(array(select begun.parent_node from begun))
)
update {schema}.nodes
set status = 'READY'
where workflow_id = any(array(select begun.id from begun))
and status = 'PENDING'
and awaits_left <= 0
and (succeeded >= needed or allow_failed_deps and resolved >= cardinality(waits_for));

-- name: open_tasks
-- What is ready becomes an ordinary task, unless its run, or one above, is paused, or enough of it is under way already.
with ready as materialized (
    select node.id
    from {schema}.workflows
    cross join lateral (
        select nodes.id
        from {schema}.nodes
        where nodes.workflow_id = workflows.id
        and nodes.status = 'READY'
        and nodes.kind = 'task'
        order by nodes.index
        limit case when workflows.max_parallel is not null then greatest(0, workflows.max_parallel - workflows.in_flight) end
    ) as node
    where workflows.root_id = any(%(roots)s::uuid[])
    and workflows.status = 'RUNNING'
    and not exists (
        select from (
            select above.status
            from {schema}.workflows as above
            where above.id = any(workflows.ancestors)
            offset 0
        ) as above
        where above.status = 'PAUSED'
    )
),
opened as (
    update {schema}.nodes
    set status = 'ENQUEUED', task_id = {schema}.new_id()
    where id = any(array(select ready.id from ready))
    and status = 'READY'
    returning *
),
counted as (
    update {schema}.workflows
    set in_flight = workflows.in_flight + added.count
    from (select workflow_id, count(*) as count from opened group by workflow_id) as added
    where workflows.id = any(array[added.workflow_id])
    and case when added.count > 0 then workflows.max_parallel is not null end
)
insert into {schema}.tasks (
    id, task_name, queue_name, priority, args, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, root_id, node_id,
    takes_inputs, trace
)
select
    task_id, task_name, queue_name, priority, args, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, root_id, id,
    takes_inputs, trace
from opened
order by workflow_id, index;

-- name: end_runs
-- A run without a node left to tell of itself is over. What it stands for in the run above ends with it, and has that to tell. A paused run
-- does not end in failure: whoever resumes it may want to retry what failed. Says of each tree whether a further step is needed, in one row for
-- what has ended here and in another for the rest.
with over as materialized (
    select
        workflows.id,
        workflows.status,
        workflows.is_map,
        known.optional,
        known.bytes,
        items.count as items,
        items.succeeded,
        bounds.min_item_success,
        known.bytes is null and case
            when bounds.max_failures is not null or bounds.min_item_success is not null
            then items.count - items.succeeded <= coalesce(bounds.max_failures, items.count)
            and items.succeeded >= coalesce(bounds.min_item_success, 0)
            when workflows.success_cases is null then not exists (
                select from {schema}.nodes
                where nodes.workflow_id = workflows.id
                and nodes.status = 'FAILED'
                and known.optional[width_bucket(nodes.index, known.optional)] is distinct from nodes.index
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
        end as is_good
    from {schema}.workflows
    cross join lateral (
        select
            -- Sorted, and read from the row once: each failed node is looked up in it by halves.
            array(select unnest(workflows.optional) order by 1) as optional,
            -- The list that a map makes of the results of its items is one value. If it were larger than PostgreSQL allows, this statement would
            -- fail each time, and the whole turn of the worker with it. What is stored as it is need not be read to know its size. NULL: not too large.
            case when workflows.is_map then (
                select case when sum(size.bytes) > %(most_bytes)s::bigint then sum(size.bytes) end
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
    ) as known
    left join lateral (
        select map.max_failures, map.min_item_success
        from {schema}.nodes as map
        where workflows.is_map
        and map.id = workflows.parent_node
        offset 0
    ) as bounds on true
    -- Counted only where somebody asked for it.
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
ended as (
    update {schema}.workflows
    set
        status = case when over.is_good then 'COMPLETED' else 'FAILED' end,
        finished_at = statement_timestamp(),
        error = case when not over.is_good then coalesce(
            (
                select nodes.error
                from {schema}.nodes
                where nodes.workflow_id = over.id
                and nodes.status = 'FAILED'
                order by
                    over.optional[width_bucket(nodes.index, over.optional)] is not distinct from nodes.index,
                    nodes.finished_at,
                    nodes.index
                limit 1
            ),
            replace(%(too_large)s::text, '<bytes>', to_char(over.bytes, 'FM999,999,999,999,999'))::json,
            case when over.is_map then replace(
                replace(replace(%(too_few)s::text, '<succeeded>', over.succeeded::text), '<items>', over.items::text),
                '<least>', over.min_item_success::text
            )::json end,
            %(no_success)s::json
        ) end
    from over
    where workflows.id = any(array[over.id])
    and (over.is_good or over.status = 'RUNNING')
    returning workflows.id, workflows.root_id, workflows.parent_node, workflows.status, workflows.error, workflows.is_map, workflows.output
),
above as (
    update {schema}.nodes
    set
        status = ended.status,
        error = case
            when ended.status = 'COMPLETED' or ended.is_map then ended.error
            else coalesce(
                (
                    -- Put before the message as text. The functions that look into JSON refuse a string with a null character, whichever part of the
                    -- error it is in, and the step with it. An error that no library has written may look different, and stays as it is.
                    select (head.text || substr(words.text, 2, length(words.text) - 2) || substr(ended.error::text, length(head.text) + 1))::json
                    from (select substring(ended.error::text from '^\{"error_code":"[A-Z0-9_]*","message":"') as text) as head
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
                        where inner_node.workflow_id = ended.id
                    ) as words
                    where head.text is not null
                ),
                ended.error
            )
        end,
        finished_at = statement_timestamp(),
        result = case when ended.status = 'COMPLETED' then case
            when ended.is_map then (
                select coalesce(json_agg(item.result order by item.index) filter (where item.status = 'COMPLETED'), '[]')
                from {schema}.nodes as item
                where item.workflow_id = ended.id
            )
            else coalesce(
                (
                    select output.result
                    from {schema}.nodes as output
                    where output.workflow_id = ended.id
                    and output.index = ended.output
                ),
                'null'
            )
        end end
    from ended
    where nodes.id = any(array[ended.parent_node])
    and case when ended.id is not null then nodes.status = 'RUNNING' end
)
select
    ended.root_id::text,
    bool_or(ended.parent_node is not null),
    -- In the transaction, unlike the notifications of tasks: there are few, and nobody knows the ids before.
    count(pg_notify('{done_channel}', ended.id::text))
from ended
group by ended.root_id
union all
select
    root.id::text,
    exists (
        select from {schema}.nodes
        where nodes.root_id = root.id
        and not nodes.told
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
        -- What it stands for can begin: else, in rows changed by hand, there would be a further step for ever.
        -- A scalar subquery, which the planner cannot turn into a hash of all runs.
        and coalesce(
            (select coalesce(below.parent_node = nodes.id, false) from {schema}.workflows as below where below.id = nodes.child_id),
            nodes.kind = 'map' and (
                nodes.source is null and nodes.item is not null
                or exists (select from {schema}.nodes as source where source.id = nodes.source)
            )
        )
        and not exists (
            select from (
                select above.status
                from {schema}.workflows as above
                where above.id = any(run.ancestors)
                offset 0
            ) as above
            where above.status = 'PAUSED'
        )
    ),
    0
from unnest(%(roots)s::uuid[]) as root (id);

-- name: begin_step
begin isolation level read committed;

-- name: commit_step
commit;

-- name: get_unsettled
-- Whatever is left to do, anywhere, that waits for nobody but us.
select distinct left_over.root_id::text
from (
    select root_id
    from {schema}.nodes
    where not told
    and status in ('COMPLETED', 'FAILED', 'SKIPPED')
    union all
    select nodes.root_id
    from {schema}.nodes
    join {schema}.workflows on workflows.id = nodes.workflow_id
    where nodes.status = 'READY'
    and nodes.kind <> 'task'
    and workflows.status = 'RUNNING'
    -- What it stands for can begin: else, in rows changed by hand, there would be a further step for ever.
    -- A scalar subquery, which the planner cannot turn into a hash of all runs.
    and coalesce(
        (select coalesce(below.parent_node = nodes.id, false) from {schema}.workflows as below where below.id = nodes.child_id),
        nodes.kind = 'map' and (
            nodes.source is null and nodes.item is not null
            or exists (select from {schema}.nodes as source where source.id = nodes.source)
        )
    )
    and not exists (
        select from (
            select above.status
            from {schema}.workflows as above
            where above.id = any(workflows.ancestors)
            offset 0
        ) as above
        where above.status = 'PAUSED'
    )
    union all
    select root_id
    from {schema}.workflows
    where status = 'RUNNING'
    and (
        unresolved = 0
        or exists (
            select from {schema}.nodes
            where nodes.workflow_id = workflows.id
            and nodes.status = 'READY'
            and nodes.kind = 'task'
            and (workflows.max_parallel is null or workflows.in_flight < workflows.max_parallel)
        )
        and not exists (
            select from (
                select above.status
                from {schema}.workflows as above
                where above.id = any(workflows.ancestors)
                offset 0
            ) as above
            where above.status = 'PAUSED'
        )
    )
) as left_over
where left_over.root_id <> all(%(excluded)s::uuid[])
limit %(limit)s::integer;
