-- compatible_since: 1
-- A NOTIFY takes a lock of the whole cluster until its transaction is durable: senders that notify commit one after the other. Whoever sets
-- `horsies.told` in a transaction of its own promises to notify when it is committed, which holds that lock for a moment only.

-- What workers are told of a task that was sent: from where in the order of service there is something new, or when something will be.
create function {schema}.news_of(ready boolean, priority integer, enqueued_at timestamptz, queue_name text) returns text
language sql volatile as $$
    select case
        when ready
        then priority || ' ' || (extract(epoch from enqueued_at) * 1000000)::bigint || ' ' || queue_name
        else 'later ' || (extract(epoch from enqueued_at - clock_timestamp()) * 1000000)::bigint
    end
$$;

create or replace function {schema}.notify_new_tasks() returns trigger language plpgsql as $$
begin
    perform pg_notify('{new_channel}', {schema}.news_of(ready, priority, min(enqueued_at), queue_name))
    from inserted
    group by queue_name, priority, ready;
    return null;
end
$$;

create or replace trigger tasks_notify_new
    after insert on {schema}.tasks
    referencing new table as inserted
    for each statement
    when (current_setting('horsies.told', true) is distinct from 'afterwards')
    execute function {schema}.notify_new_tasks();
