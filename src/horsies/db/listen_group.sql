-- name: take_listen_slot
-- The first free slot, or no row. The lock lasts until the session ends, so a process that dies frees its slot.
select slot.number
from generate_series(0, %(slots)s::integer - 1) as slot (number)
where pg_try_advisory_lock(%(group)s::integer, slot.number)
limit 1;

-- name: release_listen_slot
select pg_advisory_unlock(%(group)s::integer, %(slot)s::integer);

-- name: get_listen_slots
select objid::bigint::integer
from pg_locks
where locktype = 'advisory'
and database = (select oid from pg_database where datname = current_database())
and classid = %(group)s::bigint::oid
and objsubid = 2
and objid < %(slots)s::bigint::oid
and granted
order by objid;

-- name: mark_waiting
select pg_try_advisory_lock_shared(%(group)s::integer, %(mark)s::integer);

-- name: unmark_waiting
select pg_advisory_unlock_shared(%(group)s::integer, %(mark)s::integer);

-- name: check_waiting
-- True: no process waits for a slot. Nothing is kept: the lock ends with this transaction.
select pg_try_advisory_xact_lock(%(group)s::integer, %(mark)s::integer);

-- name: count_waiting
select count(*)
from pg_locks
where locktype = 'advisory'
and database = (select oid from pg_database where datname = current_database())
and classid = %(group)s::bigint::oid
and objsubid = 2
and objid = %(mark)s::bigint::oid
and granted;

-- name: notify_listeners
select pg_notify('{new_channel}', %(payload)s::text);
