-- name: promote_tasks
-- What has become due joins the claim index; whoever has room is told.
with due as materialized (
    select id
    from {schema}.tasks
    where status = 'PENDING'
    and not ready
    and enqueued_at <= statement_timestamp()
    order by enqueued_at
    limit %(limit)s::integer
    for update skip locked
),
promoted as (
    update {schema}.tasks
    set ready = true
    where id = any(array(select due.id from due))
    returning queue_name, priority, enqueued_at
),
news as (
    select {schema}.news_of(true, priority, min(enqueued_at), queue_name) as payload
    from promoted
    group by queue_name, priority
)
select pg_notify('{new_channel}', payload), payload
from news;

-- name: get_next_due
-- In how many seconds the next one is due; null when nothing waits.
select extract(epoch from min(enqueued_at) - clock_timestamp())::float8
from {schema}.tasks
where status = 'PENDING'
and not ready;
