-- name: acquire_lease
-- The holder of the lease is the maintenance leader. Its duties are safe when two processes do them at once; the lease only saves the work.
-- A lease that is longer than any that we write was written by hand, or before a clock was set back. It does not count, or there would be
-- no leader until then.
with acquired_lease as (
    insert into {schema}.maintenance_lease (holder, expires_at)
    select %(worker)s::uuid, now() + %(lease_ms)s::integer * interval '1 ms'
    -- While another worker holds it, write nothing and lock no row.
    where not exists (
        select from {schema}.maintenance_lease
        where holder <> %(worker)s::uuid
        and expires_at >= now()
        and expires_at <= now() + %(longest_ms)s::integer * interval '1 ms'
    )
    on conflict (singleton) do update
    set holder = excluded.holder, expires_at = excluded.expires_at
    where maintenance_lease.holder = excluded.holder
    or maintenance_lease.expires_at < now()
    or maintenance_lease.expires_at > now() + %(longest_ms)s::integer * interval '1 ms'
    returning holder
)
select
    exists (select from acquired_lease),
    coalesce((select extract(epoch from expires_at - now()) from {schema}.maintenance_lease), 0)::float8;

-- name: release_lease
delete from {schema}.maintenance_lease
where holder = %(worker)s::uuid;

-- name: get_heartbeats
select id::text, heartbeat_at
from {schema}.workers;

-- name: begin_rescue
begin isolation level read committed;

-- name: set_rescue_limits
-- Wait for locked rows, but not for long: the leader has other duties.
select set_config('lock_timeout', '1s', true);

-- name: remove_dead_worker
-- Only if it has sent no heartbeat since it was last seen. Its next heartbeat finds no row, and the worker starts again. It is remembered with the tasks that
-- it held, for operators.
with removed_worker as (
    delete from {schema}.workers
    where id = %(worker)s::uuid
    and heartbeat_at = %(heartbeat_at)s::timestamptz
    returning *
),
held_tasks as (
    select count(*) as count, coalesce((array_agg(tasks.id order by tasks.id))[:%(named)s::integer], '{}') as ids
    from {schema}.tasks
    where tasks.status <> 'PENDING'
    and tasks.claimed_by = %(worker)s::uuid
),
dead_worker as (
    insert into {schema}.dead_workers (
        id, hostname, pid, app, library_version, queues, started_at, last_heartbeat_at, tasks_held, task_ids
    )
    select
        removed_worker.id, removed_worker.hostname, removed_worker.pid, removed_worker.app, removed_worker.library_version, removed_worker.queues,
        removed_worker.started_at, removed_worker.heartbeat_at, held_tasks.count, held_tasks.ids
    from removed_worker
    cross join held_tasks
    -- One that was declared dead, came back under its id, and died again.
    on conflict (id) do update
    set
        last_heartbeat_at = excluded.last_heartbeat_at,
        found_at = excluded.found_at,
        tasks_held = excluded.tasks_held,
        task_ids = excluded.task_ids
)
select removed_worker.id
from removed_worker;

-- name: commit_rescue
commit;

-- name: get_orphans
-- Tasks in flight whose worker is not registered any more: it is dead, or it claimed after it was declared dead.
-- Select all of them, then the first ones: with ORDER BY id LIMIT alone, the planner walks the primary key through the whole backlog.
with orphans as materialized (
    select id, claim_no, status, claimed_by, root_id
    from {schema}.tasks
    -- Listed as values, they look few to a planner without statistics.
    where status in ('CLAIMED', 'RUNNING')
    and not exists (select from {schema}.workers where workers.id = tasks.claimed_by)
    and id <> all(%(excluded)s::uuid[])
)
select id::text, claim_no, status, claimed_by::text, root_id::text
from orphans
order by orphans.id
limit %(limit)s::integer;

-- name: lock_orphans
-- Locked rows are left to the next pass.
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[])
and claimed_by = %(worker)s::uuid
order by id
for update skip locked;

-- name: fail_task
-- For a row that no other statement can end: it computes nothing from the row's values, and there is no retry.
with deleted_task as (
    delete from {schema}.tasks
    where id = %(id)s::uuid
    and claim_no = %(claim_no)s::integer
    and claimed_by is not distinct from %(worker)s::uuid
    returning *
)
insert into {schema}.finished ({moved_columns}, status, attempts, claimed_by, claimed_at, started_at, error_code, error, finished_at)
select
    {moved_columns}, 'FAILED', greatest(0, least(attempts, 2147483646)) + 1, claimed_by, claimed_at, started_at,
    %(error_code)s::text, %(error)s::json, statement_timestamp()
from deleted_task
returning id::text;

-- name: get_expired_leases
-- Claims whose lease ran out before they started.
select id::text, claim_no, claimed_by::text
from {schema}.tasks
where status = 'CLAIMED'
and lease_until < statement_timestamp()
and id <> all(%(excluded)s::uuid[])
order by id
limit %(limit)s::integer;

-- name: release_expired_claims
-- Return them to the queue.
with expired_claims as materialized (
    select id
    from {schema}.tasks
    where id = any(%(ids)s::uuid[])
    and status = 'CLAIMED'
    and lease_until < statement_timestamp()
    order by id
    for update skip locked
),
released_tasks as (
    update {schema}.tasks
    set status = 'PENDING', claimed_by = null, claimed_at = null, lease_until = null, started_at = null
    where id = any(array(select expired_claims.id from expired_claims))
    and status = 'CLAIMED'
    returning queue_name, priority, enqueued_at
)
select pg_notify('{new_channel}', {schema}.wakeup_payload(true, priority, min(enqueued_at), queue_name))
from released_tasks
group by queue_name, priority;

-- name: get_expired_tasks
-- Tasks that have not started by their `good_until`.
select id::text
from {schema}.tasks
where good_until is not null
and good_until <= statement_timestamp()
and status <> 'RUNNING'
and id <> all(%(excluded)s::uuid[])
order by id
limit %(limit)s::integer;

-- name: lock_expired_tasks
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[])
and good_until <= statement_timestamp()
and status <> 'RUNNING'
order by id
for update skip locked;

-- name: get_cancelled_pending_tasks
-- Tasks with a cancel request that were released before they started.
select id::text
from {schema}.tasks
where status = 'PENDING'
and cancel_requested_at is not null
and id <> all(%(excluded)s::uuid[])
order by id
limit %(limit)s::integer;

-- name: lock_cancelled_pending_tasks
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[])
and status = 'PENDING'
and cancel_requested_at is not null
order by id
for update skip locked;

-- name: get_unpromoted_tasks
-- Tasks that a worker should have promoted long ago.
select id::text, claim_no, null
from {schema}.tasks
where status = 'PENDING'
and not ready
and unknown_since is null
and enqueued_at < statement_timestamp() - %(after_s)s::float8 * interval '1 second'
and id <> all(%(excluded)s::uuid[])
order by enqueued_at
limit %(limit)s::integer;

-- name: promote_overdue_tasks
with promoted_tasks as (
    update {schema}.tasks
    set ready = true
    where id = any(%(ids)s::uuid[])
    and status = 'PENDING'
    and not ready
    and unknown_since is null
    and enqueued_at <= statement_timestamp()
    returning queue_name, priority, enqueued_at
)
select pg_notify('{new_channel}', {schema}.wakeup_payload(true, priority, min(enqueued_at), queue_name))
from promoted_tasks
group by queue_name, priority;
