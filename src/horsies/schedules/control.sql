-- name: pause_schedule
update {schema}.schedules
set paused_at = coalesce(paused_at, now())
where name = %(name)s::text
returning paused_at;

-- name: lock_schedule
select pattern, timezone, enabled, paused_at is not null
from {schema}.schedules
where name = %(name)s::text
for update;

-- name: resume_schedule
update {schema}.schedules
set paused_at = null, next_slot_at = %(next_slot)s::timestamptz
where name = %(name)s::text;

-- name: run_schedule
-- The id is made by the caller: a second attempt, after one with an unknown outcome, finds that the task is enqueued. A statement before
-- locks the schedule's row, so that the second attempt waits for the first.
with schedule as (
    update {schema}.schedules
    set last_task_id = %(id)s::uuid
    where name = %(name)s::text
    and not exists (
        select
        from {schema}.schedule_runs
        where schedule_runs.schedule_name = %(name)s::text
        and schedule_runs.task_id = %(id)s::uuid
    )
    returning *
),
enqueued_task as (
    insert into {schema}.tasks (
        id, task_name, queue_name, priority, args, timeout_ms, retry_delays_ms, retry_jitter, retry_for
    )
    select
        last_task_id, task_name, queue_name, priority, args, timeout_ms, retry_delays_ms, retry_jitter, retry_for
    from schedule
)
insert into {schema}.schedule_runs (schedule_name, outcome, task_id)
select name, 'BY_HAND', last_task_id
from schedule;

-- name: get_schedules
select
    schedules.name, schedules.task_name, schedules.queue_name, schedules.args::text, schedules.pattern, schedules.timezone,
    schedules.catch_up_missed, schedules.max_catch_up_runs, schedules.jitter_ms, schedules.overlap,
    schedules.enabled, schedules.declared, schedules.paused_at, schedules.next_slot_at, schedules.last_slot_at,
    schedules.last_task_id::text, schedules.changed_at, schedules.app
from {schema}.schedules
where (%(name)s::text is null or schedules.name = %(name)s::text)
and (%(task_name)s::text is null or schedules.task_name = %(task_name)s::text)
and (%(queue_name)s::text is null or schedules.queue_name = %(queue_name)s::text)
order by schedules.name;

-- name: get_schedule_runs
select outcome, slot_at, last_slot_at, task_id::text, decided_at
from {schema}.schedule_runs
where schedule_name = %(name)s::text
order by id desc
limit %(limit)s::integer;
