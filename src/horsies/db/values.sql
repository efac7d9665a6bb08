-- name: begin_look
begin isolation level read committed read only;

-- name: plan_for_values
-- Which conditions stand depends on what is asked for: a plan for any values would read everything.
select set_config('plan_cache_mode', 'force_custom_plan', true);

-- name: end_look
commit;
