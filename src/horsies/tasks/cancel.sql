-- name: begin_cancel
begin isolation level read committed;

-- name: lock_tasks
-- Held until the end of the transaction, so that no task changes between the statements below.
select status
from {schema}.tasks
where id = any(%(ids)s::uuid[])
order by id
for update;

-- name: end_unstarted_tasks
-- Tasks that have not started end at once, as cancelled or as expired. A worker that holds one as CLAIMED finds no row when it tries to
-- start it.
with deleted_tasks as (
    delete from {schema}.tasks
    where id = any(%(ids)s::uuid[])
    and status <> 'RUNNING'
    -- Errors of the library contain the id of their task.
    returning
        *,
        (%(error)s::jsonb || jsonb_build_object('data', jsonb_build_object('task_id', tasks.id)))::json as own_error
),
resolved_nodes as (
    -- Nodes of workflows end with their task. The maintenance leader finds and continues these workflows.
    update {schema}.nodes
    set status = 'FAILED', error = deleted_tasks.own_error, finished_at = statement_timestamp()
    from deleted_tasks
    -- One probe of the primary key per row, as in `workflows/advance.sql`: searching the array for each node would be quadratic.
    where nodes.id = any(array[deleted_tasks.node_id])
    and case when nodes.task_id = deleted_tasks.id then nodes.status = 'ENQUEUED' end
)
insert into {schema}.finished (
    id, task_name, queue_name, priority, status, args,
    error_code, error,
    sent_at, enqueued_at, good_until,
    timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, claimed_by, claimed_at, started_at, finished_at, root_id, node_id, trace
)
select
    id, task_name, queue_name, priority, %(status)s::text, args,
    %(error_code)s::text, own_error,
    sent_at, enqueued_at, good_until,
    timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, null, null, null, statement_timestamp(), root_id, node_id, trace
from deleted_tasks
returning id::text;

-- name: request_cancel
-- Running tasks get a request. The column decides: the worker reads it at each heartbeat. The notification only says that there is
-- something to read, because any session can send one.
with running_tasks as (
    update {schema}.tasks
    set cancel_requested_at = coalesce(cancel_requested_at, statement_timestamp())
    where id = any(%(ids)s::uuid[])
    and status = 'RUNNING'
    returning id, claimed_by
)
select id::text, pg_notify('{control_channel}', claimed_by::text || ' cancel ' || id::text)
from running_tasks;

-- name: commit_cancel
commit;

-- name: get_finished_ids
select wanted.id::text
from unnest(%(ids)s::uuid[]) as wanted (id)
where exists (select from {schema}.finished where finished.id = wanted.id);
