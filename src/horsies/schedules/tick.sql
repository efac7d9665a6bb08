-- name: begin_tick
begin isolation level read committed;

-- name: set_tick_limits
-- A scheduler that vanishes must not hold its schedules until TCP gives up. And the planner, which cannot know how many are due, must not compare
-- every decision with every row.
select
    set_config('idle_in_transaction_session_timeout', '10s', true),
    set_config('lock_timeout', '10s', true),
    set_config('enable_nestloop', 'off', true);

-- name: get_moment
-- The database's clock decides what is due. Tests may give another moment.
select coalesce(%(now)s::timestamptz, statement_timestamp());

-- name: lock_due
-- What another scheduler is busy with is its own. A row that has been moved on since this statement began is not due any more: it is looked at
-- again when it is locked.
select
    name, pattern::text, timezone, next_slot_at, catch_up_missed, max_catch_up_runs, jitter_ms, overlap, last_task_id::text
from {schema}.schedules
where paused_at is null
and next_slot_at <= %(moment)s::timestamptz
and name <> all(%(excluded)s::text[])
order by next_slot_at, name
limit %(limit)s::integer
for update skip locked;

-- name: lock_one_due
-- The same for one schedule, after a tick of many has failed.
select
    name, pattern::text, timezone, next_slot_at, catch_up_missed, max_catch_up_runs, jitter_ms, overlap, last_task_id::text
from {schema}.schedules
where name = %(name)s::text
and paused_at is null
and next_slot_at <= %(moment)s::timestamptz
for update skip locked;

-- name: get_going
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[]);

-- name: settle_slots
-- The slots and the state that remembers them, in one statement. What is no longer at the slot that was decided on is left alone, and
-- so is all that was decided on it.
with moved as (
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
verdicts as materialized (
    select *
    from unnest(
        %(run_names)s::text[], %(outcomes)s::text[], %(run_slots)s::timestamptz[], %(run_last_slots)s::timestamptz[],
        %(tasks)s::uuid[], %(delays_ms)s::integer[]
    ) with ordinality as verdict (name, outcome, slot_at, last_slot_at, task_id, delay_ms, place)
),
enqueued as (
    insert into {schema}.tasks (
        id, task_name, queue_name, priority, args, ready, enqueued_at,
        timeout_ms, retry_delays_ms, retry_jitter, retry_for
    )
    select
        verdicts.task_id, moved.task_name, moved.queue_name, moved.priority, moved.args,
        verdicts.delay_ms is null,
        coalesce(statement_timestamp() + verdicts.delay_ms * interval '1 ms', now()),
        moved.timeout_ms, moved.retry_delays_ms, moved.retry_jitter, moved.retry_for
    from verdicts
    join moved on moved.name = verdicts.name
    where verdicts.task_id is not null
)
insert into {schema}.schedule_runs (schedule_name, outcome, slot_at, last_slot_at, task_id)
select verdicts.name, verdicts.outcome, verdicts.slot_at, verdicts.last_slot_at, verdicts.task_id
from verdicts
join moved on moved.name = verdicts.name
order by verdicts.place;

-- name: commit_tick
commit;

-- name: roll_back_tick
rollback;

-- name: get_next_due
-- In how many seconds there is something to do again; null if there is nothing.
select extract(epoch from min(next_slot_at) - coalesce(%(now)s::timestamptz, clock_timestamp()))::float8
from {schema}.schedules
where paused_at is null
and name <> all(%(excluded)s::text[]);
