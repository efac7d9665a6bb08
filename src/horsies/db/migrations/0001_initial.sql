-- The schema. A later change is a migration of its own, with the next number.
--
-- Functions run in other sessions too (hand-written INSERTs, sends inside a caller's transaction), so they must not depend on the
-- session's search_path: an operator in `public` that matches better than PostgreSQL's own would be preferred, and run with the rights of the
-- user who inserts. A body after RETURN or BEGIN ATOMIC is parsed here, once. PL/pgSQL parses when it executes, so those functions set the path.
--
-- CHECK constraints keep out values that would make a statement over many rows fail or loop forever, and so stop a worker or the
-- maintenance leader. They are few because every statement that writes plans them, and every insert and claim evaluates them. Where a
-- statement can cope with a value, it is allowed. A value that harms only its own task (arguments that are not an object, an unknown name) makes
-- that task fail when it runs.

-- A time-ordered (version 7) id, for rows that the database creates itself and for hand-written INSERTs. A table's default needs it, so it comes first.
create function {schema}.new_id() returns uuid
language sql volatile parallel safe
return (
    select (
        substr(milliseconds, 1, 8) || '-' || substr(milliseconds, 9, 4) || '-7' || substr(gen_random_uuid()::text, 16)
    )::uuid
    from lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') as milliseconds
);

-- Live tasks: PENDING, CLAIMED or RUNNING. A task that ends moves to `finished`, so this table and its indexes stay small. Every change of
-- state pays for every index; the comment of each index says what it is for.
create table {schema}.tasks (
    id uuid not null default {schema}.new_id(),
    task_name text not null,
    queue_name text not null default 'default',
    priority integer not null default 100,
    status text not null default 'PENDING',
    -- False keeps a row that cannot be claimed yet out of the claim index: it is not due, or no worker knows its task.
    ready boolean not null default true,
    args json not null default '{}',
    sent_at timestamptz not null default now(),
    -- When the task is due. Tasks of one priority are claimed in this order.
    enqueued_at timestamptz not null default now(),
    good_until timestamptz,
    timeout_ms integer,
    -- The retry policy as it was sent, so that a process that does not know the task can apply it: the delay before each retry, the
    -- random share of that delay, and the error codes to retry.
    retry_delays_ms integer[],
    retry_jitter real not null default 0,
    retry_for text[],
    failed_attempts json[],
    cancel_requested_at timestamptz,
    progress json,
    -- Attempts that have ended. A claim that is released before it starts does not count.
    attempts integer not null default 0,
    -- Incremented by every claim and never reset: the fencing token that distinguishes one claim of a task from the next.
    claim_no integer not null default 0,
    claimed_by uuid,
    claimed_at timestamptz,
    -- The transaction of the last claim, or of the INSERT. Claims that count tasks in flight start at the oldest claim.
    claimed_in xid8 not null default pg_current_xact_id(),
    lease_until timestamptz,
    started_at timestamptz,
    -- For a task of a workflow: its node, and the root run of its tree, whose row is the lock for the whole tree.
    root_id uuid,
    node_id uuid,
    takes_inputs boolean,
    -- The trace context (W3C) of the sender, as JSON text. Null unless the sender is instrumented.
    trace text,
    -- Its payload and its errors are not shown unless that is requested. Null: they are.
    is_sensitive boolean,
    -- The task that is enqueued if this one fails, with its options, as JSON text (`enqueue_on_failure`).
    on_failure text,
    -- Child processes that died while they held this task and before it started. Such a release costs no attempt until there were too many.
    child_deaths integer not null default 0,
    -- Since when no living worker can run it. It is not `ready` then, so that claims do not have to skip it.
    unknown_since timestamptz,
    -- The signatures of workers that could not read its arguments, and the error of the last of them.
    refused_by bigint[],
    refusal json,
    constraint tasks_pkey primary key (id),
    constraint tasks_status_is_live check (status in ('PENDING', 'CLAIMED', 'RUNNING')),
    constraint tasks_jitter_is_a_share check (retry_jitter between 0 and 1),
    constraint tasks_owner_when_claimed check ((status = 'PENDING') = (claimed_by is null)),
    -- One constraint instead of several: every statement plans each of them again.
    constraint tasks_are_in_range check (
        -- A notification carries the name of the queue, and holds 8 000 bytes.
        octet_length(queue_name) <= 1000
        -- Claims start at 1970, and a notification carries microseconds since then.
        and enqueued_at >= '1970-01-01 00:00+00'
        and enqueued_at <= '9999-12-31 23:59:59+00'
        -- Every claim returns attempts + 1, which must fit. An attempt is added only while delays are left, and no array holds this many.
        and attempts >= 0
        and attempts <= 1000000000
    )
) with (
    -- Rows are updated once or twice and then deleted: leave space for one new version on the page, and vacuum early and
    -- without pauses, because dead rows in this table slow down claims.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 20000
);

-- Finished tasks, one partition per day (UTC), so that retention is a DROP. A task ends once because its deletion from `tasks` happens
-- once, so no unique index is needed here.
create table {schema}.finished (
    id uuid not null,
    task_name text not null,
    queue_name text not null,
    priority integer not null,
    status text not null,
    args json not null,
    result json,
    error_code text,
    error json,
    sent_at timestamptz not null,
    enqueued_at timestamptz not null,
    good_until timestamptz,
    timeout_ms integer,
    retry_delays_ms integer[],
    retry_jitter real not null default 0,
    retry_for text[],
    failed_attempts json[],
    progress json,
    attempts integer not null,
    claim_no integer not null,
    claimed_by uuid,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz not null,
    root_id uuid,
    node_id uuid,
    trace text,
    is_sensitive boolean,
    on_failure text,
    -- The process that ran the last attempt.
    child_pid integer,
    constraint finished_status_is_final check (status in ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED'))
) partition by range (finished_at);

-- Takes rows of days whose partition was not created in time.
create table {schema}.finished_default partition of {schema}.finished default;

-- One row per start of a worker: every start has a new id. `heartbeat_at` covers all tasks of the worker.
create table {schema}.workers (
    id uuid not null,
    hostname text not null,
    pid integer not null,
    processes integer not null,
    concurrency integer not null,
    queues text[] not null,
    library_version text not null,
    started_at timestamptz not null default now(),
    heartbeat_at timestamptz not null default now(),
    -- As of the last heartbeat, two sessions of the worker hold its advisory lock. When no session holds it any more, both are gone, and most likely
    -- the process too. If false, the worker is judged by its heartbeat alone.
    holds_lock boolean not null default false,
    -- The tasks that the worker knows. Null: it does not say, and is assumed to know every task.
    task_names text[],
    -- In the same order: a hash of each task's parameters.
    signatures bigint[],
    -- Several apps may share a schema.
    app text,
    -- An operator has asked it to leave: it finishes its tasks and exits.
    leave_requested_at timestamptz,
    -- Its child processes and what they run, as of the last heartbeat: a bounded JSON array.
    children json,
    constraint workers_pkey primary key (id),
    constraint workers_times_are_in_range check (
        isfinite(started_at) and heartbeat_at >= '1970-01-01 00:00+00' and heartbeat_at <= '9999-12-31 23:59:59+00'
    ),
    constraint workers_queues_are_a_list check (array_ndims(queues) = 1),
    constraint workers_queues_are_not_null check (cardinality(queues) = 0 or array_position(queues, null) is null),
    -- A hand-written array of more dimensions would make every search for a worker that knows a task fail.
    constraint workers_tasks_are_lists check (array_ndims(task_names) = 1 and array_ndims(signatures) = 1)
);

-- Health over time: one row per worker and snapshot.
create table {schema}.worker_states (
    id bigint generated always as identity,
    worker_id uuid not null,
    snapshot_at timestamptz not null default now(),
    hostname text not null,
    pid integer not null,
    processes integer not null,
    concurrency integer not null,
    queues text[] not null,
    tasks_running integer not null,
    tasks_claimed integer not null,
    -- Resident memory of the parent, and the sum over its children.
    memory_usage_mb real not null,
    children_memory_mb real not null,
    cpu_percent real not null,
    children_cpu_percent real not null,
    -- Of the time of children that were recycled lately, the share that their starts took; null if none was.
    recycling_share real,
    worker_started_at timestamptz not null,
    constraint worker_states_pkey primary key (id)
);

-- The lease of the maintenance leader, in at most one row. A lease and not a session lock, which would leak behind a pooler.
create table {schema}.maintenance_lease (
    singleton boolean not null default true,
    holder uuid not null,
    expires_at timestamptz not null,
    constraint maintenance_lease_pkey primary key (singleton),
    constraint maintenance_lease_is_one_row check (singleton),
    constraint maintenance_lease_is_finite check (isfinite(expires_at))
);

-- Run-time switches of queues. A queue without a row is not paused, and has the cap of the app.
create table {schema}.queues (
    name text not null,
    paused_at timestamptz,
    -- Instead of the cap that the app declares. Null: that of the app.
    max_concurrency integer,
    constraint queues_pkey primary key (name),
    constraint queues_cap_is_positive check (max_concurrency > 0)
);

-- Idempotency keys: which task a key stands for. Nothing is written here when the task ends. The next send with the key checks
-- whether the task is live, or ended less than `key_window` ago, and takes the key over if not.
create table {schema}.keys (
    task_name text not null,
    key text not null,
    task_id uuid not null,
    -- The send that wrote this row last. A send that is repeated after a lost answer recognizes its own row by it.
    send_id uuid not null,
    args_hash text not null,
    key_window interval not null,
    -- When the task ended. Written only when the task's row is deleted before the key's window is over.
    ended_at timestamptz,
    -- The tasks that had this key before, oldest first: a finished task is not retried while its key stands for another.
    previous_task_ids uuid[] not null default '{}',
    constraint keys_pkey primary key (task_name, key),
    -- Now minus a longer window would be out of the range of timestamps.
    constraint keys_window_is_bounded check (key_window >= interval '0' and key_window <= interval '100 years'),
    constraint keys_ended_at_is_finite check (isfinite(ended_at)),
    constraint keys_previous_task_ids_are_a_list check (array_ndims(previous_task_ids) = 1)
);

-- Runs of workflows. A sub-workflow is a run of its own, below the run of its node, and so are the items of a map. Starting a workflow
-- writes all runs of its tree except those of maps, whose items are not known then.
create table {schema}.workflows (
    id uuid not null,
    -- The root run of the tree; the run's own id if it is the root. The row of the root is the lock for the whole tree.
    root_id uuid not null,
    -- The runs above this one, from the root down, and the node that this run belongs to.
    ancestors uuid[] not null default '{}',
    parent_node uuid,
    name text not null,
    definition_key text,
    status text not null default 'PENDING',
    on_error text not null default 'fail',
    output integer,
    -- Lists of nodes by their index. The run succeeds if all nodes of at least one list have succeeded.
    success_cases json,
    optional integer[] not null default '{}',
    is_map boolean not null default false,
    -- How many nodes may be in flight at once. `in_flight` is counted only if this is set.
    max_parallel integer,
    in_flight integer not null default 0,
    -- Nodes whose end was not propagated yet.
    unresolved integer not null,
    error json,
    time_limit_ms bigint,
    deadline timestamptz,
    created_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz,
    constraint workflows_pkey primary key (id),
    constraint workflows_status_is_known check (
        status in ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')
    )
) with (fillfactor = 70);

-- The nodes of runs. A node keeps its result as long as its run is kept, also when the row of its task is deleted.
create table {schema}.nodes (
    id uuid not null,
    root_id uuid not null,
    workflow_id uuid not null,
    index integer not null,
    node_id text not null,
    kind text not null,
    status text not null default 'PENDING',
    -- Whether its end has been counted by its dependents and by its run.
    propagated boolean not null default false,
    -- The dependencies that count in its join, and the nodes that depend on this one.
    waits_for integer[] not null,
    dependents uuid[] not null,
    -- How many dependencies must succeed. With `allow_failed_deps` the node also runs with fewer once all dependencies have ended.
    needed integer not null,
    allow_failed_deps boolean not null,
    -- How many dependencies have ended, and how many of those have succeeded. Not counted any more once the node is decided.
    resolved integer not null default 0,
    succeeded integer not null default 0,
    -- The task to send when the node is ready, as in `tasks`.
    task_name text,
    queue_name text,
    priority integer,
    timeout_ms integer,
    retry_delays_ms integer[],
    retry_jitter real,
    retry_for text[],
    good_until timestamptz,
    args json,
    -- Where the arguments refer to `inputs`: the nodes whose results are read when the task is claimed.
    refs json,
    inputs uuid[],
    takes_inputs boolean not null default false,
    wants_meta boolean not null default false,
    -- For a map: the node whose result is the list of items. For an item: its value. A map without a source has its list as `item`.
    source uuid,
    item json,
    max_parallel integer,
    -- The run of a sub-workflow or a map.
    child_id uuid,
    -- How to decode the result: as the result of this task, or as a list of them.
    made_by text,
    makes_list boolean not null default false,
    task_id uuid,
    result json,
    error json,
    finished_at timestamptz,
    -- The trace context of the start of the workflow. The task gets it when it is enqueued.
    trace text,
    is_sensitive boolean,
    on_failure text,
    -- Nodes of the same run, by their index, that must have ended before this one runs, regardless of its join, and how many of them
    -- have not ended yet.
    awaits integer[],
    awaits_left integer not null default 0,
    -- The other direction: the nodes that await this one.
    awaited_by uuid[],
    -- For a map: when it counts as failed. Null: any failed item fails it.
    max_failures integer,
    min_item_success integer,
    -- Maps whose item results are passed to the task, after its `inputs`.
    results_of uuid[],
    constraint nodes_pkey primary key (id),
    constraint nodes_status_is_known check (
        status in ('PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED')
    )
) with (fillfactor = 70);

-- Schedules and their next slot. A row has all that is needed to enqueue its task, so every scheduler can serve it, also one of an older release.
create table {schema}.schedules (
    name text not null,
    task_name text not null,
    queue_name text not null,
    priority integer not null,
    args json not null,
    timeout_ms integer,
    retry_delays_ms integer[],
    retry_jitter real not null default 0,
    retry_for text[],
    is_sensitive boolean,
    on_failure text,
    pattern jsonb not null,
    timezone text not null,
    catch_up_missed boolean not null,
    max_catch_up_runs integer not null,
    jitter_ms integer not null,
    overlap text not null,
    -- Set by the app: whether the schedule is enabled, and whether the app still declares it.
    enabled boolean not null,
    declared boolean not null default true,
    -- Created by an operator or a program at run time. No app removes it.
    is_dynamic boolean not null default false,
    -- Set by an operator. No change of the app resets it.
    paused_at timestamptz,
    -- The first slot without a decision. The transaction that enqueues the task advances it. Null: there is none.
    next_slot_at timestamptz,
    last_slot_at timestamptz,
    last_task_id uuid,
    changed_at timestamptz not null default now(),
    -- A scheduler removes only schedules of its own app. Null: it was created at run time, or belongs to the first app that declares its name.
    app text,
    constraint schedules_pkey primary key (name),
    -- The same bounds as for tasks: one statement turns all schedules that are due into tasks.
    constraint schedules_queue_name_is_short check (octet_length(queue_name) <= 1000),
    constraint schedules_jitter_is_a_share check (retry_jitter >= 0 and retry_jitter <= 1),
    constraint schedules_catch_up_is_bounded check (max_catch_up_runs >= 0 and max_catch_up_runs <= 10000),
    constraint schedules_delay_is_bounded check (jitter_ms >= 0 and jitter_ms <= 86400000),
    constraint schedules_slot_is_in_range check (
        next_slot_at >= '1970-01-01 00:00+00' and next_slot_at <= '9999-12-31 23:59:59+00'
    )
) with (fillfactor = 70);

-- The decision on each slot. Consecutive missed slots share one row, from slot_at to last_slot_at.
create table {schema}.schedule_runs (
    id bigint generated always as identity,
    schedule_name text not null,
    outcome text not null,
    slot_at timestamptz,
    last_slot_at timestamptz,
    task_id uuid,
    decided_at timestamptz not null default now(),
    constraint schedule_runs_pkey primary key (id),
    constraint schedule_runs_outcome_is_known check (outcome in ('ENQUEUED', 'SKIPPED', 'MISSED', 'BY_HAND'))
);

-- Workers that ended without deregistering, written when the maintenance leader removes them.
create table {schema}.dead_workers (
    id uuid not null,
    hostname text not null,
    pid integer not null,
    app text,
    library_version text not null,
    queues text[] not null,
    started_at timestamptz not null,
    last_heartbeat_at timestamptz not null,
    found_at timestamptz not null default now(),
    -- How many tasks it held, and the ids of the first of them.
    tasks_held integer not null,
    task_ids uuid[] not null,
    constraint dead_workers_pkey primary key (id)
);

-- Endings by minute, for charts: computed by the maintenance leader from `finished` when a minute is over. `waited` and `ran` are histograms: how
-- many tasks waited (from due to start) and ran (from start to end) for less than 1 ms, 2 ms, 4 ms and so on; the last number is the rest. If a
-- minute has too many queues and tasks, the rest has no names.
create table {schema}.task_minutes (
    minute timestamptz not null,
    queue_name text not null,
    task_name text not null,
    completed integer not null,
    failed integer not null,
    cancelled integer not null,
    expired integer not null,
    -- Attempts before the last one.
    retried integer not null,
    waited integer[] not null,
    ran integer[] not null,
    constraint task_minutes_pkey primary key (minute, queue_name, task_name),
    -- The end of a bucket is a power of two, which must fit.
    constraint task_minutes_histograms_are_complete check (cardinality(waited) = 27 and cardinality(ran) = 27)
);

-- The same summed up by queue, for charts: they need not read a row for each task.
create table {schema}.queue_minutes (
    minute timestamptz not null,
    queue_name text not null,
    completed integer not null,
    failed integer not null,
    cancelled integer not null,
    expired integer not null,
    retried integer not null,
    waited integer[] not null,
    ran integer[] not null,
    constraint queue_minutes_pkey primary key (minute, queue_name),
    constraint queue_minutes_histograms_are_complete check (cardinality(waited) = 27 and cardinality(ran) = 27)
);

-- The failures among them, grouped by task, code and the first line of the message, with numbers and ids masked.
create table {schema}.error_minutes (
    minute timestamptz not null,
    task_name text not null,
    error_code text not null,
    message text not null,
    count integer not null,
    first_at timestamptz not null,
    last_at timestamptz not null,
    -- The newest.
    example_id uuid not null,
    constraint error_minutes_pkey primary key (minute, task_name, error_code, message)
);

-- Up to when `task_minutes` and `error_minutes` are complete. One row.
create table {schema}.minutes_until (
    singleton boolean not null default true,
    minute timestamptz not null,
    constraint minutes_until_pkey primary key (singleton),
    constraint minutes_until_is_one_row check (singleton)
);

-- Log lines of attempts, for tasks that keep them.
create table {schema}.attempt_logs (
    task_id uuid not null,
    claim_no integer not null,
    attempt integer not null,
    -- A JSON array of lines, oldest first, and how many others were left out.
    records json not null,
    left_out integer not null default 0,
    stored_at timestamptz not null default now(),
    constraint attempt_logs_pkey primary key (task_id, claim_no)
);

-- What operators have done. The id is made by the process, so that a repetition after a lost answer writes the same row.
create table {schema}.audit (
    id uuid not null default {schema}.new_id(),
    at timestamptz not null default clock_timestamp(),
    actor text not null,
    action text not null,
    -- What it was done to: a name, an id, or the filter.
    target text not null,
    -- How many tasks, workers, queues, workflows or schedules were changed. Null: it has not ended, or was cut off.
    count integer,
    constraint audit_pkey primary key (id)
);

-- functions

-- The payload of the notification that wakes workers: from which position in the claim order there are new tasks, or when a task will be due.
create function {schema}.wakeup_payload(ready boolean, priority integer, enqueued_at timestamptz, queue_name text) returns text
language sql volatile
return case
    when ready
    then priority || ' ' || (extract(epoch from enqueued_at) * 1000000)::bigint || ' ' || queue_name
    else 'later ' || (extract(epoch from enqueued_at - clock_timestamp()) * 1000000)::bigint
end;

-- Adds an attempt that is followed by another. The last 20 are kept, and of a long error its beginning and end: the row is rewritten at each attempt. The error is cut as
-- text, because JSON with \u0000 cannot be parsed here.
create function {schema}.add_failed_attempt(
    failed_attempts json[], attempt integer, claim_no integer, error_code text, error json, worker uuid, child_pid integer,
    started_at timestamptz, ended_at timestamptz, counted boolean
) returns json[]
language sql stable parallel safe
return (failed_attempts || json_build_object(
    'attempt', attempt,
    'claim_no', claim_no,
    'error_code', error_code,
    'error', case
        when octet_length(error::text) > 16384
        then json_build_object(
            'error_code', error_code,
            'message', 'its error took ' || octet_length(error::text) || ' bytes; the beginning and the end are kept',
            'data', json_build_object('truncated', left(error::text, 4000) || ' ... ' || right(error::text, 4000))
        )
        else error
    end,
    'worker', worker,
    'child_pid', child_pid,
    'started_at', started_at,
    'ended_at', ended_at,
    'counted', counted
))[greatest(1, coalesce(cardinality(failed_attempts), 0) - 18):];

-- The message of an error or of a failed attempt, up to 1000 characters. Found in the text, because JSON with \u0000 cannot be parsed here; so it still has
-- the escapes of JSON.
create function {schema}.error_message(error json) returns text
language sql immutable parallel safe
return left(substring(left(error::text, 5000) from '"message"\s*:\s*"((?:[^"\\]|\\.)*)'), 1000);

-- The first line of the message of an error, with numbers, ids and control characters masked, so that like errors are equal. Found in the text, because
-- JSON with \u0000 cannot be parsed here. At most 200 characters.
create function {schema}.error_summary(error json) returns text
language sql immutable parallel safe
return left(regexp_replace(
    regexp_replace(
        coalesce(substring(left(error::text, 4000) from '"message"\s*:\s*"((?:[^"\\]|\\[^nr])*)'), ''),
        '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\\u[0-9a-fA-F]{4}|[0-9]+', '#', 'g'
    ),
    '\\(["\\/])', '\1', 'g'
), 200);

-- Where a duration belongs in a histogram: 0 for less than 1 ms, 1 for less than 2 ms, 2 for less than 4 ms and so on; 26 is the rest. Null for times
-- that are missing or cannot be right. They are compared before they are subtracted, because that fails for infinite times.
create function {schema}.duration_bucket(since timestamptz, until timestamptz) returns integer
language sql immutable parallel safe
return case
    when since >= '1970-01-01 00:00+00' and until <= '9999-12-31 23:59:59+00' and since <= until
    then width_bucket(
        date_part('epoch', until - since) * 1000,
        array[
            1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576, 2097152, 4194304,
            8388608, 16777216, 33554432
        ]::float8[]
    )
end;

-- A histogram: the sum of the counts of each bucket.
create function {schema}.histogram(buckets integer[], counts bigint[]) returns integer[]
language sql immutable parallel safe
return array(
    select coalesce(sum(part.count), 0)::integer
    from generate_series(0, 26) as all_buckets (bucket)
    left join unnest(buckets, counts) as part (bucket, count) on part.bucket = all_buckets.bucket
    group by all_buckets.bucket
    order by all_buckets.bucket
);

-- Wakes workers once per queue and priority for each INSERT statement, however many rows it inserts. Hand-written INSERTs wake
-- them too. For rows that are not due yet the payload has the time that is left, so that workers set a timer.
create function {schema}.notify_new_tasks() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_notify('{new_channel}', {schema}.wakeup_payload(ready, priority, min(enqueued_at), queue_name))
    from inserted
    group by queue_name, priority, ready;
    return null;
end
$$;

-- Enqueue the task that a failed one names for this, in the transaction in which it ends, whichever process ends it. A row that cannot be
-- enqueued (its options were written by hand, a user's trigger rejects it) must not keep the failed task from ending.
create function {schema}.enqueue_on_failure() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    -- The transaction may have promised to notify of its other tasks after its commit.
    perform set_config('horsies.notify', '', true);
    insert into {schema}.tasks (
        task_name, queue_name, priority, timeout_ms, retry_delays_ms, retry_jitter, retry_for, trace, is_sensitive, args
    )
    select
        target.task_name, target.queue_name, target.priority, target.timeout_ms, target.retry_delays_ms, target.retry_jitter, target.retry_for,
        new.trace,
        -- It carries the arguments and the error.
        case when target.is_sensitive or new.is_sensitive then true end,
        json_build_object(
            target.parameter,
            json_build_object(
                'task_id', new.id,
                'task_name', new.task_name,
                'queue_name', new.queue_name,
                'attempts', new.attempts,
                'args', new.args,
                'error', coalesce(new.error, json_build_object('error_code', new.error_code))
            )
        )
    from json_to_record(new.on_failure::json) as target (
        task_name text, queue_name text, priority integer, timeout_ms integer, retry_delays_ms integer[], retry_jitter real, retry_for text[],
        is_sensitive boolean, parameter text
    );
    return null;
exception when others then
    -- Contention, a server out of resources and missing privileges are not the fault of a row. (A cancelled statement does not get here.)
    if left(sqlstate, 2) in ('08', '26', '40', '42', '53', '55', '57', '58') then
        raise;
    end if;
    raise warning 'the task that on_failure of task % names was not enqueued: %', new.id, sqlerrm;
    return null;
end
$$;

-- Move tasks that have become due into the claim index. Returns the notified payloads, one per queue and priority. This is a function because a
-- row that cannot be updated (a user's trigger rejects it) must fail neither the other rows nor the worker's transaction. After a failure the
-- rows are updated one by one, and such a row stays as it is; the maintenance leader reports it. Tasks that no worker knows are not due.
create function {schema}.promote_tasks(max_rows integer) returns setof text
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    due_id uuid;
    payload text;
begin
    begin
        return query
        with due as materialized (
            select tasks.id
            from {schema}.tasks
            where tasks.status = 'PENDING'
            and not tasks.ready
            and tasks.unknown_since is null
            and tasks.enqueued_at <= statement_timestamp()
            order by tasks.enqueued_at
            limit max_rows
            for update skip locked
        ),
        promoted_tasks as (
            update {schema}.tasks
            set ready = true
            where tasks.id = any(array(select due.id from due))
            returning tasks.queue_name, tasks.priority, tasks.enqueued_at
        ),
        notifications as (
            select {schema}.wakeup_payload(true, task.priority, min(task.enqueued_at), task.queue_name) as payload
            from promoted_tasks as task
            group by task.queue_name, task.priority
        )
        select notifications.payload
        from notifications
        cross join lateral pg_notify('{new_channel}', notifications.payload);
        return;
    exception when others then
        -- Contention, a server out of resources and missing privileges are not the fault of a row. (A cancelled statement does not get here.)
        if left(sqlstate, 2) in ('08', '26', '40', '42', '53', '55', '57', '58') then
            raise;
        end if;
    end;
    for due_id in
        select tasks.id
        from {schema}.tasks
        where tasks.status = 'PENDING'
        and not tasks.ready
        and tasks.unknown_since is null
        and tasks.enqueued_at <= statement_timestamp()
        order by tasks.enqueued_at
        limit max_rows
        for update skip locked
    loop
        begin
            update {schema}.tasks
            set ready = true
            where tasks.id = due_id
            returning {schema}.wakeup_payload(true, tasks.priority, tasks.enqueued_at, tasks.queue_name) into payload;
            perform pg_notify('{new_channel}', payload);
            return next payload;
        exception when others then
            if left(sqlstate, 2) in ('08', '26', '40', '42', '53', '55', '57', '58') then
                raise;
            end if;
        end;
    end loop;
end
$$;

-- Whether a worker that serves these queues and knows these tasks can run a task, as far as that is known without trying.
create function {schema}.can_run(
    queues text[], task_names text[], signatures bigint[], queue_name text, task_name text, refused_by bigint[]
) returns boolean
language sql stable parallel safe
return queue_name = any(queues) and (
    task_names is null
    or coalesce(
        task_name = any(task_names)
        and signatures[array_position(task_names, task_name)] <> all(coalesce(refused_by, '{}')),
        false
    )
);

-- The names of tasks that wait for a worker that can run them, in order; a name twice if workers that know it refused the arguments of
-- some. Every step is one probe of tasks_unknown_idx, so it costs the same however many tasks wait.
create function {schema}.unknown_task_names(max_rows integer) returns table (task_name text, is_refused boolean)
language sql stable
begin atomic
    with recursive name as (
        (
            select tasks.task_name, tasks.refused_by is not null as is_refused
            from {schema}.tasks
            where tasks.unknown_since is not null
            order by tasks.task_name, (tasks.refused_by is not null)
            limit 1
        )
        union all
        select next.task_name, next.is_refused
        from name
        cross join lateral (
            select tasks.task_name, tasks.refused_by is not null as is_refused
            from {schema}.tasks
            where tasks.unknown_since is not null
            and (tasks.task_name, tasks.refused_by is not null) > (name.task_name, name.is_refused)
            order by tasks.task_name, (tasks.refused_by is not null)
            limit 1
        ) as next
    )
    select name.task_name, name.is_refused
    from name
    limit max_rows;
end;

-- The results of all items of a map, in order, as the JSON array of a list of TaskResults. NULL: it never had items.
create function {schema}.item_results(map uuid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select '[' || coalesce((
            select string_agg(
                case
                    when item.status = 'COMPLETED' then '{"ok":' || coalesce(item.result::text, 'null') || '}'
                    when item.status = 'FAILED' and item.error is not null then '{"err":' || item.error::text || '}'
                    else '{"err":' || json_build_object(
                        'error_code', case when item.status = 'SKIPPED' then 'UPSTREAM_SKIPPED' else 'RESULT_NOT_READY' end,
                        'message', case
                            when item.status = 'SKIPPED' then 'item ' || item.index || ' was skipped: the map was stopped'
                            else 'item ' || item.index || ' is ' || item.status || ': it has no result yet'
                        end,
                        'data', null
                    )::text || '}'
                end,
                ',' order by item.index
            )
            from {schema}.nodes as item
            where item.workflow_id = workflows.id
        ), '') || ']'
        from {schema}.workflows
        where workflows.id = (select nodes.child_id from {schema}.nodes where nodes.id = map)
    );
end
$$;

-- What the task of a node receives in addition to its arguments. References are stored, and the results they name are read when the task is
-- claimed. A function, so that it is planned once and not with every claim. The results of a map's items follow the other inputs, each as the
-- value of a node that has succeeded.
create function {schema}.node_inputs(node uuid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select json_build_object(
            'refs', nodes.refs,
            -- As text: a value that is only passed on is never decoded.
            'item', nodes.item::text,
            'inputs', case when nodes.inputs <> '{}' or nodes.results_of is not null then (
                select json_agg(
                    json_build_object(
                        'node_id', input.node_id,
                        'status', input.status,
                        'made_by', input.made_by,
                        'makes_list', input.makes_list,
                        'result', input.result,
                        'error', input.error
                    )
                    order by input.place
                )
                from (
                    select
                        wanted.place, other.node_id, other.status, other.made_by, other.makes_list,
                        other.result::text as result, other.error::text as error
                    from unnest(nodes.inputs) with ordinality as wanted (id, place)
                    cross join lateral (
                        select other.node_id, other.status, other.made_by, other.makes_list, other.result, other.error
                        from {schema}.nodes as other
                        where other.id = wanted.id
                        offset 0
                    ) as other
                    union all
                    select
                        cardinality(nodes.inputs) + wanted.place, map.node_id,
                        case when map.results is null then map.status else 'COMPLETED' end,
                        null, false, map.results, case when map.results is null then map.error::text end
                    from unnest(nodes.results_of) with ordinality as wanted (id, place)
                    cross join lateral (
                        select other.node_id, other.status, other.error, {schema}.item_results(other.id) as results
                        from {schema}.nodes as other
                        where other.id = wanted.id
                        offset 0
                    ) as map
                ) as input
            ) end,
            'meta', case when nodes.wants_meta then (
                select json_build_object(
                    -- To its task, an item belongs to the run that contains the map.
                    'workflow_id',
                    case
                        when workflows.is_map then workflows.ancestors[cardinality(workflows.ancestors)]
                        else workflows.id
                    end,
                    'root_id', workflows.root_id,
                    'workflow_name', workflows.name,
                    'node_id', nodes.node_id
                )
                from {schema}.workflows
                where workflows.id = nodes.workflow_id
            ) end
        )
        from {schema}.nodes
        where nodes.id = node
    );
end
$$;

-- The same, or NULL if it is larger than `max_bytes`. The stored sizes are compared first, which does not read the values.
create function {schema}.node_inputs(node uuid, max_bytes integer) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    stored_bytes bigint;
    inputs text;
begin
    if max_bytes is not null then
        select
            coalesce(pg_column_size(nodes.item), 0)
            + coalesce((
                select sum(coalesce(pg_column_size(input.result), 0) + coalesce(pg_column_size(input.error), 0))
                from {schema}.nodes as input
                where input.id = any(nodes.inputs)
            ), 0)
            + coalesce((
                select sum(8 + coalesce(pg_column_size(item.result), 0) + coalesce(pg_column_size(item.error), 0))
                from unnest(nodes.results_of) as wanted (id)
                cross join lateral (select map.child_id from {schema}.nodes as map where map.id = wanted.id offset 0) as map
                cross join lateral (
                    select item.result, item.error from {schema}.nodes as item where item.workflow_id = map.child_id offset 0
                ) as item
            ), 0)
        into stored_bytes
        from {schema}.nodes
        where nodes.id = node;
        if stored_bytes > max_bytes then
            return null;
        end if;
    end if;
    inputs := {schema}.node_inputs(node);
    return case when max_bytes is null or octet_length(inputs) <= max_bytes then inputs end;
end
$$;

-- How many bytes of text the task of a node receives in addition to its arguments.
create function {schema}.input_bytes(node uuid) returns bigint
language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    return (
        select
            coalesce(octet_length(nodes.item::text), 0)
            + coalesce((
                select sum(coalesce(octet_length(input.result::text), 0) + coalesce(octet_length(input.error::text), 0))
                from {schema}.nodes as input
                where input.id = any(nodes.inputs)
            ), 0)
            + coalesce((
                select sum(8 + coalesce(octet_length(item.result::text), 0) + coalesce(octet_length(item.error::text), 0))
                from unnest(nodes.results_of) as wanted (id)
                cross join lateral (select map.child_id from {schema}.nodes as map where map.id = wanted.id offset 0) as map
                cross join lateral (
                    select item.result, item.error from {schema}.nodes as item where item.workflow_id = map.child_id offset 0
                ) as item
            ), 0)
        from {schema}.nodes
        where nodes.id = node
    );
end
$$;

-- views

-- All tasks, live and finished, as one table.
create view {schema}.all_tasks as
select
    id, task_name, queue_name, priority, status, args,
    null::json as result, null::text as error_code, null::json as error,
    sent_at, enqueued_at, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, claimed_by, claimed_at, started_at,
    null::timestamptz as finished_at, root_id, node_id, trace, is_sensitive, on_failure, null::integer as child_pid
from {schema}.tasks
union all
select
    id, task_name, queue_name, priority, status, args,
    result, error_code, error,
    sent_at, enqueued_at, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, claimed_by, claimed_at, started_at,
    finished_at, root_id, node_id, trace, is_sensitive, on_failure, child_pid
from {schema}.finished;

-- indexes

-- The claim order.
create index tasks_claim_idx on {schema}.tasks (queue_name, priority, enqueued_at, id)
    where status = 'PENDING' and ready;
-- The tasks that are due next. A task that waits for a worker that knows it is not due.
create index tasks_due_idx on {schema}.tasks (enqueued_at)
    where status = 'PENDING' and not ready and unknown_since is null;
-- Tasks in flight: the counts of caps, and the rows of one worker. First by the claim, so that a count that starts at the oldest claim in
-- flight does not visit dead entries of earlier ones.
create index tasks_in_flight_idx on {schema}.tasks (claimed_in, queue_name, status, claimed_by)
    where status <> 'PENDING';
-- Tasks that can still expire.
create index tasks_expiry_idx on {schema}.tasks (good_until)
    where good_until is not null and status <> 'RUNNING';
-- Tasks with a cancel request; nearly always empty.
create index tasks_cancel_idx on {schema}.tasks (id)
    where cancel_requested_at is not null;
-- Tasks that no living worker can run: by name, then those refused for their arguments, then by time.
create index tasks_unknown_idx on {schema}.tasks (task_name, (refused_by is not null), unknown_since)
    where unknown_since is not null;

-- Tasks that were tried before: for their errors, in lists. Others pay nothing for it.
create index tasks_tried_idx on {schema}.tasks (id)
    where failed_attempts is not null or child_deaths > 0;

create index finished_id_idx on {schema}.finished (id);
-- For statistics by minute and lists by time. Its entries are in the order of insertion, so it is cheap. It is on an expression because statements that
-- look for an id have a condition on `finished_at`, too, to skip partitions: with an index on the column, the planner would use that one for a task that
-- ends "since now", since its statistics know of none, and read the whole batch for each of its tasks.
create index finished_at_idx on {schema}.finished ((finished_at at time zone 'UTC'));
-- For groups of errors and the newest failures, which are rare beside successes.
create index finished_failed_idx on {schema}.finished ((finished_at at time zone 'UTC'), id) where status = 'FAILED';
-- For lists of tasks that have not succeeded, and searches in their errors, in order of the id.
create index finished_unsuccessful_idx on {schema}.finished (id) where status <> 'COMPLETED';

create index worker_states_latest_idx on {schema}.worker_states (worker_id, snapshot_at desc);

-- All runs of a tree.
create index workflows_root_idx on {schema}.workflows (root_id);
-- Runs that have not ended.
create index workflows_live_idx on {schema}.workflows (root_id, id)
    where status in ('RUNNING', 'PAUSED');
-- Paused runs, which are few among the live ones.
create index workflows_paused_idx on {schema}.workflows (id)
    where status = 'PAUSED';
-- Runs with a deadline.
create index workflows_deadline_idx on {schema}.workflows (deadline)
    where deadline is not null and status in ('RUNNING', 'PAUSED');
-- Lists of root runs, newest first.
create index workflows_created_idx on {schema}.workflows (created_at, id)
    where parent_node is null;
-- Retention: trees by the end of their root run.
create index workflows_ended_idx on {schema}.workflows (finished_at)
    where id = root_id and finished_at is not null;

create unique index nodes_workflow_idx on {schema}.nodes (workflow_id, index);
-- Nodes that have ended and were not propagated. Any process can take them up after a crash.
create index nodes_unpropagated_idx on {schema}.nodes (root_id)
    where not propagated and status in ('COMPLETED', 'FAILED', 'SKIPPED');
-- Tasks to be enqueued, in order.
create index nodes_ready_idx on {schema}.nodes (workflow_id, index)
    where status = 'READY' and kind = 'task';
-- Sub-workflows and maps to be started.
create index nodes_ready_runs_idx on {schema}.nodes (root_id)
    where status = 'READY' and kind <> 'task';
-- Trees whose errors may quote a sensitive value.
create index nodes_sensitive_idx on {schema}.nodes (root_id)
    where status = 'FAILED' and is_sensitive;

create index schedules_due_idx on {schema}.schedules (next_slot_at)
    where paused_at is null;

create index schedule_runs_schedule_idx on {schema}.schedule_runs (schedule_name, id);
-- Retention.
create index schedule_runs_decided_idx on {schema}.schedule_runs (decided_at);
-- Which schedule a task comes from.
create index schedule_runs_task_idx on {schema}.schedule_runs (task_id);
-- The tasks of a schedule, the newest first.
create index schedule_runs_tasks_idx on {schema}.schedule_runs (schedule_name, task_id)
    where task_id is not null;
create index attempt_logs_stored_idx on {schema}.attempt_logs (stored_at);

-- triggers

-- A NOTIFY takes a lock of the whole cluster until its transaction is durable, so senders that notify commit one after the other. A transaction
-- that sets `horsies.notify` promises to notify after its commit, which holds that lock only for a moment.
create trigger tasks_notify_new
    after insert on {schema}.tasks
    referencing new table as inserted
    for each statement
    when (current_setting('horsies.notify', true) is distinct from 'after_commit')
    execute function {schema}.notify_new_tasks();

create trigger finished_enqueue_on_failure
    after insert on {schema}.finished
    for each row
    when (new.status = 'FAILED' and new.on_failure is not null)
    execute function {schema}.enqueue_on_failure();
