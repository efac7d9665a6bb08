-- name: promote_tasks
-- What has become due joins the claim index; whoever has room is told. A row that cannot be changed does not fail it (see the migration).
select payload
from {schema}.promote(%(limit)s::integer) as payload;

-- name: get_next_due
-- In how many seconds the next one is due, null when nothing waits; and whether something is due already, because it is held locked or cannot be
-- promoted: that must not hide what comes after it.
select
    (
        select extract(epoch from tasks.enqueued_at - clock_timestamp())::float8
        from {schema}.tasks
        where tasks.status = 'PENDING'
        and not tasks.ready
        and tasks.unknown_since is null
        and tasks.enqueued_at > statement_timestamp()
        order by tasks.enqueued_at
        limit 1
    ),
    exists (
        select
        from {schema}.tasks
        where tasks.status = 'PENDING'
        and not tasks.ready
        and tasks.unknown_since is null
        and tasks.enqueued_at <= statement_timestamp()
    );
