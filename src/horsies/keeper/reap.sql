-- name: take_lease
-- The keeper is whoever holds the lease. Its duties are safe when two do them at once; the lease only saves the work. A lease that runs for longer than
-- any that we write was written by hand, or by a clock that has been set back since: it does not count, or there would be no keeper until then.
with taken as (
    insert into {schema}.keeper (holder, until)
    select %(worker)s::uuid, now() + %(lease_ms)s::integer * interval '1 ms'
    -- While somebody else holds it, nothing is written, and no row is locked.
    where not exists (
        select from {schema}.keeper
        where holder <> %(worker)s::uuid
        and until >= now()
        and until <= now() + %(longest_ms)s::integer * interval '1 ms'
    )
    on conflict (singleton) do update
    set holder = excluded.holder, until = excluded.until
    where keeper.holder = excluded.holder
    or keeper.until < now()
    or keeper.until > now() + %(longest_ms)s::integer * interval '1 ms'
    returning holder
)
select
    exists (select from taken),
    coalesce((select extract(epoch from until - now()) from {schema}.keeper), 0)::float8;

-- name: give_up_lease
delete from {schema}.keeper
where holder = %(worker)s::uuid;

-- name: get_heartbeats
select id::text, heartbeat_at
from {schema}.workers;

-- name: begin_reap
begin isolation level read committed;

-- name: set_reap_limits
-- The orphans wait for whoever holds one of them locked, but not for long: the keeper has other duties.
select set_config('lock_timeout', '1s', true);

-- name: bury_worker
-- Only if it has not beaten since it was last seen; its next heartbeat finds no row, and it starts anew.
delete from {schema}.workers
where id = %(worker)s::uuid
and heartbeat_at = %(heartbeat_at)s::timestamptz
returning id;

-- name: commit_reap
commit;

-- name: get_orphans
-- Rows in flight whose worker is not registered (any more): of the dead, and of a zombie that claimed after its burial.
-- All of them, and then the first: who asks for the first ones by id is served from the index of ids, through everything that waits.
with orphans as materialized (
    select id, claim_no, status, claimed_by, root_id
    from {schema}.tasks
    -- Named one by one, they look few also to who knows nothing of the table.
    where status in ('CLAIMED', 'RUNNING')
    and not exists (select from {schema}.workers where workers.id = tasks.claimed_by)
    and id <> all(%(excluded)s::uuid[])
)
select id::text, claim_no, status, claimed_by::text, root_id::text
from orphans
order by orphans.id
limit %(limit)s::integer;

-- name: lock_orphans
-- What somebody holds locked is left to the next look: nobody else is kept waiting for it.
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[])
and claimed_by = %(worker)s::uuid
order by id
for update skip locked;

-- name: end_plainly
-- For a row that no other statement can end: nothing is computed of its values, and there is no retry.
with gone as (
    delete from {schema}.tasks
    where id = %(id)s::uuid
    and claim_no = %(claim_no)s::integer
    and claimed_by is not distinct from %(worker)s::uuid
    returning *
)
insert into {schema}.finished (
    id, task_name, queue_name, priority, status, args,
    error_code, error,
    sent_at, enqueued_at, good_until,
    timeout_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, claimed_by, claimed_at, started_at, finished_at, root_id, node_id, trace
)
select
    id, task_name, queue_name, priority, 'FAILED', args,
    %(error_code)s::text, %(error)s::json,
    sent_at, enqueued_at, good_until,
    timeout_ms, retry_jitter, retry_for, failed_attempts, progress,
    greatest(0, least(attempts, 2147483646)) + 1, claim_no, claimed_by, claimed_at, started_at, statement_timestamp(), root_id, node_id, trace
from gone
returning id::text;

-- name: get_past_leases
-- Claims whose lease ran out before they were started.
select id::text, claim_no, claimed_by::text
from {schema}.tasks
where status = 'CLAIMED'
and lease_until < statement_timestamp()
and id <> all(%(excluded)s::uuid[])
order by id
limit %(limit)s::integer;

-- name: release_overdue
-- Back to the others.
with overdue as materialized (
    select id
    from {schema}.tasks
    where id = any(%(ids)s::uuid[])
    and status = 'CLAIMED'
    and lease_until < statement_timestamp()
    order by id
    for update skip locked
),
released as (
    update {schema}.tasks
    set status = 'PENDING', claimed_by = null, claimed_at = null, lease_until = null, started_at = null
    where id = any(array(select overdue.id from overdue))
    and status = 'CLAIMED'
    returning queue_name, priority, enqueued_at
)
select pg_notify('{new_channel}', {schema}.news_of(true, priority, min(enqueued_at), queue_name))
from released
group by queue_name, priority;

-- name: get_late
-- What has not begun when its time is over never will.
select id::text
from {schema}.tasks
where good_until is not null
and good_until <= statement_timestamp()
and status <> 'RUNNING'
and id <> all(%(excluded)s::uuid[])
order by id
limit %(limit)s::integer;

-- name: lock_late
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[])
and good_until <= statement_timestamp()
and status <> 'RUNNING'
order by id
for update skip locked;

-- name: get_returned
-- What was asked to stop and came back unbegun.
select id::text
from {schema}.tasks
where status = 'PENDING'
and cancel_requested_at is not null
and id <> all(%(excluded)s::uuid[])
order by id
limit %(limit)s::integer;

-- name: lock_returned
select id::text
from {schema}.tasks
where id = any(%(ids)s::uuid[])
and status = 'PENDING'
and cancel_requested_at is not null
order by id
for update skip locked;

-- name: get_unpromoted
-- What every worker should have promoted long ago.
select id::text, claim_no, null
from {schema}.tasks
where status = 'PENDING'
and not ready
and unknown_since is null
and enqueued_at < statement_timestamp() - %(after_s)s::float8 * interval '1 second'
and id <> all(%(excluded)s::uuid[])
order by enqueued_at
limit %(limit)s::integer;

-- name: promote_late
with promoted as (
    update {schema}.tasks
    set ready = true
    where id = any(%(ids)s::uuid[])
    and status = 'PENDING'
    and not ready
    and unknown_since is null
    and enqueued_at <= statement_timestamp()
    returning queue_name, priority, enqueued_at
)
select pg_notify('{new_channel}', {schema}.news_of(true, priority, min(enqueued_at), queue_name))
from promoted
group by queue_name, priority;
