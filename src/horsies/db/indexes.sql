-- name: disable_sequential_scans
-- A table that was filled and not analysed yet would be read completely for a few rows.
select set_config('enable_seqscan', 'off', true);
