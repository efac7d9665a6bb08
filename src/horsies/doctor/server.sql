-- name: get_settings
-- `transaction_read_only` would describe the doctor's own transaction, which is read-only on purpose.
select
    current_setting('server_version_num')::integer,
    current_setting('server_version'),
    pg_is_in_recovery(),
    current_setting('default_transaction_read_only') = 'on',
    array(select name from unnest(array['fsync', 'full_page_writes']) as name where current_setting(name) = 'off'),
    current_setting('synchronous_commit') = 'off';

-- name: get_connections
-- Limit and number of connections of the server, the database and the user. -1 means no limit. The counts need no privilege.
select 'the server',
    current_setting('max_connections')::integer
    - current_setting('superuser_reserved_connections')::integer
    - coalesce(current_setting('reserved_connections', true)::integer, 0),
    (select sum(numbackends) from pg_stat_database)::integer
union all
select 'the database', datconnlimit, (select numbackends from pg_stat_database where datid = pg_database.oid)
from pg_database
where datname = current_database()
union all
select 'the user', rolconnlimit, (select count(*) from pg_stat_activity where usename = current_user)::integer
from pg_roles
where rolname = current_user;
