-- compatible_since: 1
-- Which tasks each worker knows. A task that no living worker can run waits outside the claim index until one can.

alter table {schema}.workers
    -- Null: registered by a release that does not say what it knows. Such a worker is taken to know every task.
    add column task_names text[],
    -- In the same order: what tells one set of parameters from another.
    add column signatures bigint[],
    -- One by hand with more dimensions would make every look for a worker that knows a task fail.
    add constraint workers_tasks_are_lists check (array_ndims(task_names) = 1 and array_ndims(signatures) = 1);

alter table {schema}.tasks
    -- Since when no living worker can run it. It is not `ready` then, so that it is in nobody's way.
    add column unknown_since timestamptz,
    -- The signatures of workers that could not read its arguments, and what the last of them said.
    add column refused_by bigint[],
    add column refusal json;

-- By task, then those that wait for a worker with another signature, then by time.
create index tasks_unknown_idx on {schema}.tasks (task_name, (refused_by is not null), unknown_since)
    where unknown_since is not null;

-- Those that wait for a worker are not due.
drop index {schema}.tasks_due_idx;
create index tasks_due_idx on {schema}.tasks (enqueued_at)
    where status = 'PENDING' and not ready and unknown_since is null;

-- Whether a worker that serves these queues and knows these tasks can run a task, as far as can be told without trying.
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

-- As before, without those that wait for a worker.
create or replace function {schema}.promote(most integer) returns setof text
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    late uuid;
    told text;
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
            limit most
            for update skip locked
        ),
        promoted as (
            update {schema}.tasks
            set ready = true
            where tasks.id = any(array(select due.id from due))
            returning tasks.queue_name, tasks.priority, tasks.enqueued_at
        ),
        news as (
            select {schema}.news_of(true, promoted.priority, min(promoted.enqueued_at), promoted.queue_name) as payload
            from promoted
            group by promoted.queue_name, promoted.priority
        )
        select news.payload
        from news
        cross join lateral pg_notify('{new_channel}', news.payload);
        return;
    exception when others then
        -- Contention, a server in need and missing rights are not the fault of a row. (A statement that is cancelled never comes here.)
        if left(sqlstate, 2) in ('08', '26', '40', '42', '53', '55', '57', '58') then
            raise;
        end if;
    end;
    for late in
        select tasks.id
        from {schema}.tasks
        where tasks.status = 'PENDING'
        and not tasks.ready
        and tasks.unknown_since is null
        and tasks.enqueued_at <= statement_timestamp()
        order by tasks.enqueued_at
        limit most
        for update skip locked
    loop
        begin
            update {schema}.tasks
            set ready = true
            where tasks.id = late
            returning {schema}.news_of(true, tasks.priority, tasks.enqueued_at, tasks.queue_name) into told;
            perform pg_notify('{new_channel}', told);
            return next told;
        exception when others then
            if left(sqlstate, 2) in ('08', '26', '40', '42', '53', '55', '57', '58') then
                raise;
            end if;
        end;
    end loop;
end
$$;
