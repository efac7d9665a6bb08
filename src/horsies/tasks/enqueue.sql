-- name: take_key
-- Also run on callers' own connections, whose search_path is theirs: every operator, function and type is qualified (see `db/pooler.py`).
-- One row: the task that has the key; whether the key was taken now, or before by this very send; whether the arguments are the same. No
-- row: another send took the key after this statement's snapshot, and the next attempt will see it.
with holder as materialized (
    select
        keys.task_id,
        keys.send_id,
        keys.send_id operator(pg_catalog.=) %(id)s::pg_catalog.uuid as sent_by_us,
        keys.args_hash operator(pg_catalog.=) %(args_hash)s::pg_catalog.text as same_args,
        keys.send_id operator(pg_catalog.=) %(id)s::pg_catalog.uuid
        or exists (
            select
            from {schema}.tasks
            where tasks.id operator(pg_catalog.=) keys.task_id
            -- A task that has not started by its `good_until` has ended then, even if its row does not say so yet.
            and (
                tasks.status operator(pg_catalog.=) 'RUNNING'
                or tasks.good_until is null
                -- A qualified operator has no precedence over others.
                or (tasks.good_until operator(pg_catalog.+) keys.key_window) operator(pg_catalog.>) pg_catalog.statement_timestamp()
            )
        )
        or exists (
            select
            from {schema}.finished
            where finished.id operator(pg_catalog.=) keys.task_id
            and finished.finished_at
            operator(pg_catalog.>) (pg_catalog.statement_timestamp() operator(pg_catalog.-) keys.key_window)
        )
        -- The row of its task is deleted, and the key's window is not over.
        or coalesce(
            keys.ended_at operator(pg_catalog.>) (pg_catalog.statement_timestamp() operator(pg_catalog.-) keys.key_window),
            false
        ) as holds
    from {schema}.keys
    where keys.task_name operator(pg_catalog.=) %(task_name)s::pg_catalog.text
    and keys.key operator(pg_catalog.=) %(key)s::pg_catalog.text
),
taken_key as (
    insert into {schema}.keys (task_name, key, task_id, send_id, args_hash, key_window)
    select
        %(task_name)s::pg_catalog.text, %(key)s::pg_catalog.text, %(id)s::pg_catalog.uuid, %(id)s::pg_catalog.uuid,
        %(args_hash)s::pg_catalog.text,
        %(window_s)s::pg_catalog.float8 operator(pg_catalog.*) interval '1 second'
    where not exists (select from holder where holder.holds)
    on conflict (task_name, key) do update
    set
        task_id = excluded.task_id,
        send_id = excluded.send_id,
        args_hash = excluded.args_hash,
        key_window = excluded.key_window,
        -- The last 20 previous tasks: none of them is retried while its successor has the key.
        previous_task_ids = (keys.previous_task_ids operator(pg_catalog.||) keys.task_id)[
            greatest(1, pg_catalog.cardinality(keys.previous_task_ids) operator(pg_catalog.-) 18):
        ],
        ended_at = null
    where keys.task_id operator(pg_catalog.=) (select holder.task_id from holder)
    -- A retry of the holder since then has changed the send id.
    and keys.send_id operator(pg_catalog.=) (select holder.send_id from holder)
    returning task_id
)
select task_id::pg_catalog.text, false, sent_by_us, same_args
from holder
where holds
union all
select task_id::pg_catalog.text, true, true, true
from taken_key;

-- name: replace_pending_task
-- Also run on callers' own connections, whose search_path is theirs: every operator, function and type is qualified (see `db/pooler.py`).
-- The task keeps its id, and its position in the queue if both are due. A row: the task was replaced. Workers are notified, because its
-- queue, priority or time may have changed.
with replaced_task as (
    update {schema}.tasks
    set
        {sent_updates},
        args = %(args)s::pg_catalog.json,
        ready = due.at is null,
        enqueued_at = coalesce(due.at, least(tasks.enqueued_at, pg_catalog.now())),
        good_until = %(good_until)s::pg_catalog.timestamptz,
        -- Whether a worker can run it is determined again.
        unknown_since = null,
        refused_by = null,
        refusal = null
    from (
        select case when requested.moment operator(pg_catalog.>) pg_catalog.now() then requested.moment end
        from (
            select coalesce(
                %(eta)s::pg_catalog.timestamptz,
                pg_catalog.statement_timestamp()
                operator(pg_catalog.+) (%(delay_s)s::pg_catalog.float8 operator(pg_catalog.*) interval '1 second')
            )
        ) as requested (moment)
    ) as due (at)
    where tasks.id operator(pg_catalog.=) %(holder)s::pg_catalog.uuid
    and tasks.status operator(pg_catalog.=) 'PENDING'
    -- A task that waits for a retry has started before.
    and tasks.attempts operator(pg_catalog.=) 0
    and tasks.cancel_requested_at is null
    and (tasks.good_until is null or tasks.good_until operator(pg_catalog.>) pg_catalog.statement_timestamp())
    returning tasks.queue_name, tasks.priority, tasks.ready, tasks.enqueued_at
),
updated_key as (
    update {schema}.keys
    set
        send_id = %(id)s::pg_catalog.uuid,
        args_hash = %(args_hash)s::pg_catalog.text,
        key_window = %(window_s)s::pg_catalog.float8 operator(pg_catalog.*) interval '1 second'
    where keys.task_name operator(pg_catalog.=) %(task_name)s::pg_catalog.text
    and keys.key operator(pg_catalog.=) %(key)s::pg_catalog.text
    and keys.task_id operator(pg_catalog.=) %(holder)s::pg_catalog.uuid
    and exists (select from replaced_task)
)
select pg_catalog.pg_notify('{new_channel}', {schema}.wakeup_payload(ready, priority, enqueued_at, queue_name))
from replaced_task;

-- name: enqueue_tasks
-- Also run on callers' own connections, whose search_path is theirs: every operator, function and type is qualified (see `db/pooler.py`).
-- One statement for any number of tasks: the trigger notifies once for all of them.
insert into {schema}.tasks ({sent_columns}, id, args, ready, enqueued_at, good_until)
select
    {sent_params}, new.id, new.args, due.at is null, coalesce(due.at, pg_catalog.now()), %(good_until)s::pg_catalog.timestamptz
from unnest(%(ids)s::pg_catalog.uuid[], %(args)s::pg_catalog.json[]) as new (id, args)
cross join (
    -- A delay counts from now, also in a transaction that began long ago. Whether a time has passed is decided by the transaction's time,
    -- so that all batches of one send get the same answer.
    select case when requested.moment operator(pg_catalog.>) pg_catalog.now() then requested.moment end
    from (
        select coalesce(
            %(eta)s::pg_catalog.timestamptz,
            -- A qualified operator has no precedence over others.
            pg_catalog.statement_timestamp()
            operator(pg_catalog.+) (%(delay_s)s::pg_catalog.float8 operator(pg_catalog.*) interval '1 second')
        )
    ) as requested (moment)
) as due (at)
-- For this transaction only; see `notify_enqueued`.
cross join (select pg_catalog.set_config('horsies.notify', %(notify)s::pg_catalog.text, true)) as setting;

-- name: notify_enqueued
-- After the commit. All of them are due at the same time. If a task is gone, a worker has taken it already, and needs no notification.
select pg_notify('{new_channel}', {schema}.wakeup_payload(task.ready, task.priority, task.enqueued_at, task.queue_name))
from unnest(%(ids)s::uuid[]) as sent (id)
-- One by one by the primary key: for `= any` with a limit the planner may read the table from its start.
cross join lateral (
    select ready, priority, enqueued_at, queue_name
    from {schema}.tasks
    where id = sent.id
    and status = 'PENDING'
    offset 0
) as task
limit 1;

-- name: copy_tasks
-- The same for very many tasks that are due now. Columns that are not listed have the table's defaults.
copy {schema}.tasks (id, args, good_until, {sent_columns}) from stdin;

-- name: begin_send
begin isolation level read committed;

-- name: insert_probe
-- Waits for a first attempt that is still in progress: the id can be inserted only if that attempt was not committed, or if its task has
-- left `tasks`.
insert into {schema}.tasks (id, task_name)
values (%(id)s::uuid, '')
on conflict (id) do nothing;

-- name: delete_probe
-- No row: the first attempt was committed. True: its task has already ended. A statement of its own, so that its snapshot is taken after
-- the probe.
delete from {schema}.tasks
where id = %(id)s::uuid
and task_name = ''
returning exists (select from {schema}.finished where finished.id = %(id)s::uuid);

-- name: commit_send
commit;
