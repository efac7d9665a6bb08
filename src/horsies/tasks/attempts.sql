-- name: get_attempts
-- The last attempt is in the row itself. Which child runs it now is known from the last heartbeat of its worker.
select
    task.status, task.attempts, task.claim_no, task.claimed_by::text, task.started_at, task.finished_at,
    task.error_code, task.error::text, task.child_pid, task.failed_attempts::text[],
    case when task.status = 'RUNNING' then (
        select workers.children::text
        from {schema}.workers
        where workers.id = task.claimed_by
    ) end,
    array(
        select attempt_logs.claim_no
        from {schema}.attempt_logs
        where attempt_logs.task_id = %(id)s::uuid
    ),
    coalesce(task.is_sensitive, false)
from {schema}.all_tasks as task
where task.id = %(id)s::uuid;

-- name: get_attempt_logs
-- The newest attempts that have lines.
select task.task_name, coalesce(task.is_sensitive, false), logs.claim_no, logs.attempt, logs.records::text, logs.left_out, logs.stored_at
from {schema}.all_tasks as task
cross join lateral (
    select *
    from {schema}.attempt_logs
    where attempt_logs.task_id = %(id)s::uuid
    and (attempt_logs.claim_no = %(claim_no)s::integer or %(claim_no)s::integer is null)
    and (attempt_logs.claim_no < %(before)s::integer or %(before)s::integer is null)
    order by attempt_logs.claim_no desc
    limit %(limit)s::integer
) as logs
where task.id = %(id)s::uuid
order by logs.claim_no;
