-- fragment: quotes_sensitive
-- Whether the error of a run may quote a sensitive value: the error of a node becomes that of the runs around it.
exists (
    select
    from {schema}.nodes as failed
    where failed.root_id = workflows.root_id
    and failed.status = 'FAILED'
    and failed.is_sensitive
)

-- name: get_stuck_trees
-- States that must not last longer than it takes a process to notice: trees that only another step would advance.
with live_runs as materialized (
    select
        workflows.*,
        workflows.status = 'PAUSED' or exists (
            select from {schema}.workflows as ancestor where ancestor.id = any(workflows.ancestors) and ancestor.status = 'PAUSED'
        ) as is_held
    from {schema}.workflows
    where status in ('RUNNING', 'PAUSED')
)
select root_id::text, 'a node has ended, and its end was not propagated'
from {schema}.nodes
where not propagated
and status in ('COMPLETED', 'FAILED', 'SKIPPED')
union
select root_id::text, 'nothing is left to do in a run, and it has not ended'
from live_runs
where status = 'RUNNING'
and unresolved <= 0
union
select root_id::text, 'the count of what is left to do in a run is wrong'
from live_runs
where unresolved <> (select count(*) from {schema}.nodes where nodes.workflow_id = live_runs.id and not nodes.propagated)
union
select live_runs.root_id::text, 'a node is ready, nothing holds it back, and it does not begin'
from live_runs
join {schema}.nodes on nodes.workflow_id = live_runs.id
where not live_runs.is_held
and nodes.status = 'READY'
and (live_runs.max_parallel is null or live_runs.in_flight < live_runs.max_parallel)
union
select live_runs.root_id::text, 'a node waits, though all that it waits for has ended'
from live_runs
join {schema}.nodes on nodes.workflow_id = live_runs.id
where nodes.status = 'PENDING'
and not exists (
    select from {schema}.nodes as other
    where other.workflow_id = nodes.workflow_id
    and other.index = any(nodes.waits_for || nodes.awaits)
    and not other.propagated
)
union
select live_runs.root_id::text, 'a node waits for a task that is nowhere'
from live_runs
join {schema}.nodes on nodes.workflow_id = live_runs.id
where nodes.status = 'ENQUEUED'
and not exists (select from {schema}.tasks where tasks.id = nodes.task_id)
union
select live_runs.root_id::text, 'a node waits for a run that has ended, or has not begun'
from live_runs
join {schema}.nodes on nodes.workflow_id = live_runs.id
where nodes.status = 'RUNNING'
and not exists (select from live_runs as child_run where child_run.id = nodes.child_id)
order by 1, 2;

-- name: get_status
select status
from {schema}.workflows
where id = %(id)s::uuid;

-- name: get_nodes
-- The start of a task is not recorded in its node; read it from the task.
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
-- Nodes that no other node of the run waits for.
select
    node_id, index, kind, status, task_name, task_id::text, child_id::text, finished_at, made_by, makes_list, result::text, error::text
from {schema}.nodes
where workflow_id = %(id)s::uuid
and dependents = '{}'
and awaited_by is null
order by index;

-- name: get_tree
-- The nodes of a run and its descendants except maps, with what a diagram shows of them.
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

-- name: list_runs
-- Root runs only, not those of sub-workflows and maps; newest first. At most `scanned` runs are read, whether they match or not; the last of these is returned
-- with `is_last`. Of each run at most 1 000 nodes are counted.
select
    workflows.is_match, workflows.is_last,
    workflows.id::text, workflows.name, workflows.status, workflows.created_at, workflows.started_at, workflows.finished_at, workflows.deadline,
    workflows.unresolved, workflows.error::text, workflows.error is not null and {quotes_sensitive},
    case when workflows.is_match then (
        select coalesce(json_object_agg(counts.status, counts.count), '{}')
        from (
            select few.status, count(*) as count
            from (
                select nodes.status
                from {schema}.nodes
                where nodes.workflow_id = workflows.id
                order by nodes.index
                limit 1000
            ) as few
            group by few.status
        ) as counts
    ) end
from (
    select
        run.*,
        (
            (%(statuses)s::text[] is null or run.status = any(%(statuses)s::text[]))
            and (%(name)s::text is null or run.name = %(name)s::text)
            and (%(since)s::timestamptz is null or run.created_at >= %(since)s::timestamptz)
            and (%(until)s::timestamptz is null or run.created_at < %(until)s::timestamptz)
            and (
                %(error_code)s::text is null
                -- Cut out of JSON as text, because JSON with \u0000 cannot be parsed here.
                or substring(left(run.error::text, 1000) from '"error_code"\s*:\s*("(?:[^"\\]|\\.)*")') = to_json(%(error_code)s::text)::text
            )
            and (
                %(message)s::text is null
                or strpos(lower({schema}.error_message(run.error)), lower(%(message)s::text)) > 0
                -- Whether a message contains a text would tell what is in it.
                and not exists (
                    select
                    from {schema}.nodes as failed
                    where failed.root_id = run.root_id
                    and failed.status = 'FAILED'
                    and failed.is_sensitive
                )
            )
        ) is true as is_match
    from (
        select
            newest.*,
            row_number() over (order by newest.created_at desc, newest.id desc) = %(scanned)s::bigint as is_last
        from (
            select id, root_id, name, status, created_at, started_at, finished_at, deadline, unresolved, error
            from {schema}.workflows
            where parent_node is null
            and (not %(live)s::boolean or status in ('RUNNING', 'PAUSED'))
            and (%(until)s::timestamptz is null or created_at < %(until)s::timestamptz)
            and (
                %(after)s::uuid is null
                or (created_at, id) < (select last.created_at, last.id from {schema}.workflows as last where last.id = %(after)s::uuid)
            )
            order by created_at desc, id desc
            limit %(scanned)s::bigint
        ) as newest
    ) as run
) as workflows
where workflows.is_match
or workflows.is_last
order by workflows.created_at desc, workflows.id desc
limit %(limit)s::bigint;

-- name: get_run
select
    id::text, name, status, created_at, started_at, finished_at, deadline, unresolved, error::text, error is not null and {quotes_sensitive},
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
    id::text, name, status, created_at, started_at, finished_at, deadline, unresolved, error::text, error is not null and {quotes_sensitive},
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
    nodes.error::text,
    nodes.is_sensitive is true
    or nodes.kind <> 'task' and nodes.error is not null and exists (
        select
        from {schema}.nodes as failed
        where failed.root_id = nodes.root_id
        and failed.status = 'FAILED'
        and failed.is_sensitive
    )
from {schema}.nodes
left join {schema}.tasks as live_task on live_task.id = nodes.task_id
left join lateral (
    select finished.started_at
    from {schema}.finished
    where finished.id = nodes.task_id
    -- A hand-written time may be at an end of the range.
    and nodes.finished_at between '1970-01-01 00:00+00' and '9999-12-31 00:00+00'
    and finished.finished_at >= greatest(nodes.finished_at, '1970-01-01 00:00+00') - interval '1 day'
    and finished.finished_at <= least(nodes.finished_at, '9999-12-31 00:00+00') + interval '1 day'
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

-- name: get_run_place
-- Where a run is: the node that it is the run of.
select
    workflows.is_map,
    workflows.on_error,
    node.workflow_id::text,
    node.workflow_name,
    node.node_id
from {schema}.workflows
left join lateral (
    select nodes.workflow_id, nodes.node_id, parent_run.name as workflow_name
    from {schema}.nodes
    join {schema}.workflows as parent_run on parent_run.id = nodes.workflow_id
    where nodes.id = workflows.parent_node
) as node on true
where workflows.id = %(id)s::uuid;

-- name: get_node_letters
-- The first letter of the status of each node, in order; Y is READY. A text is much smaller than rows: live pages read this once a second.
select coalesce(string_agg(few.letter, '' order by few.index), '')
from (
    select
        nodes.index,
        case
            when nodes.status = 'READY' then 'Y'
            when nodes.status = 'ENQUEUED'
            and exists (select from {schema}.tasks where tasks.id = nodes.task_id and tasks.status = 'RUNNING') then 'R'
            else left(nodes.status, 1)
        end as letter
    from {schema}.nodes
    where nodes.workflow_id = %(id)s::uuid
    order by nodes.index
    limit %(counted)s::integer
) as few;

-- name: count_inner_nodes
-- Of each sub-workflow and map of a run: its status, and its nodes or items by status, of the first ones.
select parent.index, run.id::text, run.status, run.unresolved, counts.status, counts.count
from (
    select nodes.index, nodes.child_id
    from {schema}.nodes
    where nodes.workflow_id = %(id)s::uuid
    and nodes.kind <> 'task'
    order by nodes.index
    limit %(counted)s::integer
) as parent
join {schema}.workflows as run on run.id = parent.child_id
left join lateral (
    select few.status, count(*) as count
    from (
        select nodes.status
        from {schema}.nodes
        where nodes.workflow_id = run.id
        order by nodes.index
        limit %(counted)s::integer
    ) as few
    group by few.status
) as counts on true
order by parent.index, counts.status;

-- name: list_nodes
-- A page of the nodes of a run, in order. The start of a task is stored in the task, live or finished at about the end of the node.
-- The error of a sub-workflow or map is that of a node inside it, which may be sensitive.
select
    node.node_id, node.index, node.kind, node.shown_status, node.task_name, node.task_id::text, node.child_id::text,
    coalesce(node.started_at, finished_task.started_at), node.finished_at, node.error::text,
    node.is_sensitive is true
    or case when node.kind <> 'task' and node.error is not null then exists (
        select
        from {schema}.nodes as failed
        where failed.root_id = node.root_id
        and failed.status = 'FAILED'
        and failed.is_sensitive
    ) else false end
from (
    select nodes.*, task.started_at, case when task.status = 'RUNNING' then 'RUNNING' else nodes.status end as shown_status
    from {schema}.nodes
    left join lateral (
        select tasks.status, tasks.started_at
        from {schema}.tasks
        where tasks.id = nodes.task_id
        and nodes.status = 'ENQUEUED'
    ) as task on true
    where nodes.workflow_id = %(id)s::uuid
    and nodes.index >= %(first)s::integer
    and case when task.status = 'RUNNING' then 'RUNNING' else nodes.status end = any(%(statuses)s::text[])
    and (
        strpos(lower(nodes.node_id), lower(%(text)s::text)) > 0
        or strpos(lower(coalesce(nodes.task_name, '')), lower(%(text)s::text)) > 0
    )
    order by nodes.index
    limit %(limit)s::integer
) as node
left join lateral (
    select finished.started_at
    from {schema}.finished
    where finished.id = node.task_id
    and node.finished_at between '1970-01-01 00:00+00' and '9999-12-31 00:00+00'  -- as above
    and finished.finished_at >= greatest(node.finished_at, '1970-01-01 00:00+00') - interval '1 day'
    and finished.finished_at <= least(node.finished_at, '9999-12-31 00:00+00') + interval '1 day'
    limit 1
) as finished_task on true
order by node.index;
