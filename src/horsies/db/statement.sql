-- name: disable_sequential_scans
-- A table that was filled and not analysed yet would be read completely for a few rows.
select set_config('enable_seqscan', 'off', true);

-- name: begin_read
begin isolation level read committed read only;

-- name: force_custom_plans
-- Which conditions apply depends on the parameters. A generic plan would read the whole table.
select set_config('plan_cache_mode', 'force_custom_plan', true);

-- name: disable_sorts
select set_config('enable_sort', 'off', true);

-- name: enable_sorts
select set_config('enable_sort', 'on', true);

-- name: end_read
commit;
