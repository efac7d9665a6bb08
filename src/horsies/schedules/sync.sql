-- name: lock_schedules_table
-- Two processes that store their declarations must not overlap, also where there is no row yet to wait for: the second would reset a
-- schedule to a slot that a tick has decided since. Ticks are not blocked, only other processes that take this lock.
lock table {schema}.schedules in share update exclusive mode;

-- fragment: stored_schedule
name, pattern, timezone, enabled, next_slot_at, paused_at is not null, declared, app, is_dynamic

-- name: lock_schedules
-- All that apps have declared, and those with these names, in one order. A tick does not wait for locked rows.
select {stored_schedule}
from {schema}.schedules
where not is_dynamic
or name = any(%(names)s::text[])
order by name
for update;

-- name: lock_one_schedule
select {stored_schedule}
from {schema}.schedules
where name = %(name)s::text
for update;

-- name: store_schedules
-- Unchanged rows are not written. The arguments are passed as text, so that their JSON stays as it is. A paused row stays paused.
insert into {schema}.schedules (
    name, task_name, queue_name, priority, args, timeout_ms, retry_delays_ms, retry_jitter, retry_for, is_sensitive, on_failure,
    pattern, timezone, catch_up_missed, max_catch_up_runs, jitter_ms, overlap, enabled, next_slot_at, app, is_dynamic
)
select
    name, task_name, queue_name, priority, args::json, timeout_ms, retry_delays_ms, retry_jitter, retry_for, is_sensitive, on_failure,
    pattern, timezone, catch_up_missed, max_catch_up_runs, jitter_ms, overlap, enabled, next_slot_at, %(app)s::text,
    %(is_dynamic)s::boolean
from json_to_recordset(%(schedules)s::json) as declared (
    name text, task_name text, queue_name text, priority integer, args text, timeout_ms integer,
    retry_delays_ms integer[], retry_jitter real, retry_for text[], is_sensitive boolean, on_failure text,
    pattern jsonb, timezone text, catch_up_missed boolean, max_catch_up_runs integer, jitter_ms integer, overlap text,
    enabled boolean, next_slot_at timestamptz
)
order by name
on conflict (name) do update
set
    task_name = excluded.task_name, queue_name = excluded.queue_name, priority = excluded.priority,
    args = excluded.args, timeout_ms = excluded.timeout_ms, retry_delays_ms = excluded.retry_delays_ms,
    retry_jitter = excluded.retry_jitter, retry_for = excluded.retry_for, is_sensitive = excluded.is_sensitive,
    on_failure = excluded.on_failure, pattern = excluded.pattern,
    timezone = excluded.timezone, catch_up_missed = excluded.catch_up_missed,
    max_catch_up_runs = excluded.max_catch_up_runs, jitter_ms = excluded.jitter_ms, overlap = excluded.overlap,
    enabled = excluded.enabled, next_slot_at = excluded.next_slot_at, declared = true, app = excluded.app, changed_at = now()
-- An app must not take over what was created at run time, nor the other way round.
where schedules.is_dynamic = excluded.is_dynamic
and (
    schedules.task_name, schedules.queue_name, schedules.priority, schedules.args::text, schedules.timeout_ms,
    schedules.retry_delays_ms, schedules.retry_jitter, schedules.retry_for, schedules.is_sensitive,
    schedules.on_failure, schedules.pattern, schedules.timezone,
    schedules.catch_up_missed, schedules.max_catch_up_runs, schedules.jitter_ms, schedules.overlap,
    schedules.enabled, schedules.declared, schedules.app
) is distinct from (
    excluded.task_name, excluded.queue_name, excluded.priority, excluded.args::text, excluded.timeout_ms,
    excluded.retry_delays_ms, excluded.retry_jitter, excluded.retry_for, excluded.is_sensitive,
    excluded.on_failure, excluded.pattern, excluded.timezone,
    excluded.catch_up_missed, excluded.max_catch_up_runs, excluded.jitter_ms, excluded.overlap,
    excluded.enabled, true, excluded.app
)
returning name;

-- name: disable_schedules
-- A schedule that is not declared any more keeps its row and its history, but is never due. Rows of other apps are not touched.
update {schema}.schedules
set declared = false, enabled = false, next_slot_at = null, changed_at = now()
where declared
and not is_dynamic
and app = %(app)s::text
and name <> all(%(names)s::text[])
returning name;

-- name: delete_schedule
delete from {schema}.schedules
where name = %(name)s::text;

-- name: record_missed_slots
-- Slots that were due when their schedule was changed, without a decision.
insert into {schema}.schedule_runs (schedule_name, outcome, slot_at, last_slot_at)
select name, 'MISSED', slot_at, slot_at
from unnest(%(names)s::text[], %(slots)s::timestamptz[]) as missed_slots (name, slot_at);

-- name: notify_schedules
-- Schedulers recompute when they have to wake.
select pg_notify('{schedules_channel}', '');
