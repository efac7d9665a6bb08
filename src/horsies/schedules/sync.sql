-- name: take_turns
-- Two that store their declarations at once follow each other, also where there is no row yet that they could wait for: the second would put a schedule
-- back to a slot that a tick has dealt with meanwhile. Ticks are not kept out, only others that take turns.
lock table {schema}.schedules in share update exclusive mode;

-- name: lock_schedules
-- All of them, in one order. A tick waits for nobody.
select name, pattern, timezone, enabled, next_slot_at, paused_at is not null, declared, app
from {schema}.schedules
order by name
for update;

-- name: store_schedules
-- What has not changed is not written. The arguments travel as text, or they would be written anew on the way. A row that is paused stays so.
insert into {schema}.schedules (
    name, task_name, queue_name, priority, args, timeout_ms, retry_delays_ms, retry_jitter, retry_for,
    pattern, timezone, catch_up_missed, max_catch_up_runs, jitter_ms, overlap, enabled, next_slot_at, app
)
select
    name, task_name, queue_name, priority, args::json, timeout_ms, retry_delays_ms, retry_jitter, retry_for,
    pattern, timezone, catch_up_missed, max_catch_up_runs, jitter_ms, overlap, enabled, next_slot_at, %(app)s::text
from json_to_recordset(%(schedules)s::json) as declared (
    name text, task_name text, queue_name text, priority integer, args text, timeout_ms integer,
    retry_delays_ms integer[], retry_jitter real, retry_for text[],
    pattern jsonb, timezone text, catch_up_missed boolean, max_catch_up_runs integer, jitter_ms integer, overlap text,
    enabled boolean, next_slot_at timestamptz
)
order by name
on conflict (name) do update
set
    task_name = excluded.task_name, queue_name = excluded.queue_name, priority = excluded.priority,
    args = excluded.args, timeout_ms = excluded.timeout_ms, retry_delays_ms = excluded.retry_delays_ms,
    retry_jitter = excluded.retry_jitter, retry_for = excluded.retry_for, pattern = excluded.pattern,
    timezone = excluded.timezone, catch_up_missed = excluded.catch_up_missed,
    max_catch_up_runs = excluded.max_catch_up_runs, jitter_ms = excluded.jitter_ms, overlap = excluded.overlap,
    enabled = excluded.enabled, next_slot_at = excluded.next_slot_at, declared = true, app = excluded.app, changed_at = now()
where (
    schedules.task_name, schedules.queue_name, schedules.priority, schedules.args::text, schedules.timeout_ms,
    schedules.retry_delays_ms, schedules.retry_jitter, schedules.retry_for, schedules.pattern, schedules.timezone,
    schedules.catch_up_missed, schedules.max_catch_up_runs, schedules.jitter_ms, schedules.overlap,
    schedules.enabled, schedules.declared, schedules.app
) is distinct from (
    excluded.task_name, excluded.queue_name, excluded.priority, excluded.args::text, excluded.timeout_ms,
    excluded.retry_delays_ms, excluded.retry_jitter, excluded.retry_for, excluded.pattern, excluded.timezone,
    excluded.catch_up_missed, excluded.max_catch_up_runs, excluded.jitter_ms, excluded.overlap,
    excluded.enabled, true, excluded.app
)
returning name;

-- name: retire_schedules
-- What is declared no more stays, with its history, but is never due. Rows of other apps are theirs to remove.
update {schema}.schedules
set declared = false, enabled = false, next_slot_at = null, changed_at = now()
where declared
and app = %(app)s::text
and name <> all(%(names)s::text[])
returning name;

-- name: record_dropped
-- Slots that had come, but whose schedule was changed before anybody dealt with them.
insert into {schema}.schedule_runs (schedule_name, outcome, slot_at, last_slot_at)
select name, 'MISSED', slot_at, slot_at
from unnest(%(names)s::text[], %(slots)s::timestamptz[]) as dropped (name, slot_at);

-- name: notify_schedules
-- Schedulers that sleep look when they have to wake now.
select pg_notify('{schedules_channel}', '');
