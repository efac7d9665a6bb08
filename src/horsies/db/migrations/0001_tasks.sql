-- Live tasks: only what is PENDING, CLAIMED or RUNNING. What has ended is moved to `finished`, so this table and its
-- indexes stay small for ever. Every index is paid for at every change of state; each one says what it is for.
create table {schema}.tasks (
    -- A time-ordered (version 7) id also for rows inserted by hand.
    id uuid not null default (
        substr(lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0'), 1, 8) || '-'
        || substr(lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0'), 9, 4) || '-7'
        || substr(gen_random_uuid()::text, 16)
    )::uuid,
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
    -- Attempts that have ended. A claim that is released unbegun does not count.
    attempts integer not null default 0,
    -- Raised by every claim and never reset: the fence that tells one claim of a task from the next.
    claim_no integer not null default 0,
    claimed_by uuid,
    claimed_at timestamptz,
    lease_until timestamptz,
    started_at timestamptz,
    constraint tasks_pkey primary key (id),
    constraint tasks_status_is_live check (status in ('PENDING', 'CLAIMED', 'RUNNING')),
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
-- What is in flight: a worker's own rows, and later the counts of capped queues.
create index tasks_in_flight_idx on {schema}.tasks (claimed_by, queue_name)
    where status <> 'PENDING';

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
    attempts integer not null,
    claim_no integer not null,
    claimed_by uuid,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz not null,
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
    sent_at, enqueued_at, good_until, attempts, claim_no, claimed_by, claimed_at, started_at,
    null::timestamptz as finished_at
from {schema}.tasks
union all
select
    id, task_name, queue_name, priority, status, args,
    result, error_code, error,
    sent_at, enqueued_at, good_until, attempts, claim_no, claimed_by, claimed_at, started_at,
    finished_at
from {schema}.finished;

-- One row per incarnation of a worker: a fresh id at every start. `heartbeat_at` speaks for all of its tasks.
create table {schema}.workers (
    id uuid not null,
    hostname text not null,
    pid integer not null,
    processes integer not null,
    queues text[] not null,
    library_version text not null,
    started_at timestamptz not null default now(),
    heartbeat_at timestamptz not null default now(),
    constraint workers_pkey primary key (id)
);

-- Wakes workers once per queue and priority for each INSERT statement, however many rows it brings. Hand-written
-- INSERTs wake them too.
create function {schema}.notify_new_tasks() returns trigger language plpgsql as $$
begin
    perform pg_notify(
        '{new_channel}',
        priority || ' ' || (extract(epoch from min(enqueued_at)) * 1000000)::bigint || ' ' || queue_name
    )
    from inserted
    group by queue_name, priority;
    return null;
end
$$;

create trigger tasks_notify_new
    after insert on {schema}.tasks
    referencing new table as inserted
    for each statement execute function {schema}.notify_new_tasks();
