-- fragment: unclaimed
status = 'PENDING', claimed_by = null, claimed_at = null, lease_until = null, started_at = null

-- fragment: is_held
-- The array makes the primary key the only access path, and locks the rows in order of their ids. The claim number is looked up by its
-- position in the sorted ids: a join would be planned as a nested loop, quadratic in the size of the batch.
id = any(%(ids)s::uuid[])
and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
and claimed_by = %(worker)s::uuid

-- name: finish_tasks
-- The only way to finish a claimed task: a row moves from `tasks` to `finished` only if this worker's claim still holds it. A row that is
-- not returned was ended or taken by another process, which is a normal outcome.
with results as (
    select *
    from unnest(
        %(ids)s::uuid[],
        %(claim_nos)s::integer[],
        %(statuses)s::text[],
        %(results)s::json[],
        %(error_codes)s::text[],
        %(errors)s::json[],
        %(child_pids)s::integer[]
    ) as results (task_id, held_no, status, result, error_code, error, child_pid)
),
deleted_tasks as (
    delete from {schema}.tasks
    where {is_held}
    returning *
)
insert into {schema}.finished ({moved_columns}, status, attempts, claimed_by, claimed_at, started_at, result, error_code, error, child_pid, finished_at)
select
    {moved_columns}, results.status, attempts + 1, claimed_by, claimed_at, started_at, result, error_code, error, child_pid,
    statement_timestamp()
from deleted_tasks
join results on results.task_id = deleted_tasks.id and results.held_no = deleted_tasks.claim_no
returning id::text;

-- name: end_or_retry_tasks
-- The same for attempts that failed while retries were left: the policy in the row decides whether the task ends. A task with a cancel
-- request is never retried, nor one that would be due after its `good_until`.
with results as (
    select *
    from unnest(
        %(ids)s::uuid[],
        %(claim_nos)s::integer[],
        %(statuses)s::text[],
        %(error_codes)s::text[],
        %(errors)s::json[],
        %(child_pids)s::integer[],
        %(wants_retry)s::boolean[],
        %(retry_after_ms)s::integer[]
    ) as results (id, claim_no, status, error_code, error, child_pid, wants_retry, retry_after_ms)
),
held_tasks as materialized (
    select
        tasks.*,
        results.status as result_status,
        results.error_code,
        results.error,
        results.child_pid,
        due.at as due_at,
        coalesce(
            results.status = 'FAILED'
            and (results.wants_retry or results.error_code = any(tasks.retry_for))
            and tasks.attempts < cardinality(tasks.retry_delays_ms)
            and tasks.cancel_requested_at is null
            and (tasks.good_until is null or due.at < tasks.good_until),
            false
        ) as retries
    from {schema}.tasks
    join results on results.id = tasks.id
    cross join lateral (
        select statement_timestamp() + interval '1 ms' * coalesce(
            results.retry_after_ms,
            -- A hand-written row may have no delay at that position: then there is none.
            coalesce(tasks.retry_delays_ms[tasks.attempts + 1], 0) * (1 + tasks.retry_jitter * (random() * 2 - 1))
        ) as at
    ) as due
    where tasks.id = any(%(ids)s::uuid[])
    and tasks.claim_no = results.claim_no
    and tasks.claimed_by = %(worker)s::uuid
    order by tasks.id
    for update of tasks
),
retried_tasks as (
    update {schema}.tasks
    set
        {unclaimed},
        ready = false,
        enqueued_at = held_tasks.due_at,
        attempts = held_tasks.attempts + 1,
        progress = null,
        failed_attempts = {schema}.add_failed_attempt(
            held_tasks.failed_attempts, held_tasks.attempts + 1, held_tasks.claim_no, held_tasks.error_code, held_tasks.error,
            held_tasks.claimed_by, held_tasks.child_pid, held_tasks.started_at, statement_timestamp(), true
        )
    from held_tasks
    where tasks.id = any(%(ids)s::uuid[])
    and tasks.id = held_tasks.id
    and held_tasks.retries
),
deleted_tasks as (
    delete from {schema}.tasks
    using held_tasks
    where tasks.id = any(%(ids)s::uuid[])
    and tasks.id = held_tasks.id
    and not held_tasks.retries
),
moved_tasks as (
    insert into {schema}.finished ({moved_columns}, status, attempts, claimed_by, claimed_at, started_at, error_code, error, child_pid, finished_at)
    select
        {moved_columns}, result_status, attempts + 1, claimed_by, claimed_at, started_at, error_code, error, child_pid,
        statement_timestamp()
    from held_tasks
    where not retries
)
select
    id::text, case when retries then extract(epoch from due_at - clock_timestamp())::float8 end,
    task_name, attempts + 1, greatest(attempts, cardinality(retry_delays_ms)) + 1, error_code
from held_tasks;

-- name: store_logs
-- Before the statements that end these claims, because those delete or release the rows. The lock keeps them held until then.
with logs as (
    select *
    from unnest(
        %(ids)s::uuid[],
        %(claim_nos)s::integer[],
        %(attempts)s::integer[],
        %(records)s::json[],
        %(left_out)s::integer[]
    ) as logs (task_id, held_no, attempt, records, left_out)
),
held_tasks as materialized (
    select tasks.id, tasks.claim_no
    from {schema}.tasks
    where {is_held}
    order by tasks.id
    for update of tasks
)
insert into {schema}.attempt_logs (task_id, claim_no, attempt, records, left_out)
select logs.task_id, logs.held_no, logs.attempt, logs.records, logs.left_out
from held_tasks
join logs on logs.task_id = held_tasks.id and logs.held_no = held_tasks.claim_no
on conflict (task_id, claim_no) do nothing;

-- name: notify_done
-- After the commit, and only if a process waits (db/channels.py): waiters hold the lock in shared mode. If two processes try the lock at
-- the same time, an unneeded notification is sent.
select pg_notify('{done_channel}', %(payload)s::text)
where not pg_try_advisory_xact_lock({waiters_lock});

-- name: release_tasks
-- Release claims whose user code never started: the attempt does not count. Only child processes that died while they held the task are
-- counted, so that a task that kills them before it starts does not do so forever.
update {schema}.tasks
set
    {unclaimed},
    child_deaths = greatest(child_deaths, (%(child_deaths)s::integer[])[width_bucket(id, %(ids)s::uuid[])])
where {is_held}
returning tasks.id::text;

-- name: release_interrupted_tasks
-- Release running tasks that a shutdown interrupted, if they have a retry policy and attempts left. The attempt does not count, whatever
-- codes the policy lists: the stop is not the task's fault. The other tasks stay, and the statement that follows ends them.
update {schema}.tasks
set
    {unclaimed},
    progress = null,
    failed_attempts = {schema}.add_failed_attempt(
        failed_attempts, attempts + 1, claim_no,
        (%(error_codes)s::text[])[width_bucket(id, %(ids)s::uuid[])],
        (%(errors)s::json[])[width_bucket(id, %(ids)s::uuid[])],
        claimed_by,
        (%(child_pids)s::integer[])[width_bucket(id, %(ids)s::uuid[])],
        started_at, statement_timestamp(), false
    )
where {is_held}
and tasks.attempts < cardinality(tasks.retry_delays_ms)
and tasks.cancel_requested_at is null
returning tasks.id::text;

-- name: notify_new_tasks
select pg_notify(
    '{new_channel}',
    -- For any worker: the one that releases them may not be able to run them, or is stopping.
    'any ' || {schema}.wakeup_payload(true, %(priority)s::integer, %(enqueued_at)s::timestamptz, %(queue)s::text)
);

-- name: notify_capacity_freed
-- Other workers may wait for this capacity.
select pg_notify('{new_channel}', 'freed');

-- name: notify_all_queues
select pg_notify('{new_channel}', '*');

-- name: report_progress
update {schema}.tasks
set progress = report.progress
from unnest(%(ids)s::uuid[], %(claim_nos)s::integer[], %(progress)s::json[]) as report (id, claim_no, progress)
where tasks.id = any(%(ids)s::uuid[])
and tasks.id = report.id
and tasks.claim_no = report.claim_no
and tasks.claimed_by = %(worker)s::uuid;

-- name: get_held_tasks
-- All rows that this worker owns in the database.
select {held_columns}
from {schema}.tasks
where claimed_by = %(worker)s::uuid
and status <> 'PENDING';
