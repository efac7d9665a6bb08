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
    -- The array keeps the primary key the only way in, and locks the rows in order of their ids. The claim's number is looked up by
    -- its place in the sorted ids: a join would be planned as a nested loop, quadratic in the size of the batch.
    where id = any(%(ids)s::uuid[])
    and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
    and claimed_by = %(worker)s::uuid
    returning *
)
insert into {schema}.finished (
    id, task_name, queue_name, priority, status, args,
    result, error_code, error,
    sent_at, enqueued_at, good_until,
    timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, claimed_by, claimed_at, started_at, finished_at, root_id, node_id, trace
)
select
    ended.id, task_name, queue_name, priority, ending.status, args,
    ending.result, ending.error_code, ending.error,
    sent_at, enqueued_at, good_until,
    timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts + 1, ended.claim_no, claimed_by, claimed_at, started_at, statement_timestamp(), root_id, node_id, trace
from ended
join ending on ending.id = ended.id and ending.claim_no = ended.claim_no
returning id::text;

-- name: end_or_retry_tasks
-- The same guarded ending for attempts that failed while retries were left: the policy on the row decides, here and now,
-- whether it is the end. A task whose cancellation was asked for is never retried, nor one that would be due too late.
with ending as (
    select *
    from unnest(
        %(ids)s::uuid[],
        %(claim_nos)s::integer[],
        %(statuses)s::text[],
        %(error_codes)s::text[],
        %(errors)s::json[],
        %(wants_retry)s::boolean[],
        %(retry_after_ms)s::integer[]
    ) as ending (id, claim_no, status, error_code, error, wants_retry, retry_after_ms)
),
held as materialized (
    select
        tasks.*,
        ending.status as ending_status,
        ending.error_code,
        ending.error,
        due.at as due_at,
        coalesce(
            ending.status = 'FAILED'
            and (ending.wants_retry or ending.error_code = any(tasks.retry_for))
            and tasks.attempts < cardinality(tasks.retry_delays_ms)
            and tasks.cancel_requested_at is null
            and (tasks.good_until is null or due.at < tasks.good_until),
            false
        ) as retries
    from {schema}.tasks
    join ending on ending.id = tasks.id
    cross join lateral (
        select statement_timestamp() + interval '1 ms' * coalesce(
            ending.retry_after_ms,
            -- A row by hand may have no delay in that place: then it is none.
            coalesce(tasks.retry_delays_ms[tasks.attempts + 1], 0) * (1 + tasks.retry_jitter * (random() * 2 - 1))
        ) as at
    ) as due
    where tasks.id = any(%(ids)s::uuid[])
    and tasks.claim_no = ending.claim_no
    and tasks.claimed_by = %(worker)s::uuid
    order by tasks.id
    for update of tasks
),
retried as (
    update {schema}.tasks
    set
        status = 'PENDING',
        ready = false,
        enqueued_at = held.due_at,
        attempts = held.attempts + 1,
        claimed_by = null,
        claimed_at = null,
        lease_until = null,
        started_at = null,
        progress = null,
        -- The last 20 are kept, and of a long error its two ends: the row is written anew at each attempt. The cut is one of text,
        -- because JSON that holds \u0000 cannot be taken apart here.
        failed_attempts = (held.failed_attempts || json_build_object(
            'attempt', held.attempts + 1,
            'error_code', held.error_code,
            'error', case
                when octet_length(held.error::text) > 16384
                then json_build_object(
                    'error_code', held.error_code,
                    'message', 'its error took ' || octet_length(held.error::text) || ' bytes; the beginning and the end are kept',
                    'data', json_build_object(
                        'truncated', left(held.error::text, 4000) || ' ... ' || right(held.error::text, 4000)
                    )
                )
                else held.error
            end,
            'worker', held.claimed_by,
            'started_at', held.started_at,
            'ended_at', statement_timestamp()
        ))[greatest(1, coalesce(cardinality(held.failed_attempts), 0) - 18):]
    from held
    where tasks.id = any(%(ids)s::uuid[])
    and tasks.id = held.id
    and held.retries
),
deleted as (
    delete from {schema}.tasks
    using held
    where tasks.id = any(%(ids)s::uuid[])
    and tasks.id = held.id
    and not held.retries
),
moved as (
    insert into {schema}.finished (
        id, task_name, queue_name, priority, status, args,
        error_code, error,
        sent_at, enqueued_at, good_until,
        timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
        attempts, claim_no, claimed_by, claimed_at, started_at, finished_at, root_id, node_id, trace
    )
    select
        id, task_name, queue_name, priority, ending_status, args,
        error_code, error,
        sent_at, enqueued_at, good_until,
        timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
        attempts + 1, claim_no, claimed_by, claimed_at, started_at, statement_timestamp(), root_id, node_id, trace
    from held
    where not retries
)
select id::text, case when retries then extract(epoch from due_at - clock_timestamp())::float8 end
from held;

-- name: notify_done
-- After the commit, and only if somebody waits (db/channels.py): whoever does holds the lock, shared. Two that ask for it at the same moment
-- notify in vain.
select pg_notify('{done_channel}', %(payload)s::text)
where not pg_try_advisory_xact_lock({waiters_lock});
