-- name: get_privileges
-- The current user, the owner of the table, and whether the user may create and drop its partitions.
select current_user, pg_get_userbyid(relowner), pg_has_role(relowner, 'USAGE') and has_schema_privilege(nspname, 'CREATE')
from pg_class
join pg_namespace on pg_namespace.oid = relnamespace
where nspname = %(schema)s::text
and relname = 'finished';

-- name: get_missing_partitions
-- Days without a partition: those ahead, and those with rows in the default partition that are still to be kept. For each: how many such
-- rows there are, and whether rows must be moved (those, or rows that arrive while this runs). The cheaper days come first.
with default_rows as materialized (
    select date_trunc('day', finished_at at time zone 'UTC') as day, count(*) as rows
    from {schema}.finished_default
    -- A hand-written row with a time outside of this range stays where it is: its day makes no valid name of a table.
    where finished_at >= '1970-01-01 00:00+00'
    and finished_at < '9999-12-31 00:00+00'
    group by 1
),
missing_days as (
    select day
    from generate_series(
        date_trunc('day', now() at time zone 'UTC'),
        date_trunc('day', now() at time zone 'UTC') + make_interval(days => %(ahead)s::integer - 1),
        interval '1 day'
    ) as day
    union
    select day
    from default_rows
    where day < (now() at time zone 'UTC') + make_interval(days => %(ahead)s::integer)
    and (%(keep_s)s::float8 is null or day + interval '1 day' > (now() - %(keep_s)s::float8 * interval '1 second') at time zone 'UTC')
)
select
    'finished_' || to_char(day, 'YYYYMMDD'),
    to_char(day, 'YYYY-MM-DD'),
    to_char(day + interval '1 day', 'YYYY-MM-DD'),
    coalesce(default_rows.rows, 0),
    default_rows.rows is not null
    or day between (now() at time zone 'UTC') - interval '2 days' and (now() at time zone 'UTC') + interval '1 day' as moves
from missing_days
left join default_rows using (day)
where to_regclass(format('%%I.%%I', %(schema)s::text, 'finished_' || to_char(day, 'YYYYMMDD'))) is null
order by moves, day;

-- name: get_old_partitions
-- Partitions whose last moment is old enough, and whether the user may drop them.
select partitions.relname, to_char(dated.day, 'YYYY-MM-DD'), to_char(dated.day + 1, 'YYYY-MM-DD'), pg_has_role(partitions.relowner, 'USAGE')
from pg_inherits
join pg_class as partitions on partitions.oid = inhrelid
join pg_class as parent on parent.oid = inhparent
join pg_namespace on pg_namespace.oid = parent.relnamespace
cross join lateral (select to_date(substr(partitions.relname, 10), 'YYYYMMDD')) as dated (day)
where nspname = %(schema)s::text
and parent.relname = 'finished'
and partitions.relname ~ '^finished_[0-9]{8}$'
and (dated.day + 1)::timestamp at time zone 'UTC' <= now() - %(keep_s)s::float8 * interval '1 second'
order by partitions.relname;

-- name: begin_partition_change
begin isolation level read committed;

-- name: set_short_timeouts
-- Other sessions wait behind a lock that is requested or held here. Keep both short, or give up for now.
select set_config('lock_timeout', '50ms', true), set_config('statement_timeout', %(statement_timeout)s::text, true);

-- name: lock_partition_changes
-- Two processes that change partitions at once would only block each other.
select pg_advisory_xact_lock(hashtextextended('horsies partitions ' || %(schema)s::text, 0));

-- name: lock_finished
-- The parent first, as all statements do. Sessions with locks on partitions hold the parent's lock already, except a dump or a vacuum,
-- which are not waited for.
lock table only {schema}.finished in access exclusive mode;

-- name: lock_default_partition
lock table only {schema}.finished_default in access exclusive mode nowait;

-- name: create_partition
create table {schema}.{partition} (like {schema}.finished including all);

-- name: move_rows
with moved_rows as (
    delete from {schema}.finished_default
    where finished_at >= '{first} 00:00+00'
    and finished_at < '{after} 00:00+00'
    returning *
)
insert into {schema}.{partition}
select *
from moved_rows;

-- name: attach_partition
alter table {schema}.finished attach partition {schema}.{partition} for values from ('{first} 00:00+00') to ('{after} 00:00+00');

-- name: truncate_partition
truncate {schema}.{partition};

-- name: lock_partition
lock table {schema}.{partition} in access exclusive mode nowait;

-- name: drop_partition
drop table {schema}.{partition};

-- name: commit_partition_change
commit;

-- name: roll_back_partition_change
rollback;
