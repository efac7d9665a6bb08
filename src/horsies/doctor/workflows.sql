-- name: wait_a_little
select 1
from pg_sleep(%(seconds)s::float);
