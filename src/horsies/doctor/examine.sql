-- name: begin_check
-- Read-only: whatever is wrong here, the doctor has not made it worse.
begin isolation level read committed read only;

-- name: limit_check
select
    set_config('statement_timeout', %(timeout_ms)s::text, true),
    set_config('lock_timeout', %(timeout_ms)s::text, true);

-- name: end_check
commit;

-- name: ping
select 1;
