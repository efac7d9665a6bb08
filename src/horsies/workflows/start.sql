-- name: insert_runs
-- A run that is there already stays as it is; its `start_id` says whose it is.
insert into {schema}.workflows (
    id, root_id, ancestors, parent_node, start_id, name, definition_key, status, on_error, output, success_cases, optional,
    unresolved, time_limit_ms, started_at, deadline
)
select
    run.id, run.root_id, run.ancestors, run.parent_node, %(start_id)s::uuid, run.name, run.definition_key, run.status, run.on_error,
    run.output, run.success_cases, run.optional, run.unresolved, run.time_limit_ms,
    case when run.status = 'RUNNING' then statement_timestamp() end,
    case when run.status = 'RUNNING' then statement_timestamp() + run.time_limit_ms * interval '1 ms' end
from json_to_recordset(%(runs)s::json) as run (
    id uuid, root_id uuid, ancestors uuid[], parent_node uuid, name text, definition_key text, status text, on_error text,
    output integer, success_cases json, optional integer[], unresolved integer, time_limit_ms bigint
)
on conflict (id) do nothing;

-- name: insert_nodes
insert into {schema}.nodes (
    id, root_id, workflow_id, index, node_id, kind, status, waits_for, dependents, needed, allow_failed_deps,
    task_name, queue_name, priority, timeout_ms, retry_delays_ms, retry_jitter, retry_for, good_until,
    args, refs, inputs, takes_inputs, wants_meta, source, max_parallel, child_id, made_by, makes_list, trace
)
select
    id, %(root)s::uuid, workflow_id, index, node_id, kind, status, waits_for, dependents, needed, allow_failed_deps,
    task_name, queue_name, priority, timeout_ms, retry_delays_ms, retry_jitter, retry_for, good_until,
    args::json, refs, inputs, takes_inputs, wants_meta, source, max_parallel, child_id, made_by, makes_list, %(trace)s::text
from json_to_recordset(%(nodes)s::json) as node (
    id uuid, workflow_id uuid, index integer, node_id text, kind text, status text, waits_for integer[], dependents uuid[],
    needed integer, allow_failed_deps boolean, task_name text, queue_name text, priority integer, timeout_ms integer,
    retry_delays_ms integer[], retry_jitter real, retry_for text[], good_until timestamptz,
    -- As text: what was written for the task is what it gets, to the last space.
    args text, refs json, inputs uuid[], takes_inputs boolean, wants_meta boolean, source uuid, max_parallel integer, child_id uuid,
    made_by text, makes_list boolean
)
where exists (select from {schema}.workflows where workflows.id = %(root)s::uuid and workflows.start_id = %(start_id)s::uuid)
on conflict (workflow_id, index) do nothing;

-- name: get_name
select name
from {schema}.workflows
where id = %(root)s::uuid;
