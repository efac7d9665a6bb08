-- name: get_enqueued
-- What waits to be run, now or later, in the order it is due.
select
    tasks.id::text, tasks.task_name, tasks.queue_name, tasks.priority, keys.key, tasks.enqueued_at,
    tasks.good_until, tasks.attempts, extract(epoch from tasks.enqueued_at - statement_timestamp())::float8,
    tasks.args::text
from {schema}.tasks
left join {schema}.keys on keys.task_id = tasks.id
where tasks.status = 'PENDING'
order by tasks.enqueued_at, tasks.id;
