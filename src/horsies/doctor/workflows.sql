-- name: sleep
select 1
from pg_sleep(%(seconds)s::float);
