-- compatible_since: 1
-- Which tasks had a key before the one that has it now, oldest first: a finished task is not retried while its key stands for another.
alter table {schema}.keys add column former uuid[] not null default '{}';
