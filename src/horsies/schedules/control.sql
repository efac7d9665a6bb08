-- fragment: ended_run
-- How a run ended; cancelled runs do not count. A run ends after it was decided: so only the partitions since then are read (an hour, because a clock
-- may be set back).
cross join lateral (
    select
        finished.status, finished.error_code, finished.finished_at,
        {schema}.error_message(case when finished.is_sensitive is not true then finished.error end) as message
    from {schema}.finished
    where finished.id = run.task_id
    and finished.finished_at >= greatest(run.decided_at, '1970-01-01 00:00+00') - interval '1 hour'
    -- The partitions of the days to come are skipped.
    and finished.finished_at < statement_timestamp() + interval '1 day'
    and finished.status <> 'CANCELLED'
    order by finished.finished_at desc
    limit 1
) as task

-- fragment: newest_runs
-- The runs of a schedule that have a task, among its newest slots.
(
    select newest.id, newest.task_id, newest.decided_at
    from (
        select id, task_id, decided_at
        from {schema}.schedule_runs
        where schedule_runs.schedule_name = schedules.name
        order by id desc
        limit 100
    ) as newest
    where newest.task_id is not null
    order by newest.id desc
    limit 20
) as run

-- fragment: last_runs
-- Of each schedule: how its newest run ended. If that one failed: how many of its newest runs have failed without one that succeeded since, and how many
-- of them have ended.
left join lateral (
    select task.status, task.error_code, task.message
    from {newest_runs}
    {ended_run}
    order by run.id desc
    limit 1
) as last_run on true
left join lateral (
    select
        count(*) filter (where ended.is_failure) as failures_in_a_row,
        min(ended.finished_at) filter (where ended.is_failure and isfinite(ended.finished_at)) as failing_since,
        count(*) as ended
    from (
        select task.finished_at, bool_and(task.status <> 'COMPLETED') over (order by run.id desc) as is_failure
        from {newest_runs}
        {ended_run}
        -- Most schedules are not read further.
        where last_run.status <> 'COMPLETED'
        order by run.id desc
        limit 10
    ) as ended
) as last_runs on true

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
        id, task_name, queue_name, priority, args, timeout_ms, retry_delays_ms, retry_jitter, retry_for, is_sensitive, on_failure
    )
    select
        last_task_id, task_name, queue_name, priority, args, timeout_ms, retry_delays_ms, retry_jitter, retry_for, is_sensitive, on_failure
    from schedule
)
insert into {schema}.schedule_runs (schedule_name, outcome, task_id)
select name, 'BY_HAND', last_task_id
from schedule;

-- name: get_schedules
select
    schedules.name, schedules.task_name, schedules.queue_name,
    case when schedules.is_sensitive is not true then schedules.args::text end,
    schedules.pattern, schedules.timezone,
    schedules.catch_up_missed, schedules.max_catch_up_runs, schedules.jitter_ms, schedules.overlap,
    schedules.enabled, schedules.declared, schedules.paused_at, schedules.next_slot_at, schedules.last_slot_at,
    schedules.last_task_id::text, schedules.changed_at, schedules.app, schedules.is_dynamic,
    last_run.status, last_run.error_code, last_runs.failures_in_a_row
from {schema}.schedules
{last_runs}
where (%(name)s::text is null or schedules.name = %(name)s::text)
and (%(task_name)s::text is null or schedules.task_name = %(task_name)s::text)
and (%(queue_name)s::text is null or schedules.queue_name = %(queue_name)s::text)
order by schedules.name;

-- name: get_schedule_runs
select
    run.schedule_name, run.outcome, run.slot_at, run.last_slot_at, run.task_id::text, run.decided_at,
    task.status, task.error_code, task.message, task.finished_at
from unnest(%(names)s::text[]) as schedule (name)
cross join lateral (
    select *
    from {schema}.schedule_runs
    where schedule_runs.schedule_name = schedule.name
    order by schedule_runs.id desc
    limit %(limit)s::integer
) as run
left join lateral (
    select tasks.status, null as error_code, null as message, null::timestamptz as finished_at
    from {schema}.tasks
    where tasks.id = run.task_id
    union all
    select
        finished.status, finished.error_code,
        {schema}.error_message(case when finished.is_sensitive is not true then finished.error end), finished.finished_at
    from {schema}.finished
    where finished.id = run.task_id
    and finished.finished_at >= greatest(run.decided_at, '1970-01-01 00:00+00') - interval '1 hour'
    and finished.finished_at < statement_timestamp() + interval '1 day'
    limit 1
) as task on true
order by run.id desc;

-- name: get_failing_schedules
-- Active schedules whose last three runs have failed, or whose last run has failed and that have not succeeded lately.
select
    schedules.name, schedules.task_name, last_runs.failures_in_a_row, last_run.error_code, last_run.message,
    last_runs.failures_in_a_row = last_runs.ended, last_runs.failing_since
from {schema}.schedules
{last_runs}
where schedules.declared
and schedules.enabled
and schedules.paused_at is null
and last_runs.failures_in_a_row > 0
and (last_runs.failures_in_a_row >= 3 or last_runs.failures_in_a_row = last_runs.ended)
order by last_runs.failures_in_a_row desc, schedules.name
limit %(limit)s::integer;
