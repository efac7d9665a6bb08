-- Roles with the least that each process of horsies needs. See docs/deployment.md.
--
-- 1. As a superuser, or a role that may create roles, in the database of horsies: psql -v ON_ERROR_STOP=1 -f roles.sql
-- 2. As horsies_owner: horsies migrate
-- 3. As horsies_owner: psql -v ON_ERROR_STOP=1 -f grants.sql
--
-- Set passwords with \password horsies_worker (and so on), which does not send them in plain text.
begin;

-- Owns the schema and its tables. Only `horsies migrate` connects as this role.
create role horsies_owner login;
-- Workers, schedulers, the command line, and dashboards whose users may act.
create role horsies_worker login;
-- Web applications and scripts that send tasks, start workflows and wait for results.
create role horsies_producer login;
-- Dashboards for reading, `horsies status` and `horsies doctor`, and KEDA.
create role horsies_reader login;

create schema horsies authorization horsies_owner;
grant usage on schema horsies to horsies_worker, horsies_producer, horsies_reader;

-- Sessions of other roles are visible to `horsies doctor`. Optional.
-- grant pg_monitor to horsies_reader;

-- A role of your application that sends tasks in its own transactions:
-- grant horsies_producer to shop;

commit;
