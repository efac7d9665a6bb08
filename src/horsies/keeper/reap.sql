-- name: take_lease
-- The keeper is whoever holds the lease. Its duties are safe when two do them at once; the lease only saves the work.
with taken as (
    insert into {schema}.keeper (holder, until)
    select %(worker)s::uuid, now() + %(lease_ms)s::integer * interval '1 ms'
    -- While somebody else holds it, nothing is written, and no row is locked.
    where not exists (select from {schema}.keeper where holder <> %(worker)s::uuid and until >= now())
    on conflict (singleton) do update
    set holder = excluded.holder, until = excluded.until
    where keeper.holder = excluded.holder or keeper.until < now()
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
)
select id::text, claim_no, status, claimed_by::text, root_id::text
from orphans
order by orphans.id
limit %(limit)s::integer;

-- name: release_overdue
-- Claims whose lease ran out before they were started: back to the others.
with overdue as materialized (
    select id
    from {schema}.tasks
    where status = 'CLAIMED'
    and lease_until < statement_timestamp()
    order by id
    limit %(limit)s::integer
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

-- name: lock_late
-- What has not begun when its time is over never will.
select id::text
from {schema}.tasks
where good_until is not null
and good_until <= statement_timestamp()
and status <> 'RUNNING'
order by id
limit %(limit)s::integer
for update skip locked;

-- name: lock_returned
-- What was asked to stop and came back unbegun.
select id::text
from {schema}.tasks
where status = 'PENDING'
and cancel_requested_at is not null
order by id
limit %(limit)s::integer
for update skip locked;
