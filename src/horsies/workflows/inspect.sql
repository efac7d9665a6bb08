-- name: get_stuck
-- What must not be for longer than it takes somebody to notice: trees that nothing but a further step, or a miracle, would move.
with live as materialized (
    select
        workflows.*,
        workflows.status = 'PAUSED' or exists (
            select from (
                select above.status
                from {schema}.workflows as above
                where above.id = any(workflows.ancestors)
                offset 0
            ) as above
            where above.status = 'PAUSED'
        ) as is_held
    from {schema}.workflows
    where status in ('RUNNING', 'PAUSED')
)
select root_id::text, 'a node has ended, and those that wait for it were not told'
from {schema}.nodes
where not told
and status in ('COMPLETED', 'FAILED', 'SKIPPED')
union
select root_id::text, 'nothing is left to do in a run, and it has not ended'
from live
where status = 'RUNNING'
and unresolved <= 0
union
select root_id::text, 'the count of what is left to do in a run is wrong'
from live
where unresolved <> (select count(*) from {schema}.nodes where nodes.workflow_id = live.id and not nodes.told)
union
select live.root_id::text, 'a node is ready, nothing holds it back, and it does not begin'
from live
join {schema}.nodes on nodes.workflow_id = live.id
where not live.is_held
and nodes.status = 'READY'
and (live.max_parallel is null or live.in_flight < live.max_parallel)
union
select live.root_id::text, 'a node waits, though all that it waits for has ended'
from live
join {schema}.nodes on nodes.workflow_id = live.id
where nodes.status = 'PENDING'
and not exists (
    select from {schema}.nodes as other
    where other.workflow_id = nodes.workflow_id
    and other.index = any(nodes.waits_for || nodes.awaits)
    and not other.told
)
union
select live.root_id::text, 'a node waits for a task that is nowhere'
from live
join {schema}.nodes on nodes.workflow_id = live.id
where nodes.status = 'ENQUEUED'
and not exists (select from {schema}.tasks where tasks.id = nodes.task_id)
union
select live.root_id::text, 'a node waits for a run that has ended, or has not begun'
from live
join {schema}.nodes on nodes.workflow_id = live.id
where nodes.status = 'RUNNING'
and not exists (select from live as below where below.id = nodes.child_id)
order by 1, 2;

-- name: get_status
select status
from {schema}.workflows
where id = %(id)s::uuid;

-- name: get_nodes
-- The beginning of a task is not recorded on its node: its own row tells.
select
    node_id,
    index,
    kind,
    case
        when status = 'ENQUEUED'
        and exists (select from {schema}.tasks where tasks.id = nodes.task_id and tasks.status = 'RUNNING') then 'RUNNING'
        else status
    end,
    task_name,
    task_id::text,
    child_id::text,
    finished_at,
    made_by,
    makes_list,
    case when %(with_results)s::boolean then result::text end,
    error::text
from {schema}.nodes
where workflow_id = %(id)s::uuid
and (%(node_id)s::text is null or node_id = %(node_id)s::text)
order by index;

-- name: get_last_nodes
-- Those that no other node of the run waits for.
select
    node_id, index, kind, status, task_name, task_id::text, child_id::text, finished_at, made_by, makes_list, result::text, error::text
from {schema}.nodes
where workflow_id = %(id)s::uuid
and dependents = '{}'
and awaited_by is null
order by index;

-- name: get_tree
-- The nodes of a run and of all below it, but those of maps, with what a picture shows of them.
select
    workflows.id::text,
    workflows.name,
    workflows.parent_node::text,
    nodes.id::text,
    nodes.index,
    nodes.node_id,
    nodes.kind,
    case
        when nodes.status = 'ENQUEUED'
        and exists (select from {schema}.tasks where tasks.id = nodes.task_id and tasks.status = 'RUNNING') then 'RUNNING'
        else nodes.status
    end,
    nodes.task_name,
    nodes.queue_name,
    nodes.waits_for,
    nodes.needed,
    nodes.allow_failed_deps,
    nodes.awaits
from {schema}.workflows
join {schema}.nodes on nodes.workflow_id = workflows.id
where workflows.root_id = (select run.root_id from {schema}.workflows as run where run.id = %(id)s::uuid)
and (workflows.id = %(id)s::uuid or %(id)s::uuid = any(workflows.ancestors))
and not workflows.is_map
order by cardinality(workflows.ancestors) desc, nodes.index;
