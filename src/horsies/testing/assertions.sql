-- name: get_enqueued_tasks
-- Also run on callers' own connections, whose search_path is theirs: every operator, function and type is qualified (see `db/pooler.py`).
-- Pending tasks, due now or later, in the order they are due.
select
    tasks.id::pg_catalog.text, tasks.task_name, tasks.queue_name, tasks.priority, keys.key, tasks.enqueued_at,
    tasks.good_until, tasks.attempts,
    extract(epoch from tasks.enqueued_at operator(pg_catalog.-) pg_catalog.statement_timestamp())::pg_catalog.float8,
    tasks.args::pg_catalog.text
from {schema}.tasks
left join {schema}.keys on keys.task_id operator(pg_catalog.=) tasks.id
where tasks.status operator(pg_catalog.=) 'PENDING'
order by tasks.enqueued_at, tasks.id;
