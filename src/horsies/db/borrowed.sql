-- name: begin_alone
begin;

-- name: commit_alone
commit;

-- name: rollback_alone
rollback;
