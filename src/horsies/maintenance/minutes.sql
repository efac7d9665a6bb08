-- fragment: finished_utc
-- As in the indexes by time; the conditions on `finished_at` itself skip partitions.
finished.finished_at at time zone 'UTC'

-- fragment: counted
-- Of groups of tasks by status and by the buckets of their durations.
coalesce(sum(count) filter (where status = 'COMPLETED'), 0),
coalesce(sum(count) filter (where status = 'FAILED'), 0),
coalesce(sum(count) filter (where status = 'CANCELLED'), 0),
coalesce(sum(count) filter (where status = 'EXPIRED'), 0),
least(sum(retried), 2147483647),
{schema}.histogram(array_agg(waited), array_agg(count)),
{schema}.histogram(array_agg(ran), array_agg(count))

-- name: begin_minute
begin isolation level read committed;

-- name: create_minutes_until
-- At the first time: from a day ago.
insert into {schema}.minutes_until (minute)
values (date_trunc('minute', statement_timestamp()) - interval '24 hours')
on conflict do nothing;

-- name: lock_minutes_until
-- No row: another process computes a minute now.
select 1
from {schema}.minutes_until
for update skip locked;

-- name: get_next_minute
-- The first minute to compute, the first minute from there on in which a task ended (null: none did), and the current minute. No row: everything is
-- computed. A time in the future was stored before the clock was set back.
with clock as materialized (
    select date_trunc('minute', statement_timestamp()) as minute
),
start as materialized (
    select
        date_trunc('minute', greatest(
            least(minutes_until.minute, clock.minute) - %(again)s::integer * interval '1 minute', clock.minute - interval '24 hours'
        )) as minute
    from {schema}.minutes_until
    cross join clock
    where minutes_until.minute <> clock.minute
)
select
    start.minute,
    (
        select date_trunc('minute', finished.finished_at)
        from {schema}.finished
        where finished.finished_at >= (select start.minute from start)
        and finished.finished_at < (select clock.minute from clock)
        and {finished_utc} >= (select start.minute at time zone 'UTC' from start)
        and {finished_utc} < (select clock.minute at time zone 'UTC' from clock)
        order by {finished_utc}
        limit 1
    ),
    clock.minute
from start
cross join clock;

-- name: get_seconds_left
select date_part('epoch', date_trunc('minute', statement_timestamp()) + interval '1 minute' - statement_timestamp());

-- name: delete_task_minutes
delete from {schema}.task_minutes
where minute >= %(since)s::timestamptz
and minute < %(until)s::timestamptz;

-- name: delete_queue_minutes
delete from {schema}.queue_minutes
where minute >= %(since)s::timestamptz
and minute < %(until)s::timestamptz;

-- name: delete_error_minutes
delete from {schema}.error_minutes
where minute >= %(since)s::timestamptz
and minute < %(until)s::timestamptz;

-- name: insert_task_minutes
-- In steps: the first reads every task that ended in this minute, the others only its groups. Names are cut, because an index cannot hold long ones.
with ended_tasks as materialized (
    select
        left(finished.queue_name, 200) as queue_name,
        left(finished.task_name, 200) as task_name,
        finished.status,
        {schema}.duration_bucket(finished.enqueued_at, finished.started_at) as waited,
        {schema}.duration_bucket(finished.started_at, finished.finished_at) as ran,
        count(*) as count,
        -- A stranger's number must not make the sum too large.
        sum(greatest(1, least(finished.attempts, 1000)) - 1) as retried
    from {schema}.finished
    where finished.finished_at >= %(minute)s::timestamptz
    and finished.finished_at < %(minute)s::timestamptz + interval '1 minute'
    and {finished_utc} >= %(minute)s::timestamptz at time zone 'UTC'
    and {finished_utc} < %(minute)s::timestamptz at time zone 'UTC' + interval '1 minute'
    group by 1, 2, 3, 4, 5
),
ranked_groups as (
    select
        ended_tasks.queue_name,
        ended_tasks.task_name,
        row_number() over (order by sum(ended_tasks.count) desc, ended_tasks.queue_name, ended_tasks.task_name) <= %(groups)s::integer as is_kept
    from ended_tasks
    group by ended_tasks.queue_name, ended_tasks.task_name
),
named_groups as (
    select
        case when ranked_groups.is_kept then ended_tasks.queue_name else '' end as queue_name,
        case when ranked_groups.is_kept then ended_tasks.task_name else '' end as task_name,
        ended_tasks.status, ended_tasks.waited, ended_tasks.ran, ended_tasks.count, ended_tasks.retried
    from ended_tasks
    join ranked_groups using (queue_name, task_name)
),
inserted_queues as (
    insert into {schema}.queue_minutes (minute, queue_name, completed, failed, cancelled, expired, retried, waited, ran)
    select %(minute)s::timestamptz, queue_name, {counted}
    from named_groups
    group by queue_name
)
insert into {schema}.task_minutes (minute, queue_name, task_name, completed, failed, cancelled, expired, retried, waited, ran)
select %(minute)s::timestamptz, queue_name, task_name, {counted}
from named_groups
group by queue_name, task_name;

-- name: insert_error_minutes
with failed_tasks as (
    select
        left(finished.task_name, 200) as task_name,
        left(coalesce(finished.error_code, ''), 200) as error_code,
        -- The messages of the first failures only: to read them all takes long when everything fails.
        case
            when row_number() over (order by finished.finished_at) <= %(messages)s::integer
            then {schema}.error_summary(case when finished.is_sensitive is not true then finished.error end)
            else ''
        end as message,
        finished.finished_at,
        finished.id
    from {schema}.finished
    where finished.status = 'FAILED'
    and finished.finished_at >= %(minute)s::timestamptz
    and finished.finished_at < %(minute)s::timestamptz + interval '1 minute'
    and {finished_utc} >= %(minute)s::timestamptz at time zone 'UTC'
    and {finished_utc} < %(minute)s::timestamptz at time zone 'UTC' + interval '1 minute'
),
error_groups as (
    select
        failed_tasks.task_name,
        failed_tasks.error_code,
        failed_tasks.message,
        count(*) as count,
        min(failed_tasks.finished_at) as first_at,
        max(failed_tasks.finished_at) as last_at,
        -- The time comes first, and always in as many digits, so the greatest text has the id of the newest.
        max((date_part('epoch', failed_tasks.finished_at) * 1000000)::bigint || failed_tasks.id::text collate "C") as newest
    from failed_tasks
    group by failed_tasks.task_name, failed_tasks.error_code, failed_tasks.message
),
ranked_groups as (
    select
        error_groups.*,
        row_number() over (
            order by error_groups.count desc, error_groups.task_name, error_groups.error_code, error_groups.message
        ) <= %(groups)s::integer as is_kept
    from error_groups
)
insert into {schema}.error_minutes (minute, task_name, error_code, message, count, first_at, last_at, example_id)
select
    %(minute)s::timestamptz,
    case when is_kept then task_name else '' end,
    case when is_kept then error_code else '' end,
    case when is_kept then message else '' end,
    sum(count),
    min(first_at),
    max(last_at),
    right(max(newest collate "C"), 36)::uuid
from ranked_groups
group by 2, 3, 4;

-- name: store_minutes_until
update {schema}.minutes_until
set minute = %(until)s::timestamptz;

-- name: delete_old_task_minutes
-- Some at each minute. That is more than a minute adds.
delete from {schema}.task_minutes
where (minute, queue_name, task_name) in (
    select old_rows.minute, old_rows.queue_name, old_rows.task_name
    from {schema}.task_minutes as old_rows
    where old_rows.minute < statement_timestamp() - interval '25 hours'
    limit %(limit)s::integer
);

-- name: delete_old_queue_minutes
delete from {schema}.queue_minutes
where (minute, queue_name) in (
    select old_rows.minute, old_rows.queue_name
    from {schema}.queue_minutes as old_rows
    where old_rows.minute < statement_timestamp() - interval '25 hours'
    limit %(limit)s::integer
);

-- name: delete_old_error_minutes
delete from {schema}.error_minutes
where (minute, task_name, error_code, message) in (
    select old_rows.minute, old_rows.task_name, old_rows.error_code, old_rows.message
    from {schema}.error_minutes as old_rows
    where old_rows.minute < statement_timestamp() - interval '25 hours'
    limit %(limit)s::integer
);

-- name: commit_minute
commit;
