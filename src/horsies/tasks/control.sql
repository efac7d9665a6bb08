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
insert into {schema}.finished ({moved_columns}, status, attempts, error_code, error, finished_at)
select {moved_columns}, %(status)s::text, attempts, %(error_code)s::text, own_error, statement_timestamp()
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

-- name: get_finished_tasks
select
    task.id::text, claim_no, task_name, status, finished_at,
    coalesce(good_until <= statement_timestamp(), false), node_id is not null
from unnest(%(ids)s::uuid[]) as wanted (id)
-- One by one: `id = any(...)` reads the whole partition if it was filled and not analysed yet.
cross join lateral (
    select id, claim_no, task_name, status, finished_at, good_until, node_id
    from {schema}.finished
    where finished.id = wanted.id
    offset 0
) as task
order by task.id;

-- name: get_existing_ids
select id::text
from {schema}.all_tasks
where id = any(%(ids)s::uuid[]);

-- name: begin_retry
begin isolation level read committed;

-- name: lock_keys
-- Lock the keys that these tasks have or had: no send takes one over until the commit. Returns which tasks have lost their key to another.
select previous_task_ids::text[]
from {schema}.keys
where task_name = any(%(task_names)s::text[])
and (task_id = any(%(ids)s::uuid[]) or previous_task_ids && %(ids)s::uuid[])
order by task_name, key
for update;

-- name: requeue_tasks
with deleted_tasks as (
    delete from {schema}.finished
    where id = any(%(ids)s::uuid[])
    -- Only the end that was read before. The ids are sorted.
    and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
    and finished_at between %(since)s::timestamptz and %(until)s::timestamptz
    and node_id is null
    returning *
)
insert into {schema}.tasks ({sent_columns}, id, args, sent_at, enqueued_at, good_until, failed_attempts, attempts, claim_no)
select
    {sent_columns}, id, args, sent_at, statement_timestamp(),
    case when good_until > statement_timestamp() then good_until end,
    case
        -- Also one that has succeeded, without an error.
        when status = 'FAILED' or started_at is not null
        then {schema}.add_failed_attempt(
            failed_attempts, attempts, claim_no, error_code, error, claimed_by, child_pid, started_at, finished_at, true
        )
        else failed_attempts
    end,
    least(attempts, 1000000000),
    -- A repeated retry recognizes by this that it was done, even if the task has ended again without a claim.
    claim_no %% 2147483646 + 1
from deleted_tasks
returning id::text;

-- name: renew_keys
update {schema}.keys
set send_id = gen_random_uuid()
where task_name = any(%(task_names)s::text[])
and task_id = any(%(ids)s::uuid[]);

-- name: commit_retry
commit;

-- name: begin_purge
begin isolation level read committed;

-- name: purge_finished
-- With what their attempts have logged.
with deleted_tasks as (
    delete from {schema}.finished
    where id = any(%(ids)s::uuid[])
    -- The ids are sorted.
    and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
    and finished_at between %(since)s::timestamptz and %(until)s::timestamptz
    returning id
),
deleted_logs as (
    delete from {schema}.attempt_logs
    using deleted_tasks
    where attempt_logs.task_id = any(%(ids)s::uuid[])
    and attempt_logs.task_id = deleted_tasks.id
)
select id
from deleted_tasks;

-- name: commit_purge
commit;
