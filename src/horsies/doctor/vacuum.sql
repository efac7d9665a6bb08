-- name: get_long_transactions
-- Only of this database: transactions in other databases do not keep our dead rows.
select
    pid,
    coalesce(nullif(application_name, ''), 'no application name'),
    usename::text,
    coalesce(state, backend_type, 'hidden'),
    extract(epoch from now() - xact_start)::float,
    age(backend_xmin)
from pg_stat_activity
where datname = current_database()
and pid <> pg_backend_pid()
and backend_type is distinct from 'autovacuum worker'
and xact_start < now() - %(max_s)s::float * interval '1 s'
order by xact_start
limit 20;

-- name: are_sessions_hidden
select not pg_has_role('pg_read_all_stats', 'USAGE')
and exists (select from pg_stat_activity where datname = current_database() and usename <> current_user);

-- name: get_prepared_transactions
select gid, owner::text, extract(epoch from now() - prepared)::float, age(transaction)
from pg_prepared_xacts
where database = current_database()
and prepared < now() - %(max_s)s::float * interval '1 s'
order by prepared
limit 20;

-- name: get_replication_slots
select slot_name::text, active, age, behind
from pg_replication_slots
cross join lateral (
    select
        coalesce(greatest(age(xmin), age(catalog_xmin)), 0) as age,
        coalesce(pg_wal_lsn_diff(
            case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_lsn() end, restart_lsn
        ), 0)::bigint as behind
) as lag
where age > %(max_age)s::bigint or behind > %(max_bytes)s::bigint
order by slot_name
limit 20;

-- name: get_unvacuumed_tables
-- Whether the server runs no autovacuum at all, and the tables for which it is disabled.
select
    current_setting('autovacuum') = 'off' or current_setting('track_counts') = 'off',
    array(
        select relname::text
        from pg_class
        join pg_namespace on pg_namespace.oid = relnamespace
        where nspname = %(schema)s::text
        and relkind = 'r'
        and exists (
            select from pg_options_to_table(reloptions)
            where option_name = 'autovacuum_enabled'
            and not option_value::boolean
        )
        order by relname
        limit 20
    );

-- name: get_dead_rows
-- `tasks` is vacuumed after 2 000 dead rows, the others after a fifth of their rows.
select relname::text, n_live_tup, n_dead_tup, extract(epoch from now() - greatest(last_vacuum, last_autovacuum))::float
from pg_stat_all_tables
where schemaname = %(schema)s::text
and relname in ('tasks', 'nodes', 'workflows', 'workers', 'keys')
and n_dead_tup > %(max_dead)s::bigint
and (relname = 'tasks' or n_dead_tup > 0.3 * n_live_tup)
order by relname;

-- name: get_bloat
-- The size of heap and indexes, compared with a generous estimate of what the rows need.
select relname, n_live_tup, taken, needed::bigint
from (
    select
        pg_stat_all_tables.relname::text,
        n_live_tup,
        pg_relation_size(relid) + pg_indexes_size(relid) as taken,
        n_live_tup * (
            1.5 * (28 + coalesce((
                select sum(avg_width)
                from pg_stats
                where pg_stats.schemaname = %(schema)s::text
                and pg_stats.tablename = pg_stat_all_tables.relname
            ), 300))
            + 120 * (select count(*) from pg_index where indrelid = relid)
        ) as needed
    from pg_stat_all_tables
    where pg_stat_all_tables.schemaname = %(schema)s::text
    and relname in ('tasks', 'nodes', 'workflows', 'workers', 'keys')
) as sizes
where taken > %(min_bytes)s::bigint
and taken > 5 * needed
order by relname;
