-- name: fill_backlog
-- As if sent in the last hour, numbered from 0; spread over this number of queues, or all in the default one.
insert into {schema}.tasks (task_name, queue_name, args, sent_at, enqueued_at)
select
    'note_start',
    case when %(queues)s::integer > 0 then 'queue_' || n %% %(queues)s::integer else 'default' end,
    json_build_object('n', n),
    sent.at,
    sent.at
from generate_series(0, %(count)s::integer - 1) as n
cross join lateral (select now() - interval '1 hour' * (1 - n::float8 / %(count)s::integer)) as sent (at);

-- name: fill_delayed
-- As sends with an `eta` leave them: due from tomorrow on, over a month.
insert into {schema}.tasks (task_name, args, ready, enqueued_at)
select 'note_start', '{"n": -1}', false, now() + interval '1 day' + interval '30 days' * random()
from generate_series(1, %(count)s::integer);

-- name: fill_unknown
-- Tasks of which no worker knows the name, as sends of the last hour have left them; or as workers leave them that have found them.
insert into {schema}.tasks (task_name, args, sent_at, enqueued_at, ready, unknown_since)
select
    'nobody_knows',
    '{"n": -1}',
    sent.at,
    sent.at,
    not %(set_aside)s::boolean,
    case when %(set_aside)s::boolean then sent.at end
from generate_series(1, %(count)s::integer) as n
cross join lateral (select now() - interval '1 hour' * (1 - n::float8 / %(count)s::integer)) as sent (at);
