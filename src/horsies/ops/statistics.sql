-- fragment: finished_utc
-- As in the indexes by time; the conditions on `finished_at` itself skip partitions.
finished.finished_at at time zone 'UTC'

-- fragment: clock
-- `first` and `last` minute of the window, and since when nothing is rolled up. Stored times in the future were stored before the clock was set back.
clock as materialized (
    select
        now.minute as last,
        now.minute - (%(minutes)s::integer - 1) * interval '1 minute' as first,
        greatest(
            now.minute - (%(minutes)s::integer - 1) * interval '1 minute',
            least(now.minute, coalesce((select minutes_until.minute from {schema}.minutes_until), '-infinity'))
        ) as since
    from date_trunc('minute', statement_timestamp()) as now (minute)
)

-- fragment: newest_tasks
-- What has ended since the last roll-up, newest first and up to a limit, before it is filtered.
(
    select
        finished.finished_at,
        finished.queue_name,
        finished.task_name,
        finished.status,
        finished.attempts,
        finished.enqueued_at,
        finished.started_at
    from {schema}.finished
    where finished.finished_at >= (select clock.since from clock)
    and finished.finished_at < (select clock.last + interval '1 minute' from clock)
    and {finished_utc} >= (select clock.since at time zone 'UTC' from clock)
    and {finished_utc} < (select (clock.last + interval '1 minute') at time zone 'UTC' from clock)
    order by {finished_utc} desc
    limit %(limit)s::integer
) as newest

-- fragment: of_tail
-- Groups of these tasks by status and by the buckets of their durations. Those that the filter leaves out are counted, too, without a status: only so
-- is known whether all were read. Grouped at once: they are too many to be kept and read twice.
case when is_selected then status end as status,
case when is_selected then {schema}.duration_bucket(enqueued_at, started_at) end as waited,
case when is_selected then {schema}.duration_bucket(started_at, finished_at) end as ran,
count(*) as count,
sum(greatest(1, least(attempts, 1000)) - 1) as retried

-- fragment: counted
-- Of groups of tasks by status and by the buckets of their durations.
coalesce(sum(count) filter (where status = 'COMPLETED'), 0) as completed,
coalesce(sum(count) filter (where status = 'FAILED'), 0) as failed,
coalesce(sum(count) filter (where status = 'CANCELLED'), 0) as cancelled,
coalesce(sum(count) filter (where status = 'EXPIRED'), 0) as expired,
sum(retried) as retried,
{schema}.histogram(array_agg(waited), array_agg(count))::bigint[] as waited,
{schema}.histogram(array_agg(ran), array_agg(count))::bigint[] as ran

-- fragment: summed
sum(completed)::bigint, sum(failed)::bigint, sum(cancelled)::bigint, sum(expired)::bigint, sum(retried)::bigint,
array[
    sum(waited[1]), sum(waited[2]), sum(waited[3]), sum(waited[4]), sum(waited[5]), sum(waited[6]), sum(waited[7]), sum(waited[8]),
    sum(waited[9]), sum(waited[10]), sum(waited[11]), sum(waited[12]), sum(waited[13]), sum(waited[14]), sum(waited[15]), sum(waited[16]),
    sum(waited[17]), sum(waited[18]), sum(waited[19]), sum(waited[20]), sum(waited[21]), sum(waited[22]), sum(waited[23]), sum(waited[24]),
    sum(waited[25]), sum(waited[26]), sum(waited[27])
]::bigint[],
array[
    sum(ran[1]), sum(ran[2]), sum(ran[3]), sum(ran[4]), sum(ran[5]), sum(ran[6]), sum(ran[7]), sum(ran[8]), sum(ran[9]), sum(ran[10]),
    sum(ran[11]), sum(ran[12]), sum(ran[13]), sum(ran[14]), sum(ran[15]), sum(ran[16]), sum(ran[17]), sum(ran[18]), sum(ran[19]),
    sum(ran[20]), sum(ran[21]), sum(ran[22]), sum(ran[23]), sum(ran[24]), sum(ran[25]), sum(ran[26]), sum(ran[27])
]::bigint[]

-- fragment: rolled_up
-- What the leader has counted, by queue if that is enough: these rows are fewer. Conditions on parameters alone are evaluated before anything is read.
rolled_up as (
    select minute, queue_name, null::text as task_name, completed, failed, cancelled, expired, retried, waited, ran
    from {schema}.queue_minutes
    where %(by_queue)s::boolean
    union all
    select minute, queue_name, task_name, completed, failed, cancelled, expired, retried, waited, ran
    from {schema}.task_minutes
    where not %(by_queue)s::boolean
)

-- name: get_time_series
-- One row for each minute. The tasks since the last roll-up are read from `finished`, newest first and up to a limit, before they are filtered. All in one
-- statement, so that a roll-up under way neither hides a minute nor counts it twice.
with {clock},
{rolled_up},
tail_groups as materialized (
    select
        date_trunc('minute', finished_at) as minute,
        {of_tail}
    from (
        select
            *,
            (%(queue_name)s::text is null or left(queue_name, 200) = left(%(queue_name)s::text, 200))
            and (%(task_name)s::text is null or left(task_name, 200) = left(%(task_name)s::text, 200)) as is_selected
        from {newest_tasks}
    ) as task
    group by 1, 2, 3, 4
),
-- Up to this minute, not all tasks were read. Null: all were.
unread as materialized (
    select case when sum(count) >= %(limit)s::integer then min(minute) end as minute
    from tail_groups
),
ended_tasks as (
    select minute, {counted}
    from tail_groups
    where status is not null
    group by minute
    union all
    select minute, {summed}
    from rolled_up
    where minute >= (select clock.first from clock)
    and minute < (select clock.since from clock)
    and (%(queue_name)s::text is null or queue_name = left(%(queue_name)s::text, 200))
    and (%(task_name)s::text is null or task_name = left(%(task_name)s::text, 200))
    group by minute
)
select
    point.minute,
    coalesce(ended_tasks.completed, 0)::bigint,
    coalesce(ended_tasks.failed, 0)::bigint,
    coalesce(ended_tasks.cancelled, 0)::bigint,
    coalesce(ended_tasks.expired, 0)::bigint,
    coalesce(ended_tasks.retried, 0)::bigint,
    ended_tasks.waited,
    ended_tasks.ran,
    point.minute < clock.since or point.minute > coalesce(unread.minute, '-infinity')
from clock
cross join unread
cross join lateral generate_series(clock.first, clock.last, interval '1 minute') as point (minute)
left join ended_tasks on ended_tasks.minute = point.minute
order by point.minute;

-- name: get_totals
-- One row for each queue or task that ended a task in the window.
with {clock},
{rolled_up},
tail_groups as materialized (
    select
        case when is_selected then left(case when %(by_queue)s::boolean then queue_name else task_name end, 200) end as name,
        {of_tail}
    from (
        select *, %(queue_name)s::text is null or left(queue_name, 200) = left(%(queue_name)s::text, 200) as is_selected
        from {newest_tasks}
    ) as task
    group by 1, 2, 3, 4
),
parts as (
    select name, {counted}
    from tail_groups
    where status is not null
    group by name
    union all
    select case when %(by_queue)s::boolean then queue_name else task_name end, {summed}
    from rolled_up
    where minute >= (select clock.first from clock)
    and minute < (select clock.since from clock)
    and (%(queue_name)s::text is null or queue_name = left(%(queue_name)s::text, 200))
    group by 1
)
select name, {summed}, (select coalesce(sum(count), 0) < %(limit)s::integer from tail_groups)
from parts
group by name;

-- name: get_error_groups
with {clock},
newest_failures as materialized (
    select finished.finished_at, finished.id, finished.task_name, finished.error_code, finished.error,
        finished.is_sensitive
    from {schema}.finished
    where finished.status = 'FAILED'
    and finished.finished_at >= (select clock.since from clock)
    and finished.finished_at < (select clock.last + interval '1 minute' from clock)
    and {finished_utc} >= (select clock.since at time zone 'UTC' from clock)
    and {finished_utc} < (select (clock.last + interval '1 minute') at time zone 'UTC' from clock)
    order by {finished_utc} desc
    limit %(tail)s::integer
),
failures as (
    select
        left(newest_failures.task_name, 200) as task_name,
        left(coalesce(newest_failures.error_code, ''), 200) as error_code,
        {schema}.error_summary(
            case
                when newest_failures.is_sensitive is not true and left(newest_failures.task_name, 200) <> all(%(sensitive)s::text[])
                then newest_failures.error
            end
        ) as message,
        1 as count,
        newest_failures.finished_at as first_at,
        newest_failures.finished_at as last_at,
        newest_failures.id as example_id
    from newest_failures
    where %(task_name)s::text is null or left(newest_failures.task_name, 200) = left(%(task_name)s::text, 200)
    union all
    select task_name, error_code, case when task_name = any(%(sensitive)s::text[]) then '' else message end, count, first_at, last_at, example_id
    from {schema}.error_minutes
    where minute >= (select clock.first from clock)
    and minute < (select clock.since from clock)
    and (%(task_name)s::text is null or task_name = left(%(task_name)s::text, 200))
)
select
    failures.task_name,
    failures.error_code,
    failures.message,
    sum(failures.count),
    min(failures.first_at),
    max(failures.last_at),
    -- Of the newest. With an order in the aggregate, all failures would be sorted.
    (array_agg(failures.example_id))[array_position(array_agg(failures.last_at), max(failures.last_at))]::text,
    (select count(*) < %(tail)s::integer from newest_failures)
from failures
group by failures.task_name, failures.error_code, failures.message
order by sum(failures.count) desc, max(failures.last_at) desc, failures.task_name, failures.error_code, failures.message
limit %(limit)s::integer;
