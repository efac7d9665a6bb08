-- name: get_missing_days
-- The days ahead that have no partition yet, and of which the default partition holds nothing.
select to_char(day, 'YYYYMMDD'), to_char(day, 'YYYY-MM-DD'), to_char(day + interval '1 day', 'YYYY-MM-DD')
from generate_series(
    date_trunc('day', now() at time zone 'UTC'),
    date_trunc('day', now() at time zone 'UTC') + make_interval(days => %(ahead)s::integer - 1),
    interval '1 day'
) as day
where to_regclass(format('%%I.%%I', %(schema)s::text, 'finished_' || to_char(day, 'YYYYMMDD'))) is null
and not exists (
    select from {schema}.finished_default
    where finished_at >= day at time zone 'UTC'
    and finished_at < (day + interval '1 day') at time zone 'UTC'
)
order by day;

-- name: begin_briefly
begin isolation level read committed;

-- name: wait_little
-- A new partition locks the default one. Behind an open pg_dump that wait would hold up every finishing worker.
select set_config('lock_timeout', '50ms', true);

-- name: commit_days
commit;

-- name: roll_back_days
rollback;
