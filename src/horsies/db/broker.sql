-- name: ping
select 1;

-- name: notify
-- Not by a verb, so that nothing sets the search_path before it where the session is a pooler's: every name has its schema.
select pg_catalog.pg_notify(%(channel)s::pg_catalog.text, %(payload)s::pg_catalog.text), pg_catalog.pg_backend_pid();
