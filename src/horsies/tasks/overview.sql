-- name: get_server_info
select current_database()::text, current_setting('server_version'), max(version)
from {schema}.schema_versions;

-- name: begin_count
begin isolation level read committed read only;

-- name: set_count_timeout
select set_config('statement_timeout', %(statement_timeout)s::text, true);

-- name: count_finished
-- Reads all tasks that ended today, and yesterday's in the first hour of a day: there is no index by time, because every end of a task
-- would pay for it.
select status, count(*)
from {schema}.finished
where finished_at > statement_timestamp() - %(minutes)s::integer * interval '1 minute'
group by status;

-- name: commit_count
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
