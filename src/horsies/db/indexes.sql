-- name: keep_to_indexes
-- A table that was just filled and not analysed yet would be read as a whole for a few rows.
select set_config('enable_seqscan', 'off', true);
