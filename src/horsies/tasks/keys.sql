-- name: take_key
-- One row: who has the key now; whether it was taken just now, or by this very send made before; whether the arguments are the
-- same. No row: somebody else was quicker than our look, and the next one will see them.
with holder as materialized (
    select
        keys.task_id,
        keys.send_id,
        keys.send_id = %(id)s::uuid as sent_by_us,
        keys.args_hash = %(args_hash)s::text as same_args,
        keys.send_id = %(id)s::uuid
        or exists (
            select
            from {schema}.tasks
            where tasks.id = keys.task_id
            -- What has not begun when its time is over has ended then, whether or not anybody has written that down.
            and (
                tasks.status = 'RUNNING'
                or tasks.good_until is null
                or tasks.good_until + keys.key_window > statement_timestamp()
            )
        )
        or exists (
            select
            from {schema}.finished
            where finished.id = keys.task_id
            and finished.finished_at > statement_timestamp() - keys.key_window
        )
        -- Its row is gone already, and its window not over.
        or coalesce(keys.ended_at > statement_timestamp() - keys.key_window, false) as holds
    from {schema}.keys
    where keys.task_name = %(task_name)s::text
    and keys.key = %(key)s::text
),
taken as (
    insert into {schema}.keys (task_name, key, task_id, send_id, args_hash, key_window)
    select
        %(task_name)s::text, %(key)s::text, %(id)s::uuid, %(id)s::uuid, %(args_hash)s::text,
        %(window_s)s::float8 * interval '1 second'
    where not exists (select from holder where holder.holds)
    on conflict (task_name, key) do update
    set
        task_id = excluded.task_id,
        send_id = excluded.send_id,
        args_hash = excluded.args_hash,
        key_window = excluded.key_window,
        -- Whose key it was, the last 20: such a task is not retried behind the back of its successor.
        former = (keys.former || keys.task_id)[greatest(1, cardinality(keys.former) - 18):],
        ended_at = null
    where keys.task_id = (select holder.task_id from holder)
    -- A retry of the holder, made since we looked, has left a mark here.
    and keys.send_id = (select holder.send_id from holder)
    returning task_id
)
select task_id::text, false, sent_by_us, same_args
from holder
where holds
union all
select task_id::text, true, true, true
from taken;

-- name: replace_pending
-- The task keeps its id, and its place in the line if both are due. A row: it was replaced; whoever has room is told, because its queue,
-- priority or moment may be another now.
with replaced as (
    update {schema}.tasks
    set
        queue_name = %(queue_name)s::text,
        priority = %(priority)s::integer,
        args = %(args)s::json,
        ready = due.at is null,
        enqueued_at = coalesce(due.at, least(tasks.enqueued_at, now())),
        good_until = %(good_until)s::timestamptz,
        timeout_ms = %(timeout_ms)s::integer,
        retry_delays_ms = %(retry_delays_ms)s::integer[],
        retry_jitter = %(retry_jitter)s::real,
        retry_for = %(retry_for)s::text[],
        trace = %(trace)s::text
    from (
        select case when asked.moment > now() then asked.moment end
        from (
            select coalesce(%(eta)s::timestamptz, statement_timestamp() + %(delay_s)s::float8 * interval '1 second')
        ) as asked (moment)
    ) as due (at)
    where tasks.id = %(holder)s::uuid
    and tasks.status = 'PENDING'
    -- One that waits for a retry has begun before.
    and tasks.attempts = 0
    and tasks.cancel_requested_at is null
    and (tasks.good_until is null or tasks.good_until > statement_timestamp())
    returning tasks.queue_name, tasks.priority, tasks.ready, tasks.enqueued_at
),
noted as (
    update {schema}.keys
    set
        send_id = %(id)s::uuid,
        args_hash = %(args_hash)s::text,
        key_window = %(window_s)s::float8 * interval '1 second'
    where keys.task_name = %(task_name)s::text
    and keys.key = %(key)s::text
    and keys.task_id = %(holder)s::uuid
    and exists (select from replaced)
)
select pg_notify('{new_channel}', {schema}.news_of(ready, priority, enqueued_at, queue_name))
from replaced;
