-- compatible_since: 1
-- When the key's task ended. Written only when the task's own row is about to go while the key's window still runs: the key outlives it then.
alter table {schema}.keys add column ended_at timestamptz;

-- What is old enough to be forgotten: trees, by the end of the run at their top. One entry for each run that ends there.
create index workflows_ended_idx on {schema}.workflows (finished_at)
    where id = root_id and finished_at is not null;
