-- name: get_rights
-- Who we are, whose table it is, and whether we may make and drop its days.
select current_user, pg_get_userbyid(relowner), pg_has_role(relowner, 'USAGE') and has_schema_privilege(nspname, 'CREATE')
from pg_class
join pg_namespace on pg_namespace.oid = relnamespace
where nspname = %(schema)s::text
and relname = 'finished';

-- name: get_missing_days
-- The days ahead that have no partition yet, and those of which the default partition holds rows that are still to be kept, with their number, and
-- whether rows are to be moved: those, or what arrives while we look. The days that ask for less come first.
with held as materialized (
    select date_trunc('day', finished_at at time zone 'UTC') as day, count(*) as rows
    from {schema}.finished_default
    -- What somebody wrote by hand with a moment of no day stays where it is: such a day, or none, makes no name of a table.
    where finished_at >= '1970-01-01 00:00+00'
    and finished_at < '9999-12-31 00:00+00'
    group by 1
),
wanted as (
    select day
    from generate_series(
        date_trunc('day', now() at time zone 'UTC'),
        date_trunc('day', now() at time zone 'UTC') + make_interval(days => %(ahead)s::integer - 1),
        interval '1 day'
    ) as day
    union
    select day
    from held
    where day < (now() at time zone 'UTC') + make_interval(days => %(ahead)s::integer)
    and (%(keep_s)s::float8 is null or day + interval '1 day' > (now() - %(keep_s)s::float8 * interval '1 second') at time zone 'UTC')
)
select
    'finished_' || to_char(day, 'YYYYMMDD'),
    to_char(day, 'YYYY-MM-DD'),
    to_char(day + interval '1 day', 'YYYY-MM-DD'),
    coalesce(held.rows, 0),
    held.rows is not null
    or day between (now() at time zone 'UTC') - interval '2 days' and (now() at time zone 'UTC') + interval '1 day' as moves
from wanted
left join held using (day)
where to_regclass(format('%%I.%%I', %(schema)s::text, 'finished_' || to_char(day, 'YYYYMMDD'))) is null
order by moves, day;

-- name: get_old_days
-- Days of which even the last moment is old enough, and whether they are ours to drop.
select days.relname, to_char(made.day, 'YYYY-MM-DD'), to_char(made.day + 1, 'YYYY-MM-DD'), pg_has_role(days.relowner, 'USAGE')
from pg_inherits
join pg_class as days on days.oid = inhrelid
join pg_class as whole on whole.oid = inhparent
join pg_namespace on pg_namespace.oid = whole.relnamespace
cross join lateral (select to_date(substr(days.relname, 10), 'YYYYMMDD')) as made (day)
where nspname = %(schema)s::text
and whole.relname = 'finished'
and days.relname ~ '^finished_[0-9]{8}$'
and (made.day + 1)::timestamp at time zone 'UTC' <= now() - %(keep_s)s::float8 * interval '1 second'
order by days.relname;

-- name: begin_briefly
begin isolation level read committed;

-- name: wait_little
-- Whoever comes while we wait for a lock waits behind us, and whoever comes while we hold it waits too: neither for long, or not at all now.
select set_config('lock_timeout', '50ms', true), set_config('statement_timeout', %(statement_timeout)s::text, true);

-- name: take_turns
-- Two that make days at once would only be in each other's way.
select pg_advisory_xact_lock(hashtextextended('horsies days ' || %(schema)s::text, 0));

-- name: lock_finished
-- First the whole, as everybody does. Those who have locks on parts of it came by way of the whole, but for a dump or a vacuum: these are not waited for.
lock table only {schema}.finished in access exclusive mode;

-- name: lock_default
lock table only {schema}.finished_default in access exclusive mode nowait;

-- name: create_day
create table {schema}.{day} (like {schema}.finished including all);

-- name: move_rows
with moved as (
    delete from {schema}.finished_default
    where finished_at >= '{first} 00:00+00'
    and finished_at < '{after} 00:00+00'
    returning *
)
insert into {schema}.{day}
select *
from moved;

-- name: attach_day
alter table {schema}.finished attach partition {schema}.{day} for values from ('{first} 00:00+00') to ('{after} 00:00+00');

-- name: truncate_day
truncate {schema}.{day};

-- name: lock_day
lock table {schema}.{day} in access exclusive mode nowait;

-- name: drop_day
drop table {schema}.{day};

-- name: commit_days
commit;

-- name: roll_back_days
rollback;
