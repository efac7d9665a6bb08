-- name: finish_tasks
-- The one guarded ending: a row moves from `tasks` to `finished` only if this worker's very claim still holds it. What is
-- not returned was ended, or taken, by somebody else: a normal outcome.
with ending as (
    select *
    from unnest(
        %(ids)s::uuid[],
        %(claim_nos)s::integer[],
        %(statuses)s::text[],
        %(results)s::json[],
        %(error_codes)s::text[],
        %(errors)s::json[]
    ) as ending (id, claim_no, status, result, error_code, error)
),
ended as (
    delete from {schema}.tasks
    using ending
    -- The array keeps the primary key the only way in, and locks the rows in order of their ids.
    where tasks.id = any(%(ids)s::uuid[])
    and tasks.id = ending.id
    and tasks.claim_no = ending.claim_no
    and tasks.claimed_by = %(worker)s::uuid
    returning
        tasks.id, tasks.task_name, tasks.queue_name, tasks.priority, ending.status, tasks.args,
        ending.result, ending.error_code, ending.error,
        tasks.sent_at, tasks.enqueued_at, tasks.good_until, tasks.attempts, tasks.claim_no,
        tasks.claimed_by, tasks.claimed_at, tasks.started_at
)
insert into {schema}.finished (
    id, task_name, queue_name, priority, status, args,
    result, error_code, error,
    sent_at, enqueued_at, good_until, attempts, claim_no,
    claimed_by, claimed_at, started_at, finished_at
)
select
    id, task_name, queue_name, priority, status, args,
    result, error_code, error,
    sent_at, enqueued_at, good_until, attempts + 1, claim_no,
    claimed_by, claimed_at, started_at, clock_timestamp()
from ended
returning id::text;

-- name: notify_done
select pg_notify('{done_channel}', %(payload)s::text);
