-- name: begin_cancel
begin isolation level read committed;

-- name: lock_tasks
-- Held until the end, so that no task can move between the statements below.
select status
from {schema}.tasks
where id = any(%(ids)s::uuid[])
order by id
for update;

-- name: end_unbegun
-- What has not begun ends at once, as cancelled or as expired; a worker that holds it as CLAIMED finds it gone when it wants to start it.
with gone as (
    delete from {schema}.tasks
    where id = any(%(ids)s::uuid[])
    and status <> 'RUNNING'
    -- The library's errors name their task.
    returning
        *,
        (%(error)s::jsonb || jsonb_build_object('data', jsonb_build_object('task_id', tasks.id)))::json as own_error
),
resolved as (
    -- Nodes of workflows end with their task; what follows from it is the keeper's to find.
    update {schema}.nodes
    set status = 'FAILED', error = gone.own_error, finished_at = statement_timestamp()
    from gone
    -- One probe of the primary key for each, as in `workflows/advance.sql`: a search of the array for each node would be quadratic.
    where nodes.id = any(array[gone.node_id])
    and case when nodes.task_id = gone.id then nodes.status = 'ENQUEUED' end
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
from gone
returning id::text;

-- name: ask_to_cancel
-- What runs is asked. The row decides: its worker reads it at each heartbeat. The notification only says "look now", because anyone may send one.
with asked as (
    update {schema}.tasks
    set cancel_requested_at = coalesce(cancel_requested_at, statement_timestamp())
    where id = any(%(ids)s::uuid[])
    and status = 'RUNNING'
    returning id, claimed_by
)
select id::text, pg_notify('{control_channel}', claimed_by::text || ' cancel ' || id::text)
from asked;

-- name: commit_cancel
commit;

-- name: get_finished
select wanted.id::text
from unnest(%(ids)s::uuid[]) as wanted (id)
where exists (select from {schema}.finished where finished.id = wanted.id);
