-- name: list_events
-- The newest of each kind first, and of these the newest. Tasks and workflows are read backwards by the indexes on the time of their end. Of the tasks at most
-- `scanned` are read before they are filtered. The conditions on `finished_at` itself skip partitions.
with ended as (
    select newest.*
    from (
        select
            finished.finished_at, finished.id, finished.task_name, finished.queue_name, finished.status, finished.error_code, finished.error,
            finished.is_sensitive, finished.started_at
        from {schema}.finished
        where finished.finished_at >= %(since)s::timestamptz
        and finished.finished_at at time zone 'UTC' >= %(since)s::timestamptz at time zone 'UTC'
        and (not %(failures)s::boolean or finished.status = 'FAILED')
        order by finished.finished_at at time zone 'UTC' desc
        limit %(scanned)s::integer
    ) as newest
    where (%(task_name)s::text is null or newest.task_name = %(task_name)s::text)
    and (%(queue_name)s::text is null or newest.queue_name = %(queue_name)s::text)
    order by newest.finished_at desc
    limit %(limit)s::integer
),
events as (
    select
        ended.finished_at as at, 'task' as kind, ended.id, ended.task_name as name, ended.status as outcome, ended.queue_name as queue, ended.error_code,
        case
            when ended.is_sensitive is not true and ended.task_name <> all(%(sensitive)s::text[])
            then {schema}.error_message(ended.error)
        end as message,
        extract(epoch from ended.finished_at - ended.started_at)::float8 as took_s
    from ended
    union all
    (
        select finished_at, 'workflow', id, name, status, null, null, null, extract(epoch from finished_at - created_at)::float8
        from {schema}.workflows
        where id = root_id
        and finished_at >= %(since)s::timestamptz
        and (not %(failures)s::boolean or status = 'FAILED')
        and not %(of_tasks)s::boolean
        order by finished_at desc
        limit %(limit)s::integer
    )
    union all
    select started_at, 'worker', id, hostname || ' pid ' || pid, 'STARTED', null, null, 'serves ' || array_to_string(queues, ', '), null
    from {schema}.workers
    where started_at >= %(since)s::timestamptz
    and not %(of_tasks)s::boolean
    and not %(failures)s::boolean
    union all
    select found_at, 'worker', id, hostname || ' pid ' || pid, 'DIED', null, null, 'held ' || tasks_held || case tasks_held when 1 then ' task' else ' tasks' end, null
    from {schema}.dead_workers
    where found_at >= %(since)s::timestamptz
    and not %(of_tasks)s::boolean
    union all
    select at, 'action', id, target, 'ACTION', null, null, action || ' by ' || actor, null
    from (
        select at, id, target, action, actor
        from {schema}.audit
        where not %(of_tasks)s::boolean
        and not %(failures)s::boolean
        order by id desc
        limit %(limit)s::integer
    ) as newest_actions
    where at >= %(since)s::timestamptz
)
select at, kind, id::text, name, outcome, queue, error_code, message, took_s
from events
where isfinite(at)
order by at desc, id desc
limit %(limit)s::integer;
