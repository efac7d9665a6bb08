-- compatible_since: 1
-- What a task carries from the trace in which it was sent, as JSON text (W3C trace context); null unless the sender is instrumented.
alter table {schema}.tasks add column trace text;
alter table {schema}.finished add column trace text;
-- Of a node: the trace of the start of its workflow, which its task gets when it is enqueued.
alter table {schema}.nodes add column trace text;

create or replace view {schema}.all_tasks as
select
    id, task_name, queue_name, priority, status, args,
    null::json as result, null::text as error_code, null::json as error,
    sent_at, enqueued_at, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, claimed_by, claimed_at, started_at,
    null::timestamptz as finished_at, root_id, node_id, trace
from {schema}.tasks
union all
select
    id, task_name, queue_name, priority, status, args,
    result, error_code, error,
    sent_at, enqueued_at, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, claimed_by, claimed_at, started_at,
    finished_at, root_id, node_id, trace
from {schema}.finished;
