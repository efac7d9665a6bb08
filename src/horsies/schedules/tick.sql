-- name: begin_tick
begin isolation level read committed;

-- name: set_tick_limits
-- A scheduler that vanishes must not hold its locks until TCP gives up. And the planner, which does not know how many schedules are due,
-- must not compare every decision with every row.
select
    set_config('idle_in_transaction_session_timeout', '10s', true),
    set_config('lock_timeout', '10s', true),
    set_config('enable_nestloop', 'off', true);

-- name: get_tick_time
-- The database's clock decides what is due. Tests may pass another time.
select coalesce(%(now)s::timestamptz, statement_timestamp());

-- name: lock_due_schedules
-- Rows that another scheduler has locked are skipped. A row whose slot was advanced since this statement began is not due any more: the
-- conditions are checked again when it is locked.
select
    name, pattern::text, timezone, next_slot_at, catch_up_missed, max_catch_up_runs, jitter_ms, overlap, last_task_id::text
from {schema}.schedules
where paused_at is null
and next_slot_at <= %(moment)s::timestamptz
and name <> all(%(excluded)s::text[])
order by next_slot_at, name
limit %(limit)s::integer
for update skip locked;

-- name: lock_due_schedule
-- The same for one schedule, after a tick of many has failed.
select
    name, pattern::text, timezone, next_slot_at, catch_up_missed, max_catch_up_runs, jitter_ms, overlap, last_task_id::text
from {schema}.schedules
where name = %(name)s::text
and paused_at is null
and next_slot_at <= %(moment)s::timestamptz
for update skip locked;

-- name: get_unfinished_tasks
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[]);

-- name: record_decisions
-- Advance the schedules and record their decisions in one statement. A schedule that is not at the decided slot any more is left alone, and
-- its decisions are dropped.
with advanced_schedules as (
    update {schema}.schedules
    set
        next_slot_at = decision.next_slot_at,
        last_slot_at = decision.last_slot_at,
        last_task_id = coalesce(decision.last_task_id, schedules.last_task_id)
    from unnest(
        %(names)s::text[], %(slots)s::timestamptz[], %(next_slots)s::timestamptz[], %(last_slots)s::timestamptz[],
        %(last_tasks)s::uuid[]
    ) as decision (name, slot_at, next_slot_at, last_slot_at, last_task_id)
    where schedules.name = any(%(names)s::text[])
    and schedules.name = decision.name
    and schedules.next_slot_at = decision.slot_at
    and schedules.paused_at is null
    returning schedules.*
),
slot_decisions as materialized (
    select *
    from unnest(
        %(run_names)s::text[], %(outcomes)s::text[], %(run_slots)s::timestamptz[], %(run_last_slots)s::timestamptz[],
        %(tasks)s::uuid[], %(delays_ms)s::integer[]
    ) with ordinality as slot_decision (name, outcome, slot_at, last_slot_at, task_id, delay_ms, place)
),
enqueued_tasks as (
    insert into {schema}.tasks (
        id, task_name, queue_name, priority, args, ready, enqueued_at,
        timeout_ms, retry_delays_ms, retry_jitter, retry_for, is_sensitive, on_failure
    )
    select
        slot_decisions.task_id, advanced_schedules.task_name, advanced_schedules.queue_name, advanced_schedules.priority, advanced_schedules.args,
        slot_decisions.delay_ms is null,
        coalesce(statement_timestamp() + slot_decisions.delay_ms * interval '1 ms', now()),
        advanced_schedules.timeout_ms, advanced_schedules.retry_delays_ms, advanced_schedules.retry_jitter, advanced_schedules.retry_for,
        advanced_schedules.is_sensitive, advanced_schedules.on_failure
    from slot_decisions
    join advanced_schedules on advanced_schedules.name = slot_decisions.name
    where slot_decisions.task_id is not null
)
insert into {schema}.schedule_runs (schedule_name, outcome, slot_at, last_slot_at, task_id)
select slot_decisions.name, slot_decisions.outcome, slot_decisions.slot_at, slot_decisions.last_slot_at, slot_decisions.task_id
from slot_decisions
join advanced_schedules on advanced_schedules.name = slot_decisions.name
order by slot_decisions.place;

-- name: commit_tick
commit;

-- name: roll_back_tick
rollback;

-- name: get_next_due
-- Seconds until the next slot is due; null if there is none.
select extract(epoch from min(next_slot_at) - coalesce(%(now)s::timestamptz, clock_timestamp()))::float8
from {schema}.schedules
where paused_at is null
and name <> all(%(excluded)s::text[]);
