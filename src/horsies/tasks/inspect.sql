-- name: get_status
-- A task that has not started by its `good_until` has expired, even if its row does not say so yet. Waiters see the same.
select case when status in ('PENDING', 'CLAIMED') and good_until <= statement_timestamp() then 'EXPIRED' else status end
from {schema}.all_tasks
where id = %(id)s::uuid;

-- name: get_info
select
    id::text, task_name, queue_name, priority,
    case when status in ('PENDING', 'CLAIMED') and good_until <= statement_timestamp() then 'EXPIRED' else status end,
    attempts, sent_at, enqueued_at, good_until, timeout_ms, claimed_at, started_at, finished_at, claimed_by::text,
    (select tasks.unknown_since from {schema}.tasks where tasks.id = %(id)s::uuid),
    error_code, error::text, progress::text, failed_attempts::text[]
from {schema}.all_tasks
where id = %(id)s::uuid;

-- name: get_worker_states
-- The newest snapshot of each worker, or all of one worker, newest first.
select
    worker_id::text, snapshot_at, hostname, pid, processes, concurrency, queues, tasks_running, tasks_claimed,
    memory_usage_mb, children_memory_mb, cpu_percent, children_cpu_percent, worker_started_at
from {schema}.worker_states as state
where case
    when %(worker_id)s::uuid is null
    then not exists (
        select from {schema}.worker_states as newer
        where newer.worker_id = state.worker_id
        and newer.snapshot_at > state.snapshot_at
    )
    else worker_id = %(worker_id)s::uuid
end
order by snapshot_at desc
limit %(limit)s::integer;

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

-- name: list_workers
with in_flight as (
    select
        claimed_by,
        count(*) filter (where status = 'CLAIMED') as claimed,
        count(*) filter (where status = 'RUNNING') as running
    from {schema}.tasks
    where status <> 'PENDING'
    group by claimed_by
)
select
    workers.id::text, workers.hostname, workers.pid, workers.processes, workers.concurrency, workers.queues,
    workers.library_version, workers.started_at,
    extract(epoch from greatest(clock_timestamp() - workers.heartbeat_at, interval '0'))::float8,
    coalesce(in_flight.claimed, 0), coalesce(in_flight.running, 0),
    newest_state.memory_usage_mb::float8, newest_state.children_memory_mb::float8, workers.app,
    workers.leave_requested_at
from {schema}.workers
left join in_flight on in_flight.claimed_by = workers.id
left join lateral (
    select memory_usage_mb, children_memory_mb
    from {schema}.worker_states
    where worker_states.worker_id = workers.id
    order by snapshot_at desc
    limit 1
) as newest_state on true
order by workers.started_at, workers.id;

-- name: find_workers
select id::text
from {schema}.workers
where id between %(lowest)s::uuid and %(highest)s::uuid
union
select worker_id::text
from {schema}.worker_states
where worker_id between %(lowest)s::uuid and %(highest)s::uuid
order by 1;

-- name: get_heartbeats
select id::text, heartbeat_at
from {schema}.workers
where id = any(%(ids)s::uuid[]);

-- name: request_heartbeat
select pg_notify('{control_channel}', id::text || ' ping')
from unnest(%(ids)s::uuid[]) as id;
