-- name: list_tasks
-- One snapshot over both tables: a task that moves between them appears once. Conditions on parameters alone are evaluated before anything
-- is read, so that a table or partition that cannot contain matches is skipped.
with node_tasks as materialized (
    select nodes.task_id as id
    from {schema}.workflows
    join {schema}.nodes on nodes.workflow_id = workflows.id
    where workflows.root_id = (select run.root_id from {schema}.workflows as run where run.id = %(workflow_id)s::uuid)
    and (workflows.id = %(workflow_id)s::uuid or %(workflow_id)s::uuid = any(workflows.ancestors))
)
select
    matches.id::text, task_name, queue_name, priority, status, attempts, claim_no,
    sent_at, enqueued_at, started_at, finished_at, claimed_by::text, error_code, root_id::text
from (
    (
        select
            id, task_name, queue_name, priority, effective.status, attempts, claim_no,
            sent_at, enqueued_at, started_at, null::timestamptz as finished_at, claimed_by, null as error_code, root_id
        from {schema}.tasks
        cross join lateral (
            select case
                when tasks.status <> 'RUNNING' and good_until <= statement_timestamp() then 'EXPIRED' else tasks.status
            end as status
        ) as effective
        where %(live)s::boolean
        -- They have an index of their own, whose size does not depend on the backlog.
        and (not %(in_flight)s::boolean or tasks.status <> 'PENDING')
        and (%(statuses)s::text[] is null or effective.status = any(%(statuses)s::text[]))
        and (%(queue_name)s::text is null or queue_name = %(queue_name)s::text)
        and (%(task_name)s::text is null or task_name = %(task_name)s::text)
        and (%(worker)s::uuid is null or claimed_by = %(worker)s::uuid)
        and (%(since)s::timestamptz is null or sent_at >= %(since)s::timestamptz)
        and (%(until)s::timestamptz is null or sent_at < %(until)s::timestamptz)
        and (%(workflow_id)s::uuid is null or id = any(array(select node_tasks.id from node_tasks)))
        and (%(after)s::uuid is null or id < %(after)s::uuid)
        order by id desc
        limit %(limit)s::bigint
    )
    union all
    (
        select
            id, task_name, queue_name, priority, status, attempts, claim_no,
            sent_at, enqueued_at, started_at, finished_at, claimed_by, error_code, root_id
        from {schema}.finished
        where %(finished)s::boolean
        and (%(statuses)s::text[] is null or status = any(%(statuses)s::text[]))
        and (%(queue_name)s::text is null or queue_name = %(queue_name)s::text)
        and (%(task_name)s::text is null or task_name = %(task_name)s::text)
        and (%(error_code)s::text is null or error_code = %(error_code)s::text)
        and (%(worker)s::uuid is null or claimed_by = %(worker)s::uuid)
        and (%(since)s::timestamptz is null or finished_at >= %(since)s::timestamptz)
        and (%(until)s::timestamptz is null or finished_at < %(until)s::timestamptz)
        and (%(workflow_id)s::uuid is null or id = any(array(select node_tasks.id from node_tasks)))
        and (%(after)s::uuid is null or id < %(after)s::uuid)
        order by id desc
        limit %(limit)s::bigint
    )
) as matches
order by id desc
limit %(limit)s::bigint;

-- name: read_clock
select clock_timestamp();
