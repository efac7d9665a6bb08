-- name: get_task_detail
select
    task.claim_no,
    coalesce(cardinality(task.retry_delays_ms), 0),
    live.cancel_requested_at,
    live.lease_until,
    coalesce(nodes.workflow_id, task.root_id)::text,
    workflows.name,
    nodes.node_id,
    (
        -- By the name first: keys are indexed by it.
        select keys.key
        from {schema}.keys
        where keys.task_name = %(task_name)s::text
        and keys.task_id = %(id)s::uuid
        limit 1
    ),
    octet_length(task.args::text),
    octet_length(task.result::text),
    case when %(characters)s::integer > 0 then left(task.args::text, %(characters)s::integer) end,
    case when %(characters)s::integer > 0 then left(task.result::text, %(characters)s::integer) end
from {schema}.all_tasks as task
left join {schema}.tasks as live on live.id = task.id
left join {schema}.nodes on nodes.id = task.node_id
left join {schema}.workflows on workflows.id = coalesce(nodes.workflow_id, task.root_id)
where task.id = %(id)s::uuid;
