-- compatible_since: 1
-- Bounds for rows that are written by hand. They keep out what would make a statement over many rows fail, or loop for ever, and so stop a worker or the
-- keeper. They are few, because each is read and planned by every statement that writes, and evaluated at every insert and every claim; where a statement can
-- cope with a value, it is not refused. What harms only the task itself (arguments that are not an object, an unknown name) lets it fail when it runs.

-- Existing rows first: a row that breaks a constraint could not be updated any more, so it could be neither claimed nor released. Nobody may write
-- between the correction and the constraint.
lock table {schema}.tasks, {schema}.keys, {schema}.schedules, {schema}.workers, {schema}.keeper in share row exclusive mode;

update {schema}.tasks
set
    queue_name = left(queue_name, 200),
    enqueued_at = least(greatest(enqueued_at, '1970-01-01 00:00+00'), '9999-12-31 00:00+00'),
    attempts = least(greatest(attempts, 0), 1000000000)
where octet_length(queue_name) > 1000
or enqueued_at < '1970-01-01 00:00+00'
or enqueued_at > '9999-12-31 23:59:59+00'
or attempts < 0
or attempts > 1000000000;

-- One constraint for all: each is planned anew by every statement.
alter table {schema}.tasks
    add constraint tasks_are_in_range check (
        -- A notification carries the name of the queue, and may have 8 000 bytes.
        octet_length(queue_name) <= 1000
        -- Claims begin at 1970, and a notification tells microseconds since then.
        and enqueued_at >= '1970-01-01 00:00+00'
        and enqueued_at <= '9999-12-31 23:59:59+00'
        -- With room to count: every claim tells attempts + 1. They are raised only while there are delays left, of which no array can have as many.
        and attempts >= 0
        and attempts <= 1000000000
    );

update {schema}.keys
set
    key_window = least(greatest(key_window, interval '0'), interval '100 years'),
    ended_at = case when isfinite(ended_at) then ended_at end,
    former = case when array_ndims(former) = 1 then former else '{}' end
where key_window < interval '0'
or key_window > interval '100 years'
or not isfinite(ended_at)
or array_ndims(former) > 1;

alter table {schema}.keys
    -- A longer one leads out of the range of moments when it is subtracted from now.
    add constraint keys_window_is_bounded check (key_window >= interval '0' and key_window <= interval '100 years'),
    add constraint keys_ended_at_is_known check (isfinite(ended_at)),
    add constraint keys_former_are_a_list check (array_ndims(former) = 1);

-- As for tasks, because tasks are made of them, all that are due in one statement. A schedule that had to be corrected is paused: it is not what its
-- author meant.
update {schema}.schedules
set
    queue_name = left(queue_name, 200),
    retry_jitter = case when retry_jitter >= 0 and retry_jitter <= 1 then retry_jitter else 0 end,
    max_catch_up_runs = least(greatest(max_catch_up_runs, 0), 10000),
    jitter_ms = least(greatest(jitter_ms, 0), 86400000),
    next_slot_at = case when next_slot_at >= '1970-01-01 00:00+00' and next_slot_at <= '9999-12-31 23:59:59+00' then next_slot_at end,
    paused_at = coalesce(paused_at, now())
where octet_length(queue_name) > 1000
or not (retry_jitter >= 0 and retry_jitter <= 1)
or max_catch_up_runs < 0
or max_catch_up_runs > 10000
or jitter_ms < 0
or jitter_ms > 86400000
or next_slot_at < '1970-01-01 00:00+00'
or next_slot_at > '9999-12-31 23:59:59+00';

alter table {schema}.schedules
    add constraint schedules_queue_name_is_short check (octet_length(queue_name) <= 1000),
    add constraint schedules_jitter_is_a_share check (retry_jitter >= 0 and retry_jitter <= 1),
    add constraint schedules_catch_up_is_bounded check (max_catch_up_runs >= 0 and max_catch_up_runs <= 10000),
    add constraint schedules_delay_is_bounded check (jitter_ms >= 0 and jitter_ms <= 86400000),
    add constraint schedules_slot_is_known check (
        next_slot_at >= '1970-01-01 00:00+00' and next_slot_at <= '9999-12-31 23:59:59+00'
    );

-- Of workers, a row that cannot be right is not corrected: a living worker registers again, and the tasks of the others are orphans.
delete from {schema}.workers
where not isfinite(started_at)
or not isfinite(heartbeat_at)
or heartbeat_at < '1970-01-01 00:00+00'
or heartbeat_at > '9999-12-31 23:59:59+00'
or array_ndims(queues) > 1
or array_position(queues, null) is not null;

alter table {schema}.workers
    add constraint workers_moments_are_known check (
        isfinite(started_at) and heartbeat_at >= '1970-01-01 00:00+00' and heartbeat_at <= '9999-12-31 23:59:59+00'
    ),
    add constraint workers_queues_are_a_list check (array_ndims(queues) = 1),
    add constraint workers_queues_are_known check (cardinality(queues) = 0 or array_position(queues, null) is null);

delete from {schema}.keeper
where not isfinite(until);

alter table {schema}.keeper
    add constraint keeper_lease_ends check (isfinite(until));

-- What has become due joins the claim index; returns what workers are told, per queue and priority. It is a function because a row that cannot be changed
-- (a trigger of the user's refuses it) must take neither the others with it nor the worker's transaction that promotes. After a failure it is done row
-- by row, and such a row stays as it is. The keeper tells of it.
create function {schema}.promote(most integer) returns setof text
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
