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
insert into {schema}.tasks (
    id, task_name, queue_name, priority, args, sent_at, enqueued_at, good_until,
    timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, attempts, claim_no, trace
)
select
    id, task_name, queue_name, priority, args, sent_at, statement_timestamp(),
    case when good_until > statement_timestamp() then good_until end,
    timeout_ms, retry_delays_ms, retry_jitter, retry_for,
    case
        when status = 'FAILED' or status = 'CANCELLED' and started_at is not null
        -- As for a retry by policy: the last 20, and of a long error its beginning and end.
        then (failed_attempts || json_build_object(
            'attempt', attempts,
            'error_code', error_code,
            'error', case
                when octet_length(error::text) > 16384
                then json_build_object(
                    'error_code', error_code,
                    'message', 'its error took ' || octet_length(error::text) || ' bytes; the beginning and the end are kept',
                    'data', json_build_object('truncated', left(error::text, 4000) || ' ... ' || right(error::text, 4000))
                )
                else error
            end,
            'worker', claimed_by,
            'started_at', started_at,
            'ended_at', finished_at
        ))[greatest(1, coalesce(cardinality(failed_attempts), 0) - 18):]
        else failed_attempts
    end,
    least(attempts, 1000000000),
    -- A repeated retry recognizes by this that it was done, even if the task has ended again without a claim.
    claim_no %% 2147483646 + 1,
    trace
from deleted_tasks
returning id::text;

-- name: renew_keys
update {schema}.keys
set send_id = gen_random_uuid()
where task_name = any(%(task_names)s::text[])
and task_id = any(%(ids)s::uuid[]);

-- name: commit_retry
commit;
