-- name: get_cutoff
-- The start (UTC) of the first day that is not old enough to be deleted completely.
select date_trunc('day', (now() - %(keep_s)s::float8 * interval '1 second') at time zone 'UTC') at time zone 'UTC';

-- name: record_key_endings
-- Keys whose window is longer than the retention of their task: store in the key when the task ended.
with ended_keys as materialized (
    select keys.task_name, keys.key, keys.task_id, finished.finished_at
    from {schema}.keys
    join {schema}.finished on finished.id = keys.task_id
    where finished.finished_at >= %(since)s::timestamptz
    and finished.finished_at < %(before)s::timestamptz
    -- Not by a difference of the two, which is undefined for infinite times.
    and finished.finished_at > statement_timestamp() - keys.key_window
    and keys.ended_at is distinct from finished.finished_at
    limit %(limit)s::integer
)
update {schema}.keys
set ended_at = ended_keys.finished_at
from ended_keys
where keys.task_name = ended_keys.task_name
and keys.key = ended_keys.key
-- Another send may have taken the key over since the read above.
and keys.task_id = ended_keys.task_id
returning 1;

-- name: get_old_finished
-- Rows that no DROP removes: those of the default partition, and of partitions that another user owns.
select id::text
from {schema}.finished
where finished_at < %(before)s::timestamptz
and id <> all(%(excluded)s::uuid[])
limit %(limit)s::integer;

-- name: delete_finished
with old_tasks as materialized (
    select id
    from {schema}.finished
    where id = any(%(ids)s::uuid[])
    and finished_at < %(before)s::timestamptz
    for update skip locked
)
delete from {schema}.finished
where id = any(array(select old_tasks.id from old_tasks))
and finished_at < %(before)s::timestamptz
returning 1;

-- name: get_old_trees
-- Whole trees by the end of their root run, oldest first, with their number of nodes. The rows of a tree are needed until everything in it
-- has ended.
select root.id::text, (
    select count(*)
    from {schema}.workflows
    join {schema}.nodes on nodes.workflow_id = workflows.id
    where workflows.root_id = root.id
)
from {schema}.workflows as root
where root.id = root.root_id
and root.finished_at < now() - %(keep_s)s::float8 * interval '1 second'
and root.status in ('COMPLETED', 'FAILED', 'CANCELLED')
and root.id <> all(%(excluded)s::uuid[])
and not exists (
    select from {schema}.workflows
    join {schema}.nodes on nodes.workflow_id = workflows.id
    where workflows.root_id = root.id
    and (
        workflows.status in ('RUNNING', 'PAUSED')
        or nodes.status = 'ENQUEUED' and exists (select from {schema}.tasks where tasks.id = nodes.task_id)
    )
)
order by root.finished_at, root.id
limit %(limit)s::integer;

-- name: begin_deletion
begin isolation level read committed;

-- name: lock_old_trees
-- In the order of ids, as all locks of trees. Trees that are locked, and those that were retried since, are left alone.
select id::text
from {schema}.workflows
where id = any(%(roots)s::uuid[])
and status in ('COMPLETED', 'FAILED', 'CANCELLED')
and finished_at < now() - %(keep_s)s::float8 * interval '1 second'
order by id
for update skip locked;

-- name: delete_nodes
delete from {schema}.nodes
where workflow_id in (select workflows.id from {schema}.workflows where workflows.root_id = any(%(roots)s::uuid[]));

-- name: delete_runs
delete from {schema}.workflows
where root_id = any(%(roots)s::uuid[]);

-- name: commit_deletion
commit;

-- name: get_old_worker_states
-- Ids grow with time, so the oldest rows are found by the primary key.
with oldest_states as materialized (
    select id, snapshot_at
    from {schema}.worker_states
    where id <> all(%(excluded)s::bigint[])
    order by id
    limit %(limit)s::integer
)
select id::text
from oldest_states
where snapshot_at < now() - %(keep_s)s::float8 * interval '1 second';

-- name: delete_worker_states
delete from {schema}.worker_states
where id = any(%(ids)s::bigint[])
returning 1;

-- name: get_old_schedule_runs
select id::text
from {schema}.schedule_runs
where decided_at < now() - %(keep_s)s::float8 * interval '1 second'
and id <> all(%(excluded)s::bigint[])
order by decided_at
limit %(limit)s::integer;

-- name: delete_schedule_runs
delete from {schema}.schedule_runs
where id = any(array(
    select old_runs.id
    from {schema}.schedule_runs as old_runs
    where old_runs.id = any(%(ids)s::bigint[])
    for update skip locked
))
returning 1;

-- name: get_old_dead_workers
select id::text
from {schema}.dead_workers
where found_at < now() - %(keep_s)s::float8 * interval '1 second'
and id <> all(%(excluded)s::uuid[])
limit %(limit)s::integer;

-- name: delete_dead_workers
delete from {schema}.dead_workers
where id = any(%(ids)s::uuid[])
returning 1;

-- name: get_old_audit
-- Ids grow with time, so the oldest rows are found by the primary key.
with oldest_entries as materialized (
    select id, at
    from {schema}.audit
    where id <> all(%(excluded)s::uuid[])
    order by id
    limit %(limit)s::integer
)
select id::text
from oldest_entries
where at < now() - %(keep_s)s::float8 * interval '1 second';

-- name: delete_audit
delete from {schema}.audit
where id = any(%(ids)s::uuid[])
returning 1;

-- name: get_old_attempt_logs
-- By task. One that was retried later has newer ones, too, which stay.
select task_id::text
from {schema}.attempt_logs
where stored_at < %(before)s::timestamptz
and task_id <> all(%(excluded)s::uuid[])
order by stored_at
limit %(limit)s::integer;

-- name: delete_attempt_logs
delete from {schema}.attempt_logs
where task_id = any(%(ids)s::uuid[])
and stored_at < %(before)s::timestamptz
returning 1;

-- name: get_next_key
select task_name, key
from {schema}.keys
where (task_name, key) > (%(after_name)s::text, %(after_key)s::text)
order by task_name, key
limit 1;

-- name: delete_unused_keys
-- One page of a pass over all keys. Returns its last key, its size, and how many keys were deleted. A key is unused when its task is
-- neither live nor ended within the key's window, as for a send (`tasks/enqueue.sql`). The additional hour is for a send that is repeated
-- after a lost answer.
with page as materialized (
    select task_name, key, task_id, send_id, key_window, ended_at
    from {schema}.keys
    where (task_name, key) > (%(after_name)s::text, %(after_key)s::text)
    order by task_name, key
    limit %(limit)s::integer
),
unused_keys as materialized (
    select task_name, key, task_id, send_id
    from page
    where not exists (select from {schema}.tasks where tasks.id = page.task_id)
    and not exists (
        select
        from {schema}.finished
        where finished.id = page.task_id
        and finished.finished_at > statement_timestamp() - page.key_window - interval '1 hour'
    )
    and coalesce(ended_at <= statement_timestamp() - key_window - interval '1 hour', true)
),
-- Only if the key is unchanged: the task of a send that has just taken it over is not in this snapshot.
locked_keys as materialized (
    select keys.task_name, keys.key
    from {schema}.keys
    join unused_keys on unused_keys.task_name = keys.task_name and unused_keys.key = keys.key
    where keys.task_id = unused_keys.task_id
    and keys.send_id = unused_keys.send_id
    order by keys.task_name, keys.key
    for update of keys skip locked
),
deleted_keys as (
    delete from {schema}.keys
    using locked_keys
    where keys.task_name = locked_keys.task_name
    and keys.key = locked_keys.key
    returning 1
)
select
    (select task_name from page order by task_name desc, key desc limit 1),
    (select key from page order by task_name desc, key desc limit 1),
    (select count(*) from page),
    (select count(*) from deleted_keys);
