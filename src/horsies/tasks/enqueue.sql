-- name: enqueue_tasks
-- Also run on callers' own connections, whose search_path is theirs: every operator, function and type has its schema (see `db/session.py`).
-- One statement however many there are: the trigger notifies once for all of them.
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
    -- A delay counts from now, also in a transaction that was begun long ago. Whether a moment has passed is asked of the
    -- transaction's own time, so that all slices of one send get the same answer.
    select case when asked.moment operator(pg_catalog.>) pg_catalog.now() then asked.moment end
    from (
        select coalesce(
            %(eta)s::pg_catalog.timestamptz,
            -- Named with its schema, an operator has no precedence over others.
            pg_catalog.statement_timestamp()
            operator(pg_catalog.+) (%(delay_s)s::pg_catalog.float8 operator(pg_catalog.*) interval '1 second')
        )
    ) as asked (moment)
) as due (at)
-- For this transaction only; see `notify_enqueued`.
cross join (select pg_catalog.set_config('horsies.told', %(told)s::pg_catalog.text, true)) as telling;

-- name: notify_enqueued
-- After the commit. All of them were due at the same moment; what is gone has been taken by somebody, and needs no waking.
select pg_notify('{new_channel}', {schema}.news_of(task.ready, task.priority, task.enqueued_at, task.queue_name))
from unnest(%(ids)s::uuid[]) as sent (id)
-- One by one, by the primary key: for `= any` and a limit the planner may prefer to read the table from its start.
cross join lateral (
    select ready, priority, enqueued_at, queue_name
    from {schema}.tasks
    where id = sent.id
    and status = 'PENDING'
    offset 0
) as task
limit 1;

-- name: copy_tasks
-- The same for very many that are due now: what is not given is what the table's defaults say.
copy {schema}.tasks (
    id, args, task_name, queue_name, priority, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, trace
) from stdin;

-- name: begin_send
begin isolation level read committed;

-- name: probe
-- Waits for a first attempt that is still under way: its id can be inserted only if it has not been committed, or has left `tasks`.
insert into {schema}.tasks (id, task_name)
values (%(id)s::uuid, '')
on conflict (id) do nothing;

-- name: withdraw_probe
-- No row: the first attempt is there. True: it has been run and has ended. A statement of its own, so that its snapshot is
-- younger than the probe.
delete from {schema}.tasks
where id = %(id)s::uuid
and task_name = ''
returning exists (select from {schema}.finished where finished.id = %(id)s::uuid);

-- name: commit_send
commit;
