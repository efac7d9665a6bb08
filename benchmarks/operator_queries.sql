-- One million finished tasks over a week, most of them lately, and what belongs to them. Ids are of version 7, as those of real tasks.

-- fragment: id_at
-- The id of a task that was sent at `sent_at`.
(
    substr(lpad(to_hex((extract(epoch from sent_at) * 1000)::bigint), 12, '0'), 1, 8) || '-'
    || substr(lpad(to_hex((extract(epoch from sent_at) * 1000)::bigint), 12, '0'), 9, 4) || '-7' || substr(gen_random_uuid()::text, 16)
)::uuid

-- name: create_past_days
do $$
declare
    day date;
begin
    for day in select ((now() at time zone 'UTC')::date - number)::date from generate_series(1, 8) as number loop
        execute format(
            'create table if not exists {schema}.finished_%%s partition of {schema}.finished for values from (%%L) to (%%L)',
            to_char(day, 'YYYYMMDD'), day || ' 00:00+00', (day + 1) || ' 00:00+00'
        );
    end loop;
end
$$;

-- name: insert_finished
insert into {schema}.finished (
    id, task_name, queue_name, priority, status, args, result, error_code, error, sent_at, enqueued_at, attempts, claim_no, claimed_by, claimed_at,
    started_at, finished_at, retry_jitter
)
select
    {id_at}, task_name, queue_name, 100, status, json_build_object('order', number, 'note', repeat('x', 100)),
    case when status = 'COMPLETED' then json_build_object('total', number, 'note', repeat('y', 50)) end,
    case when status = 'FAILED' then 'CODE_' || number %% 12 end,
    case when status = 'FAILED' then json_build_object(
        'error_code', 'CODE_' || number %% 12, 'message',
        case when number %% 50000 = 0 then 'the needle in the haystack' else 'order ' || number || ' was refused by host ' || number %% 30 end,
        'data', json_build_object('traceback', repeat('File "shop.py", line 1, in charge ', 60))
    ) end,
    sent_at, sent_at, 1, 1, ('00000000-0000-4000-8000-0000000000' || lpad((number %% 20)::text, 2, '0'))::uuid, started_at, started_at, finished_at, 0
from (
    select
        moment.*,
        moment.finished_at - interval '3 s' as sent_at,
        moment.finished_at - interval '1 s' as started_at,
        case
            when number %% 1000 < 960 then 'COMPLETED' when number %% 1000 < 990 then 'FAILED' when number %% 1000 < 997 then 'CANCELLED'
            else 'EXPIRED'
        end as status,
        case when number %% 100000 = 1 then 'rare' else 'task_' || (sqrt((number::bigint * 7919 %% 1600)::float8))::integer end as task_name,
        case when number %% 100000 = 2 then 'quiet' else 'queue_' || number %% 8 end as queue_name
    from (
        select number, now() - power(number::float8 / %(count)s::float8, 2) * interval '6.9 days' as finished_at
        from generate_series(1, %(count)s::integer) as number
    ) as moment
) as task;

-- name: insert_waiting
-- Most wait, some are scheduled, some wait for their retry, and a few run.
insert into {schema}.tasks (
    id, task_name, queue_name, priority, status, ready, args, sent_at, enqueued_at, attempts, failed_attempts, claimed_by, claimed_at, started_at, lease_until
)
select
    {id_at}, case when number %% 50000 = 1 then 'rare' else 'task_' || number %% 40 end, 'queue_' || number %% 8, number %% 3,
    case when number <= 64 then 'RUNNING' else 'PENDING' end,
    number <= 64 or number %% 10 > 1,
    json_build_object('order', number, 'note', repeat('x', 100)), sent_at,
    case when number > 64 and number %% 10 <= 1 then now() + interval '1 hour' else sent_at end,
    case when number > 64 and number %% 10 = 1 then 1 else 0 end,
    case when number > 64 and number %% 10 = 1 then {schema}.add_failed_attempt(
        null, 1, 1, 'BUSY', json_build_object('error_code', 'BUSY', 'message', 'no room for ' || number, 'data', null), null, null, sent_at, sent_at, true
    ) end,
    case when number <= 64 then ('00000000-0000-4000-8000-0000000000' || lpad((number %% 20)::text, 2, '0'))::uuid end,
    case when number <= 64 then sent_at end, case when number <= 64 then sent_at end, case when number <= 64 then now() + interval '1 hour' end
from (
    select number, now() - number * interval '30 ms' as sent_at from generate_series(1, %(count)s::integer) as number
) as task;

-- name: insert_workers
insert into {schema}.workers (id, hostname, pid, processes, concurrency, queues, library_version, app)
select
    ('00000000-0000-4000-8000-0000000000' || lpad(number::text, 2, '0'))::uuid, 'host-' || number, number, 4, 8,
    array(select 'queue_' || queue from generate_series(0, 7) as queue), '1', 'shop:app'
from generate_series(0, 19) as number;

-- name: insert_worker_states
insert into {schema}.worker_states (
    worker_id, snapshot_at, hostname, pid, processes, concurrency, queues, tasks_running, tasks_claimed, memory_usage_mb, children_memory_mb,
    cpu_percent, children_cpu_percent, worker_started_at
)
select workers.id, now() - minute * interval '1 minute', hostname, pid, 4, 8, queues, 3, 3, 50, 200, 1, 100, now() - interval '1 day'
from {schema}.workers
cross join generate_series(0, 1439) as minute;

-- name: insert_dead_workers
insert into {schema}.dead_workers (id, hostname, pid, app, library_version, queues, started_at, last_heartbeat_at, tasks_held, task_ids)
select
    gen_random_uuid(), 'host-' || number, number, 'shop:app', '1', '{}', now() - interval '1 day', now() - interval '10 minutes', 20,
    array(select id from {schema}.finished where status = 'FAILED' and finished_at > now() - interval '10 minutes' order by id offset number * 20 limit 20)
from generate_series(1, 20) as number;

-- name: insert_schedules
insert into {schema}.schedules (
    name, task_name, queue_name, priority, args, pattern, timezone, catch_up_missed, max_catch_up_runs, jitter_ms, overlap, enabled, next_slot_at, app
)
select
    'schedule_' || number, 'task_' || number %% 40, 'queue_' || number %% 8, 100, '{}', '{"type": "interval", "seconds": 60}', 'UTC', false, 0, 0, 'allow',
    true, now() + interval '1 minute', 'shop:app'
from generate_series(1, 50) as number;

-- name: insert_schedule_runs
insert into {schema}.schedule_runs (schedule_name, outcome, slot_at, task_id, decided_at)
select 'schedule_' || number %% 50 + 1, 'ENQUEUED', sent_at, id, sent_at
from (
    select id, sent_at, row_number() over (order by id) as number from {schema}.finished where finished_at > now() - interval '2 days' order by id limit 100000
) as task;

-- name: insert_keys
insert into {schema}.keys (task_name, key, task_id, send_id, args_hash, key_window)
select task_name, 'key-' || number, id, gen_random_uuid(), '', interval '1 day'
from (
    select id, task_name, row_number() over (order by id desc) as number from {schema}.finished where finished_at > now() - interval '1 day' limit 50000
) as task;

-- name: insert_workflows
-- Of five nodes each, and the last one of 2 000. The newest tasks run their nodes.
insert into {schema}.workflows (id, root_id, name, status, unresolved, created_at, started_at, finished_at, error)
select
    id, id, 'flow_' || number %% 30, status, case when status in ('RUNNING', 'PAUSED') then 2 else 0 end, sent_at, sent_at,
    case when status not in ('RUNNING', 'PAUSED') then sent_at + interval '1 minute' end,
    case when status = 'FAILED' then '{"error_code": "NODE_FAILED", "message": "node charge failed", "data": null}'::json end
from (
    select
        {id_at} as id, number, sent_at,
        case
            when number %% 100 < 90 then 'COMPLETED' when number %% 100 < 95 then 'FAILED' when number %% 100 < 97 then 'CANCELLED'
            when number %% 100 < 99 then 'RUNNING' else 'PAUSED'
        end as status
    from (
        select number, now() - number * interval '40 s' as sent_at from generate_series(1, %(count)s::integer) as number
    ) as moment
) as run;

-- name: insert_nodes
with run as (
    select id, row_number() over (order by id desc) as number, created_at from {schema}.workflows
),
node as (
    select run.id, index, row_number() over (order by run.number, index) as place
    from run
    cross join lateral generate_series(0, case when run.number = 1 then 1999 else 4 end) as index
),
task as (
    select id, status, error, row_number() over () as place
    from (select id, status, error from {schema}.finished where finished_at > now() - interval '1 day' limit 100000) as newest
)
insert into {schema}.nodes (
    id, root_id, workflow_id, index, node_id, kind, status, propagated, waits_for, dependents, needed, allow_failed_deps, task_name, task_id, finished_at
)
select
    gen_random_uuid(), node.id, node.id, node.index, 'node_' || node.index, 'task', case when task.status = 'COMPLETED' then 'COMPLETED' else 'FAILED' end,
    true, case when node.index > 0 then array[node.index - 1] else '{}' end, '{}', 0, false, 'task_1', task.id, now()
from node
join task using (place);

-- name: insert_audit
insert into {schema}.audit (at, actor, action, target, count)
select now() - number * interval '1 minute', 'alice', 'retry tasks', 'task ' || number, 1
from generate_series(1, 10000) as number;

-- name: vacuum
vacuum (analyze);

-- name: count_read_rows
-- How many rows of `finished` were read so far, by sequential scans, from its heap, and from its indexes.
select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
from pg_stat_user_tables
where schemaname = '{schema_text}'
and relname like 'finished%%';

-- name: leave_newest_minutes
-- The statistics lag as far as those of a live leader may: what has ended in the newest two minutes is not in them.
with newest as (
    select date_trunc('minute', max(finished_at)) - interval '1 minute' as minute
    from {schema}.finished
),
deleted_tasks as (
    delete from {schema}.task_minutes where minute >= (select newest.minute from newest)
),
deleted_queues as (
    delete from {schema}.queue_minutes where minute >= (select newest.minute from newest)
),
deleted_errors as (
    delete from {schema}.error_minutes where minute >= (select newest.minute from newest)
)
update {schema}.minutes_until
set minute = (select newest.minute from newest);

-- name: end_sessions
-- A session reports what it has read at its end, at the latest.
select pg_terminate_backend(pid, 5000)
from pg_stat_activity
where application_name = 'horsies dashboard';

-- name: flush_statistics
select pg_stat_force_next_flush();

-- name: select_one
select 1;
