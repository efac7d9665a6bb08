-- name: enqueue_tasks
-- Also run on callers' own connections, whose search_path is theirs: every operator, function and type is qualified (see `db/session.py`).
-- One statement for any number of tasks: the trigger notifies once for all of them.
insert into {schema}.tasks (
    id, task_name, queue_name, priority, args, ready, enqueued_at, good_until,
    timeout_ms, retry_delays_ms, retry_jitter, retry_for, trace
)
select
    new.id, %(task_name)s::pg_catalog.text, %(queue_name)s::pg_catalog.text, %(priority)s::integer, new.args,
    due.at is null, coalesce(due.at, pg_catalog.now()), %(good_until)s::pg_catalog.timestamptz,
    %(timeout_ms)s::integer, %(retry_delays_ms)s::integer[], %(retry_jitter)s::real, %(retry_for)s::pg_catalog.text[],
    %(trace)s::pg_catalog.text
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
copy {schema}.tasks (
    id, args, task_name, queue_name, priority, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, trace
) from stdin;

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
