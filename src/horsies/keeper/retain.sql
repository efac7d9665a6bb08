-- name: get_cutoff
-- The first moment (UTC) of the day that is not old enough to go as a whole.
select date_trunc('day', (now() - %(keep_s)s::float8 * interval '1 second') at time zone 'UTC') at time zone 'UTC';

-- name: note_endings
-- Keys whose window is longer than their task's row is kept: from now on the key itself knows when its task ended.
with ended as materialized (
    select keys.task_name, keys.key, keys.task_id, finished.finished_at
    from {schema}.keys
    join {schema}.finished on finished.id = keys.task_id
    where finished.finished_at >= %(since)s::timestamptz
    and finished.finished_at < %(before)s::timestamptz
    -- Not the distance between the two, which infinite moments do not have.
    and finished.finished_at > statement_timestamp() - keys.key_window
    and keys.ended_at is distinct from finished.finished_at
    limit %(limit)s::integer
)
update {schema}.keys
set ended_at = ended.finished_at
from ended
where keys.task_name = ended.task_name
and keys.key = ended.key
-- Somebody may have taken the key over since we looked.
and keys.task_id = ended.task_id
returning 1;

-- name: get_old_finished
-- Where no day can be dropped: what the default partition caught, and the days of others.
select id::text
from {schema}.finished
where finished_at < %(before)s::timestamptz
and id <> all(%(excluded)s::uuid[])
limit %(limit)s::integer;

-- name: forget_finished
with old as materialized (
    select id
    from {schema}.finished
    where id = any(%(ids)s::uuid[])
    and finished_at < %(before)s::timestamptz
    for update skip locked
)
delete from {schema}.finished
where id = any(array(select old.id from old))
and finished_at < %(before)s::timestamptz
returning 1;

-- name: get_old_trees
-- Whole trees by the end of the run at their top, oldest first, with how many nodes they have. What goes on below is not waited for by anybody, but its
-- rows are needed until it has ended.
select top.id::text, (
    select count(*)
    from {schema}.workflows
    join {schema}.nodes on nodes.workflow_id = workflows.id
    where workflows.root_id = top.id
)
from {schema}.workflows as top
where top.id = top.root_id
and top.finished_at < now() - %(keep_s)s::float8 * interval '1 second'
and top.status in ('COMPLETED', 'FAILED', 'CANCELLED')
and top.id <> all(%(excluded)s::uuid[])
and not exists (
    select from {schema}.workflows
    join {schema}.nodes on nodes.workflow_id = workflows.id
    where workflows.root_id = top.id
    and (
        workflows.status in ('RUNNING', 'PAUSED')
        or nodes.status = 'ENQUEUED' and exists (select from {schema}.tasks where tasks.id = nodes.task_id)
    )
)
order by top.finished_at, top.id
limit %(limit)s::integer;

-- name: begin_forgetting
begin isolation level read committed;

-- name: lock_old_trees
-- In the order that everybody keeps. A tree that somebody is at is left alone, and so is one that has been retried meanwhile.
select id::text
from {schema}.workflows
where id = any(%(roots)s::uuid[])
and status in ('COMPLETED', 'FAILED', 'CANCELLED')
and finished_at < now() - %(keep_s)s::float8 * interval '1 second'
order by id
for update skip locked;

-- name: forget_nodes
delete from {schema}.nodes
where workflow_id in (select workflows.id from {schema}.workflows where workflows.root_id = any(%(roots)s::uuid[]));

-- name: forget_runs
delete from {schema}.workflows
where root_id = any(%(roots)s::uuid[]);

-- name: commit_forgetting
commit;

-- name: get_old_states
-- Their ids grow with time, so the oldest are found by the primary key.
with oldest as materialized (
    select id, snapshot_at
    from {schema}.worker_states
    where id <> all(%(excluded)s::bigint[])
    order by id
    limit %(limit)s::integer
)
select id::text
from oldest
where snapshot_at < now() - %(keep_s)s::float8 * interval '1 second';

-- name: forget_states
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

-- name: forget_schedule_runs
delete from {schema}.schedule_runs
where id = any(array(
    select old.id
    from {schema}.schedule_runs as old
    where old.id = any(%(ids)s::bigint[])
    for update skip locked
))
returning 1;

-- name: get_next_key
select task_name, key
from {schema}.keys
where (task_name, key) > (%(after_name)s::text, %(after_key)s::text)
order by task_name, key
limit 1;

-- name: forget_keys
-- One stretch of a walk over all keys: where it ends, how many were looked at, and how many are gone. A key may go when its task neither lives nor ended
-- within its window, as for a send (`tasks/keys.sql`); the hour is for a send whose answer was lost and which is made again.
with stretch as materialized (
    select task_name, key, task_id, send_id, key_window, ended_at
    from {schema}.keys
    where (task_name, key) > (%(after_name)s::text, %(after_key)s::text)
    order by task_name, key
    limit %(limit)s::integer
),
spent as materialized (
    select task_name, key, task_id, send_id
    from stretch
    where not exists (select from {schema}.tasks where tasks.id = stretch.task_id)
    and not exists (
        select
        from {schema}.finished
        where finished.id = stretch.task_id
        and finished.finished_at > statement_timestamp() - stretch.key_window - interval '1 hour'
    )
    and coalesce(ended_at <= statement_timestamp() - key_window - interval '1 hour', true)
),
-- Only if it is still the key that was seen: the task of a send that has just taken it over is not in our snapshot.
locked as materialized (
    select keys.task_name, keys.key
    from {schema}.keys
    join spent on spent.task_name = keys.task_name and spent.key = keys.key
    where keys.task_id = spent.task_id
    and keys.send_id = spent.send_id
    order by keys.task_name, keys.key
    for update of keys skip locked
),
gone as (
    delete from {schema}.keys
    using locked
    where keys.task_name = locked.task_name
    and keys.key = locked.key
    returning 1
)
select
    (select task_name from stretch order by task_name desc, key desc limit 1),
    (select key from stretch order by task_name desc, key desc limit 1),
    (select count(*) from stretch),
    (select count(*) from gone);
