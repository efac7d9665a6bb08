-- name: release_tasks
-- Claims whose user code never began go back, as if nobody had claimed them: the attempt does not count. Only child processes that died
-- with one in their hands are counted, so that a task that kills them before it begins does not do so for ever.
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

-- name: release_interrupted
-- Begun, and interrupted by a shutdown: those that have a retry policy and attempts left go back, and the attempt does not count, whatever the policy
-- lists: the stop is not the task's fault. The others stay, and are ended by the statement that follows.
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

-- name: notify_new
select pg_notify(
    '{new_channel}',
    {schema}.news_of(true, %(priority)s::integer, %(enqueued_at)s::timestamptz, %(queue)s::text)
);

-- name: notify_freed
-- Capacity that others may be waiting for.
select pg_notify('{new_channel}', 'freed');

-- name: notify_everyone
select pg_notify('{new_channel}', '*');

-- name: report_progress
update {schema}.tasks
set progress = report.progress
from unnest(%(ids)s::uuid[], %(claim_nos)s::integer[], %(progress)s::json[]) as report (id, claim_no, progress)
where tasks.id = any(%(ids)s::uuid[])
and tasks.id = report.id
and tasks.claim_no = report.claim_no
and tasks.claimed_by = %(worker)s::uuid;

-- name: get_held
-- Every row that this worker owns, by the database's account.
select
    id::text, claim_no, task_name, queue_name, priority, greatest(enqueued_at, 'epoch'), attempts + 1, '', timeout_ms, false, root_id::text,
    cancel_requested_at is not null
from {schema}.tasks
where claimed_by = %(worker)s::uuid
and status <> 'PENDING';
