-- name: claim
-- The plain claim, without marks, leases and expiry.
with next as materialized (
    select id
    from {schema}.tasks
    where queue_name = 'default'
    and status = 'PENDING'
    and ready
    order by priority, enqueued_at, id
    limit %(limit)s::integer
    for update skip locked
)
update {schema}.tasks
set
    status = 'RUNNING',
    claim_no = claim_no + 1,
    claimed_by = %(worker)s::uuid,
    claimed_at = now(),
    started_at = now()
where id = any(array(select next.id from next))
returning id::text, claim_no, task_name, args::text;

-- name: finish
with ended as (
    delete from {schema}.tasks
    where id = any(%(ids)s::uuid[])
    and claimed_by = %(worker)s::uuid
    returning *
)
insert into {schema}.finished (
    id, task_name, queue_name, priority, status, args, result,
    sent_at, enqueued_at, good_until, attempts, claim_no,
    claimed_by, claimed_at, started_at, finished_at
)
select
    ended.id, task_name, queue_name, priority, 'COMPLETED', args, ending.result,
    sent_at, enqueued_at, good_until, attempts + 1, claim_no,
    claimed_by, claimed_at, started_at, clock_timestamp()
from ended
join unnest(%(ids)s::uuid[], %(results)s::json[]) as ending (id, result) on ending.id = ended.id;
