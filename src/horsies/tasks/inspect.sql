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
