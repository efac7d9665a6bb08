-- name: get_queue_usage
-- The share of PostgreSQL's queue of notifications that somebody has not read yet, and who sits in a transaction meanwhile.
select
    pg_notification_queue_usage(),
    array(
        select pid
        from pg_stat_activity
        where state like 'idle in transaction%%'
        order by xact_start
        limit 5
    );
