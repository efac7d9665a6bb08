-- name: begin_batch
begin isolation level read committed;

-- name: set_batch_limits
-- A worker that vanishes inside a batch must not hold row locks until TCP gives up. Local to the transaction, because behind a pooler the
-- session is shared.
select
    set_config('idle_in_transaction_session_timeout', '10s', true),
    set_config('lock_timeout', '10s', true),
    set_config('statement_timeout', %(statement_timeout_ms)s::text, true);

-- name: commit_batch
commit;

-- name: disable_statement_timeout
-- A batch of one workflow step alone delays no other batch: a step of a very large workflow may take longer than the limit for all batches.
select set_config('statement_timeout', '0', true);
