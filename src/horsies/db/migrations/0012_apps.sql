-- compatible_since: 1
-- The app that a schedule or a worker belongs to. Several apps may share a schema: a scheduler removes only schedules of its own app. Null: written by
-- a library that does not know of it. Such a schedule belongs to the first app that declares its name.
alter table {schema}.schedules add column app text;
alter table {schema}.workers add column app text;
