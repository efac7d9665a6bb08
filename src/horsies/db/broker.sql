-- name: ping
select 1;

-- name: notify
-- Not sent by an operation that sets the search_path first behind a pooler, so every name is qualified.
select pg_catalog.pg_notify(%(channel)s::pg_catalog.text, %(payload)s::pg_catalog.text), pg_catalog.pg_backend_pid();
