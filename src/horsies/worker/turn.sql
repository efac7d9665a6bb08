-- name: begin_turn
begin isolation level read committed;

-- name: set_limits
-- A worker that vanishes inside its turn must not hold row locks until TCP gives up. Local to the transaction, because behind
-- a pooler the session is not ours.
select
    set_config('idle_in_transaction_session_timeout', '10s', true),
    set_config('lock_timeout', '10s', true),
    set_config('statement_timeout', %(statement_timeout_ms)s::text, true);

-- name: commit_turn
commit;

-- name: lift_limit
-- What travels alone has nobody waiting behind it: the step of a very large workflow may take longer than a turn for all.
select set_config('statement_timeout', '0', true);
