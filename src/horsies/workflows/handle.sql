-- name: get_run_results
-- A run past its deadline has failed, even if its row does not say so yet.
select
    workflows.id::text,
    case when workflows.status in ('RUNNING', 'PAUSED') and deadline <= statement_timestamp() then 'FAILED' else workflows.status end,
    workflows.error::text,
    output.node_id,
    output.status,
    output.made_by,
    output.makes_list,
    output.result::text,
    output.error::text,
    case when workflows.status in ('RUNNING', 'PAUSED') then extract(epoch from deadline - statement_timestamp())::float8 end
from {schema}.workflows
left join {schema}.nodes as output on output.workflow_id = workflows.id and output.index = workflows.output
where workflows.id = any(%(ids)s::uuid[]);
