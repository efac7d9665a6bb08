-- name: list_runs
-- Root runs only, not those of sub-workflows and maps; newest first.
select id::text, name, status, created_at, started_at, finished_at, deadline, unresolved, error::text
from {schema}.workflows
where parent_node is null
and (%(statuses)s::text[] is null or status = any(%(statuses)s::text[]))
and (%(name)s::text is null or name = %(name)s::text)
and (%(since)s::timestamptz is null or created_at >= %(since)s::timestamptz)
and (%(until)s::timestamptz is null or created_at < %(until)s::timestamptz)
and (
    %(after)s::uuid is null
    or (created_at, id) < (select last.created_at, last.id from {schema}.workflows as last where last.id = %(after)s::uuid)
)
order by created_at desc, id desc
limit %(limit)s::integer;

-- name: get_run
select
    id::text, name, status, created_at, started_at, finished_at, deadline, unresolved, error::text,
    nullif(root_id, id)::text,
    exists (
        select from {schema}.workflows as descendant
        where descendant.root_id = workflows.root_id
        and workflows.id = any(descendant.ancestors)
        and descendant.status = 'PAUSED'
    )
from {schema}.workflows
where id = %(id)s::uuid;

-- name: get_descendant_runs
-- The run and its descendants, the deepest first.
select
    id::text, name, status, created_at, started_at, finished_at, deadline, unresolved, error::text,
    is_map, parent_node::text
from {schema}.workflows
where root_id = (select run.root_id from {schema}.workflows as run where run.id = %(id)s::uuid)
and (id = %(id)s::uuid or %(id)s::uuid = any(ancestors))
order by cardinality(ancestors) desc;

-- name: get_nodes_of_runs
-- The end is stored in the node. The start is stored in its task, live or finished at about that time.
select
    nodes.workflow_id::text,
    nodes.id::text,
    nodes.node_id,
    nodes.index,
    nodes.kind,
    case when nodes.status = 'ENQUEUED' and live_task.status = 'RUNNING' then 'RUNNING' else nodes.status end,
    nodes.task_name,
    nodes.task_id::text,
    coalesce(live_task.started_at, finished_task.started_at),
    nodes.finished_at,
    nodes.error::text
from {schema}.nodes
left join {schema}.tasks as live_task on live_task.id = nodes.task_id
left join lateral (
    select finished.started_at
    from {schema}.finished
    where finished.id = nodes.task_id
    and finished.finished_at >= nodes.finished_at - interval '1 day'
    and finished.finished_at <= nodes.finished_at + interval '1 day'
    limit 1
) as finished_task on true
where nodes.workflow_id = any(%(runs)s::uuid[])
order by nodes.workflow_id, nodes.index;

-- name: count_items
select workflow_id::text, status, count(*)
from {schema}.nodes
where workflow_id = any(%(runs)s::uuid[])
group by workflow_id, status
order by workflow_id, status;
