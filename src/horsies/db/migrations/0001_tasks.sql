-- A time-ordered (version 7) id for rows that the database makes itself, or that are inserted by hand.
create function {schema}.new_id() returns uuid language sql volatile parallel safe as $$
    select (
        substr(milliseconds, 1, 8) || '-' || substr(milliseconds, 9, 4) || '-7' || substr(gen_random_uuid()::text, 16)
    )::uuid
    from lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') as milliseconds
$$;

-- Live tasks: only what is PENDING, CLAIMED or RUNNING. What has ended is moved to `finished`, so this table and its
-- indexes stay small for ever. Every index is paid for at every change of state; each one says what it is for.
create table {schema}.tasks (
    id uuid not null default {schema}.new_id(),
    task_name text not null,
    queue_name text not null default 'default',
    priority integer not null default 100,
    status text not null default 'PENDING',
    -- False keeps a row that is not due yet out of the claim index.
    ready boolean not null default true,
    args json not null default '{}',
    sent_at timestamptz not null default now(),
    -- When the task is due; the order of service within a priority.
    enqueued_at timestamptz not null default now(),
    good_until timestamptz,
    timeout_ms integer,
    -- The retry policy as it was sent, so that anyone can apply it, also one who does not know the task: the pause before each
    -- retry, by how much of it chance may move it, and the error codes that are retried.
    retry_delays_ms integer[],
    retry_jitter real not null default 0,
    retry_for text[],
    failed_attempts json[],
    cancel_requested_at timestamptz,
    progress json,
    -- Attempts that have ended. A claim that is released unbegun does not count.
    attempts integer not null default 0,
    -- Raised by every claim and never reset: the fence that tells one claim of a task from the next.
    claim_no integer not null default 0,
    claimed_by uuid,
    claimed_at timestamptz,
    lease_until timestamptz,
    started_at timestamptz,
    -- Of a task that a workflow runs: its node, and the run at the top of the tree, whose row is the lock for all of it.
    root_id uuid,
    node_id uuid,
    takes_inputs boolean,
    constraint tasks_pkey primary key (id),
    constraint tasks_status_is_live check (status in ('PENDING', 'CLAIMED', 'RUNNING')),
    constraint tasks_jitter_is_a_share check (retry_jitter between 0 and 1),
    constraint tasks_owner_when_held check ((status = 'PENDING') = (claimed_by is null))
) with (
    -- Rows are updated once or twice and deleted: room for one new version on the page, and a vacuum that comes early
    -- and never sleeps, because dead rows here are what slows claims.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 20000
);

-- The order of service.
create index tasks_claim_idx on {schema}.tasks (queue_name, priority, enqueued_at, id)
    where status = 'PENDING' and ready;
-- What becomes due next.
create index tasks_due_idx on {schema}.tasks (enqueued_at)
    where status = 'PENDING' and not ready;
-- What is in flight: the counts of capped queues, and a worker's own rows.
create index tasks_in_flight_idx on {schema}.tasks (queue_name, status, claimed_by)
    where status <> 'PENDING';
-- What can still expire.
create index tasks_expiry_idx on {schema}.tasks (good_until)
    where good_until is not null and status <> 'RUNNING';

-- What was asked to stop; nearly always empty.
create index tasks_cancel_idx on {schema}.tasks (id)
    where cancel_requested_at is not null;

-- Finished tasks, one partition a day (UTC), so that retention is a DROP. That a task ends once rests on its deletion
-- from `tasks`, so no unique index is needed here.
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
    constraint finished_status_is_final check (status in ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED'))
) partition by range (finished_at);

create index finished_id_idx on {schema}.finished (id);

-- Catches what no day was prepared for.
create table {schema}.finished_default partition of {schema}.finished default;

-- All task data, live and finished, as one table.
create view {schema}.all_tasks as
select
    id, task_name, queue_name, priority, status, args,
    null::json as result, null::text as error_code, null::json as error,
    sent_at, enqueued_at, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, claimed_by, claimed_at, started_at,
    null::timestamptz as finished_at, root_id, node_id
from {schema}.tasks
union all
select
    id, task_name, queue_name, priority, status, args,
    result, error_code, error,
    sent_at, enqueued_at, good_until, timeout_ms, retry_delays_ms, retry_jitter, retry_for, failed_attempts, progress,
    attempts, claim_no, claimed_by, claimed_at, started_at,
    finished_at, root_id, node_id
from {schema}.finished;

-- One row per incarnation of a worker: a fresh id at every start. `heartbeat_at` speaks for all of its tasks.
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
    constraint workers_pkey primary key (id)
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
    -- Resident memory of the parent, and of its children together.
    memory_usage_mb real not null,
    children_memory_mb real not null,
    cpu_percent real not null,
    children_cpu_percent real not null,
    worker_started_at timestamptz not null,
    constraint worker_states_pkey primary key (id)
);
create index worker_states_latest_idx on {schema}.worker_states (worker_id, snapshot_at desc);

-- Run-time switches of queues; a queue without a row is in its ordinary state.
create table {schema}.queues (
    name text not null,
    paused_at timestamptz,
    constraint queues_pkey primary key (name)
);

-- Idempotency keys: which task a key stands for. Nothing is written here when the task ends; whoever sends under the key again
-- looks whether its task is live, or ended less than `key_window` ago, and takes the key over if not.
create table {schema}.keys (
    task_name text not null,
    key text not null,
    task_id uuid not null,
    -- The send that wrote this row last: it knows itself again when its answer was lost.
    send_id uuid not null,
    args_hash text not null,
    key_window interval not null,
    constraint keys_pkey primary key (task_name, key)
);

-- Runs of workflows. A sub-workflow is a run of its own below that of the node it stands for, and so are the items of a map. All runs of a
-- tree are written when the one at its top is started, but those of maps, whose items are not known then.
create table {schema}.workflows (
    id uuid not null,
    -- The run at the top of its tree, for that one itself. Its row is the lock for the whole tree.
    root_id uuid not null,
    -- The runs above, from the top down, and the node that this one stands for.
    ancestors uuid[] not null default '{}',
    parent_node uuid,
    -- Which call of start() has made it: that one knows itself again when its answer was lost.
    start_id uuid,
    name text not null,
    definition_key text,
    status text not null default 'PENDING',
    on_error text not null default 'fail',
    output integer,
    -- Lists of nodes by their index; one list of which all have succeeded is enough.
    success_cases json,
    optional integer[] not null default '{}',
    is_map boolean not null default false,
    -- How many nodes may be under way at once; these are counted only where it matters.
    max_parallel integer,
    in_flight integer not null default 0,
    -- Nodes whose ending has not been told to those that wait for them.
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

-- All runs of a tree.
create index workflows_root_idx on {schema}.workflows (root_id);
-- Those under way.
create index workflows_live_idx on {schema}.workflows (root_id)
    where status in ('RUNNING', 'PAUSED');
-- Those whose time is limited.
create index workflows_deadline_idx on {schema}.workflows (deadline)
    where deadline is not null and status in ('RUNNING', 'PAUSED');

-- The nodes of runs. A node keeps its own result for as long as its run is kept, whatever becomes of its task's row.
create table {schema}.nodes (
    id uuid not null,
    root_id uuid not null,
    workflow_id uuid not null,
    index integer not null,
    node_id text not null,
    kind text not null,
    status text not null default 'PENDING',
    -- Whether its ending has been counted by those that wait for it, and by its run.
    told boolean not null default false,
    waits_for integer[] not null,
    dependents uuid[] not null,
    -- So many of those it waits for must succeed. It may run without when all have ended, if failed ones are allowed.
    needed integer not null,
    allow_failed_deps boolean not null,
    -- Of those it waits for, so many have told it that they ended, and so many that they succeeded. Not counted once it is decided.
    resolved integer not null default 0,
    succeeded integer not null default 0,
    -- What is sent when it is ready, as in `tasks`.
    task_name text,
    queue_name text,
    priority integer,
    timeout_ms integer,
    retry_delays_ms integer[],
    retry_jitter real,
    retry_for text[],
    good_until timestamptz,
    args json,
    -- What stands where in the arguments: references to `inputs`, the nodes whose results are read when the task is claimed.
    refs json,
    inputs uuid[],
    takes_inputs boolean not null default false,
    wants_meta boolean not null default false,
    -- Of a map: the node whose list it goes over. Of an item: itself.
    source uuid,
    item json,
    max_parallel integer,
    -- The run that it stands for, if it is a sub-workflow or a map.
    child_id uuid,
    -- How its result is read: as that of this task, or a list of them.
    made_by text,
    makes_list boolean not null default false,
    task_id uuid,
    result json,
    error json,
    finished_at timestamptz,
    constraint nodes_pkey primary key (id),
    constraint nodes_status_is_known check (
        status in ('PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED')
    )
) with (fillfactor = 70);

create unique index nodes_workflow_idx on {schema}.nodes (workflow_id, index);
-- What has ended and is still to be told: what anybody may take up whom a crash has left it to.
create index nodes_untold_idx on {schema}.nodes (root_id)
    where not told and status in ('COMPLETED', 'FAILED', 'SKIPPED');
-- Tasks to be enqueued, in their order.
create index nodes_ready_idx on {schema}.nodes (workflow_id, index)
    where status = 'READY' and kind = 'task';
-- Runs to be started.
create index nodes_opening_idx on {schema}.nodes (root_id)
    where status = 'READY' and kind <> 'task';

-- What the task of a node is handed beside its arguments: references are stored, and the results that they name are read when it is
-- claimed. A function, so that it is planned once, and not with every claim.
create function {schema}.node_inputs(node uuid) returns text language plpgsql stable as $$
begin
    return (
        select json_build_object(
            'refs', nodes.refs,
            -- As text: what is only passed on is never decoded on its way.
            'item', nodes.item::text,
            'inputs', case when nodes.inputs <> '{}' then (
                select json_agg(
                    json_build_object(
                        'node_id', input.node_id,
                        'status', input.status,
                        'made_by', input.made_by,
                        'makes_list', input.makes_list,
                        'result', input.result::text,
                        'error', input.error::text
                    )
                    order by wanted.place
                )
                from unnest(nodes.inputs) with ordinality as wanted (id, place)
                cross join lateral (
                    select other.node_id, other.status, other.made_by, other.makes_list, other.result, other.error
                    from {schema}.nodes as other
                    where other.id = wanted.id
                    offset 0
                ) as input
            ) end,
            'meta', case when nodes.wants_meta then (
                select json_build_object(
                    -- An item belongs to the run of its map's node, for all that its task knows.
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

-- Who is the keeper, by a lease: session locks would leak behind a pooler.
create table {schema}.keeper (
    singleton boolean not null default true,
    holder uuid not null,
    until timestamptz not null,
    constraint keeper_pkey primary key (singleton),
    constraint keeper_is_one check (singleton)
);

-- Wakes workers once per queue and priority for each INSERT statement, however many rows it brings. Hand-written
-- INSERTs wake them too. Of rows that are not due yet it tells how long that will take, so that sleepers set a timer.
create function {schema}.notify_new_tasks() returns trigger language plpgsql as $$
begin
    perform pg_notify(
        '{new_channel}',
        case
            when ready
            then priority || ' ' || (extract(epoch from min(enqueued_at)) * 1000000)::bigint || ' ' || queue_name
            else 'later ' || (extract(epoch from min(enqueued_at) - clock_timestamp()) * 1000000)::bigint
        end
    )
    from inserted
    group by queue_name, priority, ready;
    return null;
end
$$;

create trigger tasks_notify_new
    after insert on {schema}.tasks
    referencing new table as inserted
    for each statement execute function {schema}.notify_new_tasks();
