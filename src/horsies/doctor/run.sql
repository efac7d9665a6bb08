-- name: begin_check
-- Read-only: the doctor must not make anything worse.
begin isolation level read committed read only;

-- name: set_check_timeouts
select
    set_config('statement_timeout', %(timeout_ms)s::text, true),
    set_config('lock_timeout', %(timeout_ms)s::text, true);

-- name: end_check
commit;

-- name: ping
select 1;
