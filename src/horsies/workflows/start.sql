-- name: insert_tree
-- The run at the top decides: where it is there already nothing is written. What begins with it is written as begun, and the tasks of its
-- first nodes with it, so that no step has to look for them. One statement is a transaction of its own.
with declared as materialized (
    select
        id, root_id, ancestors, parent_node, name, definition_key, status, on_error, output, success_cases, optional, unresolved,
        time_limit_ms,
        case when status = 'RUNNING' then statement_timestamp() end as started_at,
        case when status = 'RUNNING' then statement_timestamp() + time_limit_ms * interval '1 ms' end as deadline
    from json_to_recordset(%(runs)s::json) as run (
        id uuid, root_id uuid, ancestors uuid[], parent_node uuid, name text, definition_key text, status text, on_error text,
        output integer, success_cases json, optional integer[], unresolved integer, time_limit_ms bigint
    )
),
root as (
    insert into {schema}.workflows (
        id, root_id, ancestors, parent_node, name, definition_key, status, on_error, output, success_cases, optional, unresolved,
        time_limit_ms, started_at, deadline
    )
    select declared.*
    from declared
    where declared.id = declared.root_id
    on conflict (id) do nothing
    returning id
),
parts as (
    insert into {schema}.workflows (
        id, root_id, ancestors, parent_node, name, definition_key, status, on_error, output, success_cases, optional, unresolved,
        time_limit_ms, started_at, deadline
    )
    select declared.*
    from declared
    join root on root.id <> declared.id
),
written as (
    insert into {schema}.nodes (
        id, root_id, workflow_id, index, node_id, kind, status, task_id, waits_for, dependents, needed, allow_failed_deps,
        task_name, queue_name, priority, timeout_ms, retry_delays_ms, retry_jitter, retry_for, good_until,
        args, refs, inputs, takes_inputs, wants_meta, source, max_parallel, child_id, made_by, makes_list, trace
    )
    select
        node.id, root.id, workflow_id, index, node_id, kind, status, task_id, waits_for, dependents, needed, allow_failed_deps,
        task_name, queue_name, priority, timeout_ms, retry_delays_ms, retry_jitter, retry_for, good_until,
        args::json, refs, inputs, takes_inputs, wants_meta, source, max_parallel, child_id, made_by, makes_list, %(trace)s::text
    from root
    cross join json_to_recordset(%(nodes)s::json) as node (
        id uuid, workflow_id uuid, index integer, node_id text, kind text, status text, task_id uuid, waits_for integer[],
        dependents uuid[], needed integer, allow_failed_deps boolean, task_name text, queue_name text, priority integer,
        timeout_ms integer, retry_delays_ms integer[], retry_jitter real, retry_for text[], good_until timestamptz,
        -- As text: what was written for the task is what it gets, to the last space.
        args text, refs json, inputs uuid[], takes_inputs boolean, wants_meta boolean, source uuid, max_parallel integer, child_id uuid,
        made_by text, makes_list boolean
    )
    returning *
),
opened as (
    insert into {schema}.tasks (
        id, task_name, queue_name, priority, args, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, root_id, node_id,
        takes_inputs, trace
    )
    select
        task_id, task_name, queue_name, priority, args, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, root_id, id,
        takes_inputs, trace
    from written
    where task_id is not null
)
select
    exists (select from root),
    -- For this transaction only; see `notify_started`.
    set_config('horsies.told', %(told)s::text, true);

-- name: notify_started
-- After the commit, as after a send. What is gone has been taken by somebody, and needs no waking.
select pg_notify('{new_channel}', {schema}.news_of(true, task.priority, min(task.enqueued_at), task.queue_name))
from unnest(%(ids)s::uuid[]) as opened (id)
cross join lateral (
    select priority, enqueued_at, queue_name
    from {schema}.tasks
    where id = opened.id
    and status = 'PENDING'
    offset 0
) as task
group by task.queue_name, task.priority;

-- name: get_name
select name
from {schema}.workflows
where id = %(root)s::uuid;
