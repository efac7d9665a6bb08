-- name: insert_tree
-- Also run on callers' own connections, whose search_path is theirs: every operator, function and type is qualified (see `db/pooler.py`).
-- The root run decides: if it exists already, nothing is written. Runs and nodes that start at once are written as started, with the tasks
-- of the first nodes, so that no step is needed. A single statement is its own transaction.
with runs as materialized (
    select
        id, root_id, ancestors, parent_node, name, definition_key, status, on_error, output, success_cases, optional, unresolved,
        time_limit_ms,
        case when status operator(pg_catalog.=) 'RUNNING' then pg_catalog.statement_timestamp() end as started_at,
        case
            when status operator(pg_catalog.=) 'RUNNING'
            -- A qualified operator has no precedence over others.
            then pg_catalog.statement_timestamp() operator(pg_catalog.+) (time_limit_ms operator(pg_catalog.*) interval '1 ms')
        end as deadline
    from pg_catalog.json_to_recordset(%(runs)s::pg_catalog.json) as run (
        id pg_catalog.uuid, root_id pg_catalog.uuid, ancestors pg_catalog.uuid[], parent_node pg_catalog.uuid, name pg_catalog.text,
        definition_key pg_catalog.text, status pg_catalog.text, on_error pg_catalog.text, output integer,
        success_cases pg_catalog.json, optional integer[], unresolved integer, time_limit_ms bigint
    )
),
root as (
    insert into {schema}.workflows (
        id, root_id, ancestors, parent_node, name, definition_key, status, on_error, output, success_cases, optional, unresolved,
        time_limit_ms, started_at, deadline
    )
    select runs.*
    from runs
    where runs.id operator(pg_catalog.=) runs.root_id
    on conflict (id) do nothing
    returning id
),
descendants as (
    insert into {schema}.workflows (
        id, root_id, ancestors, parent_node, name, definition_key, status, on_error, output, success_cases, optional, unresolved,
        time_limit_ms, started_at, deadline
    )
    select runs.*
    from runs
    join root on root.id operator(pg_catalog.<>) runs.id
),
new_nodes as (
    insert into {schema}.nodes (
        id, root_id, workflow_id, index, node_id, kind, status, task_id, waits_for, dependents, needed, allow_failed_deps,
        {sent_columns}, good_until, args, refs, inputs, results_of, takes_inputs, wants_meta, source, item, max_parallel, max_failures, min_item_success, child_id,
        made_by, makes_list, awaits, awaits_left, awaited_by
    )
    select
        node.id, root.id, workflow_id, index, node_id, kind, status, task_id, waits_for, dependents, needed, allow_failed_deps,
        {sent_columns}, good_until, args::pg_catalog.json, refs, inputs, results_of, takes_inputs, wants_meta, source, item::pg_catalog.json, max_parallel, max_failures,
        min_item_success, child_id, made_by, makes_list, awaits, coalesce(awaits_left, 0), awaited_by
    from root
    cross join (select %(trace)s::pg_catalog.text as trace) as start
    cross join pg_catalog.json_to_recordset(%(nodes)s::pg_catalog.json) as node (
        id pg_catalog.uuid, workflow_id pg_catalog.uuid, index integer, node_id pg_catalog.text, kind pg_catalog.text,
        status pg_catalog.text, task_id pg_catalog.uuid, waits_for integer[], dependents pg_catalog.uuid[], needed integer,
        allow_failed_deps boolean, {sent_fields}, good_until pg_catalog.timestamptz,
        -- As text, so that the task receives exactly what was written for it, including spaces.
        args pg_catalog.text, refs pg_catalog.json, inputs pg_catalog.uuid[], results_of pg_catalog.uuid[], takes_inputs boolean,
        wants_meta boolean, source pg_catalog.uuid, item pg_catalog.text, max_parallel integer, max_failures integer,
        min_item_success integer, child_id pg_catalog.uuid, made_by pg_catalog.text, makes_list boolean, awaits integer[],
        awaits_left integer, awaited_by pg_catalog.uuid[]
    )
    returning *
),
new_tasks as (
    insert into {schema}.tasks ({sent_columns}, id, args, good_until, root_id, node_id, takes_inputs)
    select {sent_columns}, task_id, args, good_until, root_id, id, takes_inputs
    from new_nodes
    where task_id is not null
)
select
    exists (select from root),
    -- For this transaction only; see `notify_started`.
    pg_catalog.set_config('horsies.notify', %(notify)s::pg_catalog.text, true);

-- name: notify_started
-- After the commit, as after a send. If a task is gone, a worker has taken it already, and needs no notification.
select pg_notify('{new_channel}', {schema}.wakeup_payload(true, task.priority, min(task.enqueued_at), task.queue_name))
from unnest(%(ids)s::uuid[]) as new_tasks (id)
cross join lateral (
    select priority, enqueued_at, queue_name
    from {schema}.tasks
    where id = new_tasks.id
    and status = 'PENDING'
    offset 0
) as task
group by task.queue_name, task.priority;

-- name: get_run_name
-- Also run on callers' own connections, whose search_path is theirs: every operator, function and type is qualified (see `db/pooler.py`).
select name
from {schema}.workflows
where id operator(pg_catalog.=) %(root)s::pg_catalog.uuid;
