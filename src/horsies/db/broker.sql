-- name: ping
select 1;

-- name: notify
select pg_notify(%(channel)s::text, %(payload)s::text), pg_backend_pid();
