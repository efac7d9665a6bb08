-- name: insert_one
insert into {schema}.tasks (id, task_name, queue_name, priority, args)
values (%(id)s::uuid, %(task_name)s::text, %(queue_name)s::text, %(priority)s::integer, %(args)s::json);

-- name: insert_and_notify
with new as (
    insert into {schema}.tasks (id, task_name, queue_name, priority, args)
    values (%(id)s::uuid, %(task_name)s::text, %(queue_name)s::text, %(priority)s::integer, %(args)s::json)
    returning queue_name
)
select pg_notify('bench', queue_name)
from new;

-- name: insert_many
insert into {schema}.tasks (id, task_name, queue_name, priority, args)
select *
from unnest(
    %(ids)s::uuid[],
    %(task_names)s::text[],
    %(queue_names)s::text[],
    %(priorities)s::integer[],
    %(args)s::json[]
);

-- name: copy_many
copy {schema}.tasks (id, task_name, queue_name, priority, args) from stdin;

-- name: silence
alter table {schema}.tasks disable trigger tasks_notify_new;

-- name: unsilence
alter table {schema}.tasks enable trigger tasks_notify_new;
