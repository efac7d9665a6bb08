-- name: begin_purge
begin isolation level read committed;

-- name: purge_finished
delete from {schema}.finished
where id = any(%(ids)s::uuid[])
-- The ids are sorted.
and claim_no = (%(claim_nos)s::integer[])[width_bucket(id, %(ids)s::uuid[])]
and finished_at between %(since)s::timestamptz and %(until)s::timestamptz
returning id;

-- name: commit_purge
commit;
