-- name: request_leave
-- The first request counts: a worker leaves once. The time at which the row is written, because it is compared with that of the heartbeat.
update {schema}.workers
set leave_requested_at = coalesce(leave_requested_at, clock_timestamp())
where id = any(%(ids)s::uuid[])
returning id::text;

-- name: notify_workers
-- The worker reads its row. Nothing but the row can make it leave.
select pg_notify('{control_channel}', id::text || ' ping')
from {schema}.workers
where id = any(%(ids)s::uuid[]);

-- name: get_children
select children::text
from {schema}.workers
where id = %(id)s::uuid;

-- name: list_dead_workers
-- With what became of the tasks that they held, by status, as far as their ids are stored. A task ends after its worker has died (an hour, because a clock may
-- be set back), so only the partitions from then until tomorrow are read. GONE: deleted since.
select
    dead.id::text, dead.hostname, dead.pid, dead.app, dead.started_at, dead.last_heartbeat_at, dead.found_at, dead.tasks_held,
    coalesce((
        select json_object_agg(outcome.status, outcome.count)
        from (
            select coalesce(stored.status, 'GONE') as status, count(*) as count
            from unnest(dead.task_ids) as held (id)
            left join lateral (
                select tasks.status
                from {schema}.tasks
                where tasks.id = held.id
                union all
                select finished.status
                from {schema}.finished
                where finished.id = held.id
                and finished.finished_at >= greatest(dead.last_heartbeat_at, '1970-01-01 00:00+00') - interval '1 hour'
                and finished.finished_at < statement_timestamp() + interval '1 day'
                limit 1
            ) as stored on true
            group by 1
        ) as outcome
    ), '{}'),
    dead.task_ids::text[]
from {schema}.dead_workers as dead
where dead.found_at > statement_timestamp() - %(hours)s::integer * interval '1 hour'
order by dead.found_at desc, dead.id
limit %(limit)s::integer;
