-- The privileges of the roles in roles.sql. Run it as horsies_owner after `horsies migrate`. It may be run again at any time.
begin;

grant select, insert, update, delete on all tables in schema horsies to horsies_worker;
revoke insert, update, delete on horsies.schema_versions from horsies_worker;
grant select on all tables in schema horsies to horsies_reader;

-- Tables of later migrations.
alter default privileges in schema horsies grant select, insert, update, delete on tables to horsies_worker;
alter default privileges in schema horsies grant select on tables to horsies_reader;

-- Send, start workflows, and read results. To cancel or retry, a producer needs the privileges of a worker.
grant select on horsies.schema_versions to horsies_producer;
grant select, insert, update, delete on horsies.tasks to horsies_producer;
grant select on horsies.finished, horsies.all_tasks to horsies_producer;
grant select, insert, update on horsies.keys to horsies_producer;
grant select, insert on horsies.workflows, horsies.nodes to horsies_producer;

commit;
