-- name: get_server
select current_database()::text, current_setting('server_version'), max(version)
from {schema}.schema_versions;

-- name: begin_count
begin isolation level read committed read only;

-- name: limit_time
select set_config('statement_timeout', %(patience)s::text, true);

-- name: count_finished
-- A look at all that ended today, and yesterday in the first hour of a day: there is no index by time, which every ending would pay for.
select status, count(*)
from {schema}.finished
where finished_at > statement_timestamp() - %(minutes)s::integer * interval '1 minute'
group by status;

-- name: end_count
commit;

-- name: count_workflows
select status, count(*)
from (
    select status
    from {schema}.workflows
    where status in ('RUNNING', 'PAUSED')
    and id = root_id
    limit %(counted)s::integer
) as few
group by status;
