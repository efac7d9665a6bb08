-- name: begin_transaction
begin;

-- name: commit_transaction
commit;

-- name: roll_back_transaction
rollback;
