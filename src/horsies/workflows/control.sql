-- name: lock_tree
-- The root of the run's tree, which stays locked until the end of the transaction.
select root.id::text
from {schema}.workflows as root
where root.id = (select workflows.root_id from {schema}.workflows where workflows.id = %(id)s::uuid)
for update;

-- name: pause_run
update {schema}.workflows
set status = 'PAUSED'
where id = %(id)s::uuid
and status = 'RUNNING'
returning pg_notify('{done_channel}', id::text)::text;

-- name: resume_runs
-- The run and its descendants, which may have been paused by an error of their own.
update {schema}.workflows
set status = 'RUNNING'
where root_id = %(root)s::uuid
and (id = %(id)s::uuid or %(id)s::uuid = any(ancestors))
and status = 'PAUSED'
returning id;

-- name: stop_runs
-- The run ends with the given status, and its descendants are cancelled.
with stopped_runs as (
    update {schema}.workflows
    set
        status = case when id = %(id)s::uuid then %(status)s::text else 'CANCELLED' end,
        error = %(error)s::json,
        finished_at = statement_timestamp()
    where root_id = %(root)s::uuid
    and (id = %(id)s::uuid or %(id)s::uuid = any(ancestors))
    and status in ('PENDING', 'RUNNING', 'PAUSED')
    -- A run that has ended is not stopped any more, nor are its descendants.
    and exists (
        select from {schema}.workflows as run
        where run.id = %(id)s::uuid
        and run.status in ('PENDING', 'RUNNING', 'PAUSED')
    )
    returning id
)
select id::text, pg_notify('{done_channel}', id::text)
from stopped_runs;

-- name: stop_nodes
-- Nodes of stopped runs that have not started are skipped, and the parent node of the run has failed. Running tasks end on their own.
update {schema}.nodes
set
    status = case when status = 'RUNNING' then 'FAILED' else 'SKIPPED' end,
    error = case when status = 'RUNNING' then %(error)s::json end,
    finished_at = statement_timestamp()
where workflow_id = any(%(runs)s::uuid[]) and status in ('PENDING', 'READY', 'RUNNING')
or id = (select workflows.parent_node from {schema}.workflows where workflows.id = %(id)s::uuid) and status = 'RUNNING';

-- name: get_tasks_of_runs
select task_id::text
from {schema}.nodes
where workflow_id = any(%(runs)s::uuid[])
and status = 'ENQUEUED'
order by task_id;

-- name: reopen_runs
-- Reset the tree to the state before anything in it failed: the root run continues, its descendants wait until their node is ready again.
update {schema}.workflows
set
    status = case when id = %(id)s::uuid or status = 'PAUSED' then 'RUNNING' else 'PENDING' end,
    error = null,
    finished_at = null,
    deadline = case when id = %(id)s::uuid then statement_timestamp() + time_limit_ms * interval '1 ms' else deadline end
where root_id = %(id)s::uuid
and status in ('FAILED', 'CANCELLED', 'PAUSED')
and exists (
    select from {schema}.workflows as root
    where root.id = %(id)s::uuid
    and root.status in ('FAILED', 'CANCELLED', 'PAUSED')
)
returning id::text;

-- name: reset_nodes
update {schema}.nodes
set status = 'PENDING', propagated = false, result = null, error = null, task_id = null, finished_at = null
where workflow_id = any(%(runs)s::uuid[])
and status in ('FAILED', 'SKIPPED');

-- name: recount_nodes
-- All nodes of these runs that have ended now have succeeded. They are counted from the succeeded nodes, each of which knows its
-- dependents.
with tally as materialized (
    select edge.id, sum(edge.one) as count, sum(edge.awaited) as awaited
    from (
        select dependent.id, 1 as one, 0 as awaited
        from {schema}.nodes as ended_node
        cross join unnest(ended_node.dependents) as dependent (id)
        where ended_node.workflow_id = any(%(runs)s::uuid[])
        and ended_node.status = 'COMPLETED'
        and ended_node.propagated
        union all
        select pending_node.id, 0, 0
        from {schema}.nodes as pending_node
        where pending_node.workflow_id = any(%(runs)s::uuid[])
        and pending_node.status = 'PENDING'
        union all
        select dependent.id, 0, 1
        from {schema}.nodes as awaited
        cross join unnest(awaited.awaited_by) as dependent (id)
        where awaited.workflow_id = any(%(runs)s::uuid[])
        and not (awaited.status = 'COMPLETED' and awaited.propagated)
    ) as edge
    group by edge.id
)
update {schema}.nodes
set
    succeeded = tally.count,
    resolved = tally.count,
    awaits_left = tally.awaited,
    status = case
        when (select workflows.status from {schema}.workflows where workflows.id = nodes.workflow_id) <> 'RUNNING' then 'PENDING'
        when tally.awaited > 0 then 'PENDING'
        when tally.count >= needed or allow_failed_deps and tally.count >= cardinality(waits_for) then 'READY'
        else 'PENDING'
    end
from tally
-- See `lock_roots`.
where nodes.id = any(array[tally.id])
and case when tally.count >= 0 then nodes.status = 'PENDING' end;

-- name: recount_runs
update {schema}.workflows
set
    unresolved = (select count(*) from {schema}.nodes where nodes.workflow_id = workflows.id and not nodes.propagated),
    in_flight = (select count(*) from {schema}.nodes where nodes.workflow_id = workflows.id and nodes.status = 'ENQUEUED')
where id = any(%(runs)s::uuid[]);

-- name: get_overdue_runs
select id::text
from {schema}.workflows
where deadline <= statement_timestamp()
and deadline is not null
and status in ('RUNNING', 'PAUSED')
and id <> all(%(excluded)s::uuid[])
order by deadline
limit %(limit)s::integer;

-- name: get_lost_nodes
-- Nodes whose task does not exist, or ended without them (its row was deleted by hand). And nodes that still await others although all of
-- these have ended, in rows changed by hand.
select nodes.id::text
from {schema}.workflows
join {schema}.nodes on nodes.workflow_id = workflows.id
where workflows.status in ('RUNNING', 'PAUSED')
and nodes.status = 'ENQUEUED'
and nodes.id <> all(%(excluded)s::uuid[])
and not exists (select from {schema}.tasks where tasks.id = nodes.task_id)
union all
select nodes.id::text
from {schema}.workflows
join {schema}.nodes on nodes.workflow_id = workflows.id
where workflows.status in ('RUNNING', 'PAUSED')
and nodes.status = 'PENDING'
and nodes.awaits_left > 0
and nodes.id <> all(%(excluded)s::uuid[])
and not exists (
    select from {schema}.nodes as awaited
    where awaited.workflow_id = nodes.workflow_id
    and awaited.index = any(nodes.awaits)
    and not awaited.propagated
)
limit %(limit)s::integer;

-- name: resolve_lost_nodes
-- The node ends as its task did, or as lost.
with lost_nodes as materialized (
    select nodes.id, nodes.task_id
    from {schema}.nodes
    where nodes.id = any(%(ids)s::uuid[])
    and nodes.status = 'ENQUEUED'
    and not exists (select from {schema}.tasks where tasks.id = nodes.task_id)
),
released_nodes as (
    update {schema}.nodes
    set
        awaits_left = 0,
        status = case
            when succeeded >= needed or allow_failed_deps and resolved >= cardinality(waits_for) then 'READY'
            else 'PENDING'
        end
    where id = any(%(ids)s::uuid[])
    and status = 'PENDING'
    and awaits_left > 0
    and not exists (
        select from {schema}.nodes as awaited
        where awaited.workflow_id = nodes.workflow_id
        and awaited.index = any(nodes.awaits)
        and not awaited.propagated
    )
)
update {schema}.nodes
set
    status = case when task.status = 'COMPLETED' then 'COMPLETED' else 'FAILED' end,
    result = task.result,
    error = case when task.status = 'COMPLETED' then null else coalesce(task.error, %(error)s::json) end,
    finished_at = statement_timestamp()
from lost_nodes
left join lateral (
    select status, result, error
    from {schema}.finished
    where finished.id = lost_nodes.task_id
    limit 1
) as task on true
where nodes.id = any(array[lost_nodes.id])
and case when nodes.task_id = lost_nodes.task_id then nodes.status = 'ENQUEUED' end;
