-- name: get_clock
select extract(epoch from clock_timestamp())::float;

-- name: get_id_skew
-- The first 48 bits of an id are the milliseconds of its sender's clock; `sent_at` is from the database's clock. Only the newest ids are
-- compared.
with newest_tasks as (
    (select id, sent_at from {schema}.tasks order by id desc limit 100)
    union all
    (select id, sent_at from {schema}.finished order by id desc limit 100)
),
id_skews as (
    select ('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0 - extract(epoch from sent_at) as by_s
    from newest_tasks
    where substr(id::text, 15, 1) = '7'
    and sent_at > now() - interval '1 day'
)
select
    count(*)::integer,
    (count(*) filter (where abs(by_s) > %(max_s)s::float))::integer,
    (percentile_disc(0.5) within group (order by by_s) filter (where abs(by_s) > %(max_s)s::float))::float
from id_skews;

-- name: get_heartbeats_ahead
select count(*)::integer, extract(epoch from max(heartbeat_at) - clock_timestamp())::float
from {schema}.workers
where heartbeat_at > clock_timestamp() + %(max_s)s::float * interval '1 s';
