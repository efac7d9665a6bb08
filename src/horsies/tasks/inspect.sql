-- fragment: live_status
-- A task that has not started by its `good_until` has expired, even if its row does not say so yet.
case when tasks.status <> 'RUNNING' and tasks.good_until <= statement_timestamp() then 'EXPIRED' else tasks.status end

-- fragment: last_error
-- The error of a task that has ended; of a live one, its last failed attempt, which contains an error.
select coalesce(task.error, task.failed_attempts[cardinality(task.failed_attempts)]) as error

-- fragment: is_match
-- What a condition on an error compares is cut out of JSON as text, because JSON with \u0000 cannot be parsed here. A message is only cut out of a text that
-- contains what is searched for, because that takes ten times as long.
(
    task.status is not null
    and (%(statuses)s::text[] is null or task.status = any(%(statuses)s::text[]))
    and (%(queue_name)s::text is null or task.queue_name = %(queue_name)s::text)
    and (
        %(task_name)s::text is null
        or task.task_name = %(task_name)s::text
        or %(error_summary)s::text is not null and left(task.task_name, 200) = %(task_name)s::text
    )
    and (%(worker)s::uuid is null or task.claimed_by = %(worker)s::uuid)
    and (%(since)s::timestamptz is null or coalesce(task.finished_at, task.sent_at) >= %(since)s::timestamptz)
    and (%(until)s::timestamptz is null or coalesce(task.finished_at, task.sent_at) < %(until)s::timestamptz)
    and (
        %(error_code)s::text is null
        or case
            when task.finished_at is not null and %(error_summary)s::text is not null
            then left(coalesce(task.error_code, ''), 200) = %(error_code)s::text
            when task.finished_at is not null then task.error_code = %(error_code)s::text
            when last.error is not null
            then strpos(left(last.error::text, 5000), '"error_code" : ' || to_json(%(error_code)s::text)::text || ', "error" : ') > 0
            else task.child_deaths > 0 and %(error_code)s::text = 'WORKER_CRASHED'
        end
    )
    and (
        %(message)s::text is null
        -- Whether a message contains a text would tell what is in it.
        or task.is_sensitive is not true and task.task_name <> all(%(sensitive)s::text[]) and case
            -- In ASCII, ten times as fast. To cut a text takes longer than to search all of it, unless it is very long.
            when not %(is_ascii)s::boolean or strpos(
                lower(case when octet_length(last.error::text) > 20000 then left(last.error::text, 5000) else last.error::text end collate "C"),
                lower(%(message)s::text collate "C")
            ) > 0
            then strpos(lower({schema}.error_message(last.error)), lower(%(message)s::text)) > 0
        end
    )
    and (%(error_summary)s::text is null or case
        when task.status = 'FAILED' then {schema}.error_summary(
            case when task.is_sensitive is not true and task.task_name <> all(%(sensitive)s::text[]) then last.error end
        ) = %(error_summary)s::text
    end)
)

-- fragment: columns_of_match
task.id, task.task_name, task.queue_name, task.priority, task.attempts, task.claim_no, task.sent_at, task.enqueued_at, task.started_at,
task.finished_at, task.claimed_by, task.error_code, last.error as last_error, task.child_deaths, task.retry_delays_ms, task.root_id, task.node_id, task.is_sensitive, task.status,
{is_match} is true as is_match, task.is_last

-- fragment: summary
found.is_match, found.is_last, found.id::text, found.task_name, found.queue_name, found.priority, found.status, found.attempts, found.claim_no,
found.sent_at, found.enqueued_at, found.started_at, found.finished_at, found.claimed_by::text,
coalesce(found.error_code, substring(left(found.last_error::text, 1000) from '"error_code" : "((?:[^"\\]|\\.)*)", "error" : ')),
found.root_id::text,
{schema}.error_message(found.last_error),
case
    when found.status = 'RUNNING' and isfinite(found.started_at)
    then extract(epoch from greatest(clock_timestamp() - found.started_at, interval '0'))::float8
end,
found.node_id::text,
coalesce(found.is_sensitive, false), found.child_deaths, coalesce(cardinality(found.retry_delays_ms), 0)

-- name: get_status
-- A task that has not started by its `good_until` has expired, even if its row does not say so yet. Waiters see the same.
select case when status in ('PENDING', 'CLAIMED') and good_until <= statement_timestamp() then 'EXPIRED' else status end
from {schema}.all_tasks
where id = %(id)s::uuid;

-- name: get_statuses
-- One by one: `id = any(...)` may read whole partitions that were not analysed yet.
select wanted.id::text, task.status
from unnest(%(ids)s::uuid[]) as wanted (id)
cross join lateral (
    select
        case when all_tasks.status in ('PENDING', 'CLAIMED') and all_tasks.good_until <= statement_timestamp() then 'EXPIRED' else all_tasks.status end
            as status
    from {schema}.all_tasks
    where all_tasks.id = wanted.id
    limit 1
) as task;

-- name: get_info
select
    id::text, task_name, queue_name, priority,
    case when status in ('PENDING', 'CLAIMED') and good_until <= statement_timestamp() then 'EXPIRED' else status end,
    attempts, sent_at, enqueued_at, good_until, timeout_ms, claimed_at, started_at, finished_at, claimed_by::text,
    (select tasks.unknown_since from {schema}.tasks where tasks.id = %(id)s::uuid),
    error_code, error::text, progress::text, failed_attempts::text[]
from {schema}.all_tasks
where id = %(id)s::uuid;

-- name: get_worker_states
-- The newest snapshot of each worker, or all of one worker, newest first.
select
    worker_id::text, snapshot_at, hostname, pid, processes, concurrency, queues, tasks_running, tasks_claimed,
    memory_usage_mb, children_memory_mb, cpu_percent, children_cpu_percent, worker_started_at
from {schema}.worker_states as state
where case
    when %(worker_id)s::uuid is null
    then not exists (
        select from {schema}.worker_states as newer
        where newer.worker_id = state.worker_id
        and newer.snapshot_at > state.snapshot_at
    )
    else worker_id = %(worker_id)s::uuid
end
order by snapshot_at desc
limit %(limit)s::integer;

-- fragment: tasks_of_tables
-- One snapshot over both tables: a task that moves between them appears once. Of each table at most `scanned` rows are read, in order of the id, whether they
-- match or not; the last of these is returned with `is_last`, and below it nothing was searched. Conditions on parameters alone are evaluated before anything
-- is read, so that a table or partition that cannot contain matches is skipped.
(
    (
        select {columns_of_match}
        from (
            select
                tasks.id, tasks.task_name, tasks.queue_name, tasks.priority, tasks.attempts, tasks.claim_no, tasks.sent_at, tasks.enqueued_at,
                tasks.started_at, null::timestamptz as finished_at, tasks.claimed_by, null::text as error_code, null::json as error,
                tasks.failed_attempts, tasks.child_deaths, tasks.retry_delays_ms, tasks.root_id, tasks.node_id, tasks.is_sensitive, {live_status} as status,
                row_number() over (order by tasks.id desc) = %(scanned)s::bigint as is_last
            from (
                -- Not `*`: a role may be allowed to read some columns only.
                select
                    id, task_name, queue_name, priority, status, attempts, claim_no, sent_at, enqueued_at, started_at, claimed_by, good_until,
                    failed_attempts, child_deaths, retry_delays_ms, root_id, node_id, is_sensitive
                from {schema}.tasks
                where %(live)s::boolean
                -- They have an index of their own, whose size does not depend on the backlog. So have those that were tried before, and those that can expire.
                and (not %(in_flight)s::boolean or tasks.status <> 'PENDING')
                and (not %(tried)s::boolean or tasks.failed_attempts is not null or tasks.child_deaths > 0)
                and (not %(expired)s::boolean or tasks.status <> 'RUNNING' and tasks.good_until <= statement_timestamp())
                and (%(after)s::uuid is null or tasks.id < %(after)s::uuid)
                order by tasks.id desc
                limit %(scanned)s::bigint
            ) as tasks
        ) as task
        cross join lateral ({last_error}) as last
        where task.is_last or {is_match}
        order by task.id desc
        limit %(limit)s::bigint
    )
    union all
    (
        select {columns_of_match}
        from (
            select
                finished.id, finished.task_name, finished.queue_name, finished.priority, finished.attempts, finished.claim_no, finished.sent_at,
                finished.enqueued_at, finished.started_at, finished.finished_at, finished.claimed_by, finished.error_code, finished.error,
                null::json[] as failed_attempts, 0 as child_deaths, finished.retry_delays_ms, finished.root_id, finished.node_id, finished.is_sensitive, finished.status,
                row_number() over (order by finished.id desc) = %(scanned)s::bigint as is_last
            from (
                select
                    id, task_name, queue_name, priority, status, attempts, claim_no, sent_at, enqueued_at, started_at, finished_at, claimed_by,
                    error_code, error, retry_delays_ms, root_id, node_id, is_sensitive
                from {schema}.finished
                where %(finished)s::boolean
                -- These are few, and have an index of their own.
                and (not %(unsuccessful)s::boolean or finished.status <> 'COMPLETED')
                -- Whole days, to skip partitions. Within them, rows at other times count as read.
                and (
                    %(since)s::timestamptz is null
                    or finished.finished_at >= date_trunc('day', %(since)s::timestamptz at time zone 'UTC') at time zone 'UTC'
                )
                and (
                    %(until)s::timestamptz is null
                    or finished.finished_at
                        < (date_trunc('day', %(until)s::timestamptz at time zone 'UTC') + interval '1 day') at time zone 'UTC'
                )
                and (%(after)s::uuid is null or finished.id < %(after)s::uuid)
                order by finished.id desc
                limit %(scanned)s::bigint
            ) as finished
        ) as task
        cross join lateral ({last_error}) as last
        where task.is_last or {is_match}
        order by task.id desc
        limit %(limit)s::bigint
    )
)

-- fragment: selected_tasks
-- The same for filters that name their tasks: by id, workflow, schedule or key. The candidates are read, instead of the tables.
(
    select {columns_of_match}
    from (
        select
            candidates.id, candidates.is_last, stored.task_name, stored.queue_name, stored.priority, stored.attempts, stored.claim_no, stored.sent_at,
            stored.enqueued_at, stored.started_at, stored.finished_at, stored.claimed_by, stored.error_code, stored.error, stored.failed_attempts,
            stored.child_deaths, stored.retry_delays_ms, stored.root_id, stored.node_id, stored.is_sensitive, stored.status
        from candidates
        left join lateral (
            select
                task_name, queue_name, priority, attempts, claim_no, sent_at, enqueued_at, started_at, null::timestamptz as finished_at, claimed_by,
                null::text as error_code, null::json as error, failed_attempts, child_deaths, retry_delays_ms, root_id, node_id, is_sensitive, {live_status} as status
            from {schema}.tasks
            where tasks.id = candidates.id
            and candidates.finished_at is null
            union all
            select
                task_name, queue_name, priority, attempts, claim_no, sent_at, enqueued_at, started_at, finished_at, claimed_by,
                error_code, error, null, 0, retry_delays_ms, root_id, node_id, is_sensitive, status
            from {schema}.finished
            where finished.id = candidates.id
            and finished.finished_at = candidates.finished_at
        ) as stored on true
    ) as task
    cross join lateral ({last_error}) as last
    where task.is_last or {is_match}
    order by task.id desc
    limit %(limit)s::bigint
)

-- fragment: candidates
with recursive key_name as (
    (
        select keys.task_name
        from {schema}.keys
        where %(key)s::text is not null
        order by keys.task_name
        limit 1
    )
    union all
    select next.task_name
    from key_name
    cross join lateral (
        select keys.task_name
        from {schema}.keys
        where keys.task_name > key_name.task_name
        order by keys.task_name
        limit 1
    ) as next
),
named_tasks as (
    select 'id' as kind, given.id
    from unnest(%(ids)s::uuid[]) as given (id)
    union all
    select 'workflow', nodes.task_id
    from {schema}.workflows
    join {schema}.nodes on nodes.workflow_id = workflows.id
    where workflows.root_id = (select run.root_id from {schema}.workflows as run where run.id = %(workflow_id)s::uuid)
    and (workflows.id = %(workflow_id)s::uuid or %(workflow_id)s::uuid = any(workflows.ancestors))
    union all
    (
        select 'schedule', schedule_runs.task_id
        from {schema}.schedule_runs
        where schedule_runs.schedule_name = %(schedule_name)s::text
        and schedule_runs.task_id is not null
        and (%(after)s::uuid is null or schedule_runs.task_id < %(after)s::uuid)
        order by schedule_runs.task_id desc
        -- Without another condition that names tasks, the newest are enough.
        limit case when %(kinds)s::integer = 1 then %(scanned)s::bigint end
    )
    union all
    -- The task that the key stands for, and those before it.
    select 'key', holder.id
    from key_name
    cross join lateral (
        select keys.task_id || keys.previous_task_ids as ids
        from {schema}.keys
        where keys.task_name = key_name.task_name
        and keys.key = %(key)s::text
    ) as held
    cross join unnest(held.ids) as holder (id)
),
candidates as (
    select numbered.id, numbered.is_last, place.finished_at
    from (
        select candidate.id, row_number() over (order by candidate.id desc) = %(scanned)s::bigint as is_last
        from (
            select named_tasks.id
            from named_tasks
            where named_tasks.id is not null
            and (%(after)s::uuid is null or named_tasks.id < %(after)s::uuid)
            group by named_tasks.id
            having count(distinct named_tasks.kind) = %(kinds)s::integer
            order by named_tasks.id desc
            limit %(scanned)s::bigint
        ) as candidate
    ) as numbered
    -- When it ended, which tells its partition: to search all of them for a thousand tasks takes longer than all the rest. Ids begin with the time of the
    -- send, and a task ends after that (a day, because clocks differ). One that is not there, such as one with an id of other software, is searched everywhere.
    cross join lateral (
        select
            case when not exists (select from {schema}.tasks where tasks.id = numbered.id) then coalesce(
                (
                    select finished.finished_at
                    from {schema}.finished
                    where finished.id = numbered.id
                    and finished.finished_at >= case
                        when substr(numbered.id::text, 15, 1) = '7'
                        then to_timestamp(('x' || substr(numbered.id::text, 1, 8) || substr(numbered.id::text, 10, 4))::bit(48)::bigint / 1000.0) - interval '1 day'
                        else '-infinity'
                    end
                    and finished.finished_at < statement_timestamp() + interval '1 day'
                    limit 1
                ),
                (select finished.finished_at from {schema}.finished where finished.id = numbered.id limit 1)
            ) end as finished_at
        offset 0
    ) as place
)

-- name: list_tasks
select {summary}
from {tasks_of_tables} as found
order by found.id desc
limit %(limit)s::bigint;

-- name: list_selected_tasks
{candidates}
select {summary}
from {selected_tasks} as found
order by found.id desc
limit %(limit)s::bigint;

-- name: count_tasks
-- Below the first row at which the search of one of the tables ended, nothing is counted; there, the next step continues.
with found as materialized (select found.id, found.is_match, found.is_last from {tasks_of_tables} as found)
select count(*) filter (where found.is_match and (last.id is null or found.id >= last.id)), max(last.id::text)
from (select max(found.id::text)::uuid as id from found where found.is_last) as last
left join found on true;

-- name: count_selected_tasks
{candidates},
found as materialized (select found.id, found.is_match, found.is_last from {selected_tasks} as found)
select count(*) filter (where found.is_match and (last.id is null or found.id >= last.id)), max(last.id::text)
from (select max(found.id::text)::uuid as id from found where found.is_last) as last
left join found on true;

-- name: get_node_names
select nodes.id::text, nodes.node_id
from {schema}.nodes
where nodes.id = any(%(ids)s::uuid[]);

-- name: roll_back_read
-- After a statement that was refused. Outside a transaction, this is only a warning.
rollback;

-- name: list_running
-- From the index of tasks in flight, whose size does not depend on the backlog.
select {summary}
from (
    select
        tasks.id, tasks.task_name, tasks.queue_name, tasks.priority, tasks.attempts, tasks.claim_no, tasks.sent_at, tasks.enqueued_at,
        tasks.started_at, null::timestamptz as finished_at, tasks.claimed_by, null::text as error_code,
        tasks.failed_attempts[cardinality(tasks.failed_attempts)] as last_error,
        tasks.child_deaths, tasks.retry_delays_ms, tasks.root_id, tasks.node_id, tasks.is_sensitive, tasks.status, true as is_match, false as is_last
    from {schema}.tasks
    where tasks.status <> 'PENDING'
    and tasks.status = 'RUNNING'
    order by tasks.started_at, tasks.id
    limit %(limit)s::bigint
) as found
order by found.started_at, found.id;

-- name: read_clock
select clock_timestamp();

-- name: get_task_detail
select
    task.claim_no,
    coalesce(cardinality(task.retry_delays_ms), 0),
    live.cancel_requested_at,
    live.lease_until,
    coalesce(nodes.workflow_id, task.root_id)::text,
    workflows.name,
    nodes.node_id,
    (
        -- By the name first: keys are indexed by it.
        select keys.key
        from {schema}.keys
        where keys.task_name = %(task_name)s::text
        and keys.task_id = %(id)s::uuid
        limit 1
    ),
    octet_length(task.args::text),
    octet_length(task.result::text),
    case when %(characters)s::integer > 0 then left(task.args::text, %(characters)s::integer) end,
    case when %(characters)s::integer > 0 then left(task.result::text, %(characters)s::integer) end,
    (
        select schedule_runs.schedule_name
        from {schema}.schedule_runs
        where schedule_runs.task_id = %(id)s::uuid
        limit 1
    ),
    substring(left(task.trace, 4000) from '"traceparent"\s*:\s*"[0-9a-f]{2}-([0-9a-f]{32})-')
from {schema}.all_tasks as task
left join {schema}.tasks as live on live.id = task.id
left join {schema}.nodes on nodes.id = task.node_id
left join {schema}.workflows on workflows.id = coalesce(nodes.workflow_id, task.root_id)
where task.id = %(id)s::uuid;

-- name: list_workers
with in_flight as (
    select
        claimed_by,
        count(*) filter (where status = 'CLAIMED') as claimed,
        count(*) filter (where status = 'RUNNING') as running
    from {schema}.tasks
    where status <> 'PENDING'
    group by claimed_by
)
select
    workers.id::text, workers.hostname, workers.pid, workers.processes, workers.concurrency, workers.queues,
    workers.library_version, workers.started_at,
    extract(epoch from greatest(clock_timestamp() - workers.heartbeat_at, interval '0'))::float8,
    coalesce(in_flight.claimed, 0), coalesce(in_flight.running, 0),
    newest_state.memory_usage_mb::float8, newest_state.children_memory_mb::float8, workers.app,
    workers.leave_requested_at
from {schema}.workers
left join in_flight on in_flight.claimed_by = workers.id
left join lateral (
    select memory_usage_mb, children_memory_mb
    from {schema}.worker_states
    where worker_states.worker_id = workers.id
    order by snapshot_at desc
    limit 1
) as newest_state on true
order by workers.started_at, workers.id;

-- name: get_heartbeats
select id::text, heartbeat_at
from {schema}.workers
where id = any(%(ids)s::uuid[]);

-- name: request_heartbeat
select pg_notify('{control_channel}', id::text || ' ping')
from unnest(%(ids)s::uuid[]) as id;
