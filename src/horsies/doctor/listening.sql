-- name: get_queue_usage
-- The used share of PostgreSQL's notification queue, and the sessions that are idle in a transaction and may hold it back.
select
    pg_notification_queue_usage(),
    array(
        select pid
        from pg_stat_activity
        where state like 'idle in transaction%%'
        order by xact_start
        limit 5
    );
