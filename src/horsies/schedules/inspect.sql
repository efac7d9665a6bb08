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
