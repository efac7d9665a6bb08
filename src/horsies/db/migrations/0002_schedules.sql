-- compatible_since: 1
-- What is enqueued by itself, and where each schedule stands. A row has all that it takes to enqueue its task, so every scheduler can serve
-- it, also one of an older release.
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
    pattern jsonb not null,
    timezone text not null,
    catch_up_missed boolean not null,
    max_catch_up_runs integer not null,
    jitter_ms integer not null,
    overlap text not null,
    -- As the app says, and whether it says anything about this schedule any more.
    enabled boolean not null,
    declared boolean not null default true,
    -- As an operator says; outlives every change of the app.
    paused_at timestamptz,
    -- The first slot that nobody has dealt with: whoever deals with it moves it on, in the transaction that enqueues the task. Null: none.
    next_slot_at timestamptz,
    last_slot_at timestamptz,
    last_task_id uuid,
    changed_at timestamptz not null default now(),
    constraint schedules_pkey primary key (name)
) with (fillfactor = 70);

create index schedules_due_idx on {schema}.schedules (next_slot_at)
    where paused_at is null;

-- What became of each slot. Those that were missed together are one row, from slot_at to last_slot_at.
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

create index schedule_runs_schedule_idx on {schema}.schedule_runs (schedule_name, id);
-- What is old enough to be forgotten.
create index schedule_runs_decided_idx on {schema}.schedule_runs (decided_at);
