-- name: release_tasks
-- Release claims whose user code never started: the attempt does not count. Only child processes that died while they held the task are
-- counted, so that a task that kills them before it starts does not do so forever.
update {schema}.tasks
set
    status = 'PENDING',
    claimed_by = null,
    claimed_at = null,
    lease_until = null,
    started_at = null,
    child_deaths = greatest(child_deaths, (%(child_deaths)s::integer[])[width_bucket(id, %(ids)s::uuid[])])
where id = any(%(ids)s::uuid[])
and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
and claimed_by = %(worker)s::uuid
returning tasks.id::text;

-- name: release_interrupted_tasks
-- Release running tasks that a shutdown interrupted, if they have a retry policy and attempts left. The attempt does not count, whatever
-- codes the policy lists: the stop is not the task's fault. The other tasks stay, and the statement that follows ends them.
update {schema}.tasks
set
    status = 'PENDING',
    claimed_by = null,
    claimed_at = null,
    lease_until = null,
    started_at = null,
    progress = null
where id = any(%(ids)s::uuid[])
and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
and claimed_by = %(worker)s::uuid
and tasks.attempts < cardinality(tasks.retry_delays_ms)
and tasks.cancel_requested_at is null
returning tasks.id::text;

-- name: notify_new_tasks
select pg_notify(
    '{new_channel}',
    {schema}.wakeup_payload(true, %(priority)s::integer, %(enqueued_at)s::timestamptz, %(queue)s::text)
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
select
    id::text, claim_no, task_name, queue_name, priority, greatest(enqueued_at, 'epoch'), attempts + 1, '', timeout_ms, false, root_id::text,
    cancel_requested_at is not null
from {schema}.tasks
where claimed_by = %(worker)s::uuid
and status <> 'PENDING';
