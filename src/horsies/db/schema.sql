-- The schema that the migrations create, without the daily partitions. Written by: python -m tests.fixtures.schema_dump

CREATE SCHEMA horsies;

CREATE FUNCTION horsies.add_failed_attempt(failed_attempts json[], attempt integer, claim_no integer, error_code text, error json, worker uuid, child_pid integer, started_at timestamp with time zone, ended_at timestamp with time zone, counted boolean) RETURNS json[]
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ((failed_attempts || json_build_object('attempt', attempt, 'claim_no', claim_no, 'error_code', error_code, 'error', CASE WHEN (octet_length((error)::text) > 16384) THEN json_build_object('error_code', error_code, 'message', (('its error took '::text || octet_length((error)::text)) || ' bytes; the beginning and the end are kept'::text), 'data', json_build_object('truncated', (("left"((error)::text, 4000) || ' ... '::text) || "right"((error)::text, 4000)))) ELSE error END, 'worker', worker, 'child_pid', child_pid, 'started_at', started_at, 'ended_at', ended_at, 'counted', counted)))[GREATEST(1, (COALESCE(cardinality(failed_attempts), 0) - 18)):];

CREATE FUNCTION horsies.can_run(queues text[], task_names text[], signatures bigint[], queue_name text, task_name text, refused_by bigint[]) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ((queue_name = ANY (queues)) AND ((task_names IS NULL) OR COALESCE(((task_name = ANY (task_names)) AND ((signatures)[array_position(task_names, task_name)] <> ALL (COALESCE(refused_by, '{}'::bigint[])))), false)));

CREATE FUNCTION horsies.duration_bucket(since timestamp with time zone, until timestamp with time zone) RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN ((since >= '1970-01-01 00:00:00+00'::timestamp with time zone) AND (until <= '9999-12-31 23:59:59+00'::timestamp with time zone) AND (since <= until)) THEN width_bucket((date_part('epoch'::text, (until - since)) * (1000)::double precision), ARRAY[(1)::double precision, (2)::double precision, (4)::double precision, (8)::double precision, (16)::double precision, (32)::double precision, (64)::double precision, (128)::double precision, (256)::double precision, (512)::double precision, (1024)::double precision, (2048)::double precision, (4096)::double precision, (8192)::double precision, (16384)::double precision, (32768)::double precision, (65536)::double precision, (131072)::double precision, (262144)::double precision, (524288)::double precision, (1048576)::double precision, (2097152)::double precision, (4194304)::double precision, (8388608)::double precision, (16777216)::double precision, (33554432)::double precision]) ELSE NULL::integer END;

CREATE FUNCTION horsies.enqueue_on_failure() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    -- The transaction may have promised to notify of its other tasks after its commit.
    perform set_config('horsies.notify', '', true);
    insert into "horsies".tasks (
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

CREATE FUNCTION horsies.error_message(error json) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN "left"("substring"("left"((error)::text, 5000), '"message"\s*:\s*"((?:[^"\\]|\\.)*)'::text), 1000);

CREATE FUNCTION horsies.error_summary(error json) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN "left"(regexp_replace(regexp_replace(COALESCE("substring"("left"((error)::text, 4000), '"message"\s*:\s*"((?:[^"\\]|\\[^nr])*)'::text), ''::text), '[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\\u[0-9a-fA-F]{4}|[0-9]+'::text, '#'::text, 'g'::text), '\\(["\\/])'::text, '\1'::text, 'g'::text), 200);

CREATE FUNCTION horsies.histogram(buckets integer[], counts bigint[]) RETURNS integer[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ARRAY(SELECT (COALESCE(sum(part.count), (0)::numeric))::integer AS "coalesce" FROM (generate_series(0, 26) all_buckets(bucket) LEFT JOIN UNNEST(histogram.buckets, histogram.counts) part(bucket, count) ON ((part.bucket = all_buckets.bucket))) GROUP BY all_buckets.bucket ORDER BY all_buckets.bucket);

CREATE FUNCTION horsies.input_bytes(node uuid) RETURNS bigint
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    return (
        select
            coalesce(octet_length(nodes.item::text), 0)
            + coalesce((
                select sum(coalesce(octet_length(input.result::text), 0) + coalesce(octet_length(input.error::text), 0))
                from "horsies".nodes as input
                where input.id = any(nodes.inputs)
            ), 0)
            + coalesce((
                select sum(8 + coalesce(octet_length(item.result::text), 0) + coalesce(octet_length(item.error::text), 0))
                from unnest(nodes.results_of) as wanted (id)
                cross join lateral (select map.child_id from "horsies".nodes as map where map.id = wanted.id offset 0) as map
                cross join lateral (
                    select item.result, item.error from "horsies".nodes as item where item.workflow_id = map.child_id offset 0
                ) as item
            ), 0)
        from "horsies".nodes
        where nodes.id = node
    );
end
$$;

CREATE FUNCTION horsies.item_results(map uuid) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
            from "horsies".nodes as item
            where item.workflow_id = workflows.id
        ), '') || ']'
        from "horsies".workflows
        where workflows.id = (select nodes.child_id from "horsies".nodes where nodes.id = map)
    );
end
$$;

CREATE FUNCTION horsies.new_id() RETURNS uuid
    LANGUAGE sql PARALLEL SAFE
    RETURN (SELECT (((((substr(milliseconds.milliseconds, 1, 8) || '-'::text) || substr(milliseconds.milliseconds, 9, 4)) || '-7'::text) || substr((gen_random_uuid())::text, 16)))::uuid AS uuid FROM lpad(to_hex((floor((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric)))::bigint), 12, '0'::text) milliseconds(milliseconds));

CREATE FUNCTION horsies.node_inputs(node uuid) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
                        from "horsies".nodes as other
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
                        select other.node_id, other.status, other.error, "horsies".item_results(other.id) as results
                        from "horsies".nodes as other
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
                from "horsies".workflows
                where workflows.id = nodes.workflow_id
            ) end
        )
        from "horsies".nodes
        where nodes.id = node
    );
end
$$;

CREATE FUNCTION horsies.node_inputs(node uuid, max_bytes integer) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    stored_bytes bigint;
    inputs text;
begin
    if max_bytes is not null then
        select
            coalesce(pg_column_size(nodes.item), 0)
            + coalesce((
                select sum(coalesce(pg_column_size(input.result), 0) + coalesce(pg_column_size(input.error), 0))
                from "horsies".nodes as input
                where input.id = any(nodes.inputs)
            ), 0)
            + coalesce((
                select sum(8 + coalesce(pg_column_size(item.result), 0) + coalesce(pg_column_size(item.error), 0))
                from unnest(nodes.results_of) as wanted (id)
                cross join lateral (select map.child_id from "horsies".nodes as map where map.id = wanted.id offset 0) as map
                cross join lateral (
                    select item.result, item.error from "horsies".nodes as item where item.workflow_id = map.child_id offset 0
                ) as item
            ), 0)
        into stored_bytes
        from "horsies".nodes
        where nodes.id = node;
        if stored_bytes > max_bytes then
            return null;
        end if;
    end if;
    inputs := "horsies".node_inputs(node);
    return case when max_bytes is null or octet_length(inputs) <= max_bytes then inputs end;
end
$$;

CREATE FUNCTION horsies.notify_new_tasks() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
begin
    perform pg_notify('horsies_7474d027_new', "horsies".wakeup_payload(ready, priority, min(enqueued_at), queue_name))
    from inserted
    group by queue_name, priority, ready;
    return null;
end
$$;

CREATE FUNCTION horsies.promote_tasks(max_rows integer) RETURNS SETOF text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
    due_id uuid;
    payload text;
begin
    begin
        return query
        with due as materialized (
            select tasks.id
            from "horsies".tasks
            where tasks.status = 'PENDING'
            and not tasks.ready
            and tasks.unknown_since is null
            and tasks.enqueued_at <= statement_timestamp()
            order by tasks.enqueued_at
            limit max_rows
            for update skip locked
        ),
        promoted_tasks as (
            update "horsies".tasks
            set ready = true
            where tasks.id = any(array(select due.id from due))
            returning tasks.queue_name, tasks.priority, tasks.enqueued_at
        ),
        notifications as (
            select "horsies".wakeup_payload(true, task.priority, min(task.enqueued_at), task.queue_name) as payload
            from promoted_tasks as task
            group by task.queue_name, task.priority
        )
        select notifications.payload
        from notifications
        cross join lateral pg_notify('horsies_7474d027_new', notifications.payload);
        return;
    exception when others then
        -- Contention, a server out of resources and missing privileges are not the fault of a row. (A cancelled statement does not get here.)
        if left(sqlstate, 2) in ('08', '26', '40', '42', '53', '55', '57', '58') then
            raise;
        end if;
    end;
    for due_id in
        select tasks.id
        from "horsies".tasks
        where tasks.status = 'PENDING'
        and not tasks.ready
        and tasks.unknown_since is null
        and tasks.enqueued_at <= statement_timestamp()
        order by tasks.enqueued_at
        limit max_rows
        for update skip locked
    loop
        begin
            update "horsies".tasks
            set ready = true
            where tasks.id = due_id
            returning "horsies".wakeup_payload(true, tasks.priority, tasks.enqueued_at, tasks.queue_name) into payload;
            perform pg_notify('horsies_7474d027_new', payload);
            return next payload;
        exception when others then
            if left(sqlstate, 2) in ('08', '26', '40', '42', '53', '55', '57', '58') then
                raise;
            end if;
        end;
    end loop;
end
$$;

CREATE TABLE horsies.tasks (
    id uuid DEFAULT horsies.new_id() NOT NULL,
    task_name text NOT NULL,
    queue_name text DEFAULT 'default'::text NOT NULL,
    priority integer DEFAULT 100 NOT NULL,
    status text DEFAULT 'PENDING'::text NOT NULL,
    ready boolean DEFAULT true NOT NULL,
    args json DEFAULT '{}'::json NOT NULL,
    sent_at timestamp with time zone DEFAULT now() NOT NULL,
    enqueued_at timestamp with time zone DEFAULT now() NOT NULL,
    good_until timestamp with time zone,
    timeout_ms integer,
    retry_delays_ms integer[],
    retry_jitter real DEFAULT 0 NOT NULL,
    retry_for text[],
    failed_attempts json[],
    cancel_requested_at timestamp with time zone,
    progress json,
    attempts integer DEFAULT 0 NOT NULL,
    claim_no integer DEFAULT 0 NOT NULL,
    claimed_by uuid,
    claimed_at timestamp with time zone,
    claimed_in xid8 DEFAULT pg_current_xact_id() NOT NULL,
    lease_until timestamp with time zone,
    started_at timestamp with time zone,
    root_id uuid,
    node_id uuid,
    takes_inputs boolean,
    trace text,
    is_sensitive boolean,
    on_failure text,
    child_deaths integer DEFAULT 0 NOT NULL,
    unknown_since timestamp with time zone,
    refused_by bigint[],
    refusal json,
    CONSTRAINT tasks_are_in_range CHECK (((octet_length(queue_name) <= 1000) AND (enqueued_at >= '1970-01-01 00:00:00+00'::timestamp with time zone) AND (enqueued_at <= '9999-12-31 23:59:59+00'::timestamp with time zone) AND (attempts >= 0) AND (attempts <= 1000000000))),
    CONSTRAINT tasks_jitter_is_a_share CHECK (((retry_jitter >= (0)::double precision) AND (retry_jitter <= (1)::double precision))),
    CONSTRAINT tasks_owner_when_claimed CHECK (((status = 'PENDING'::text) = (claimed_by IS NULL))),
    CONSTRAINT tasks_status_is_live CHECK ((status = ANY (ARRAY['PENDING'::text, 'CLAIMED'::text, 'RUNNING'::text])))
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='20000');

CREATE FUNCTION horsies.unknown_task_names(max_rows integer) RETURNS TABLE(task_name text, is_refused boolean)
    LANGUAGE sql STABLE
    BEGIN ATOMIC
 WITH RECURSIVE name AS (
         ( SELECT tasks.task_name,
             (tasks.refused_by IS NOT NULL) AS is_refused
            FROM horsies.tasks
           WHERE (tasks.unknown_since IS NOT NULL)
           ORDER BY tasks.task_name, (tasks.refused_by IS NOT NULL)
          LIMIT 1)
         UNION ALL
          SELECT next.task_name,
             next.is_refused
            FROM (name name_1
              CROSS JOIN LATERAL ( SELECT tasks.task_name,
                     (tasks.refused_by IS NOT NULL) AS is_refused
                    FROM horsies.tasks
                   WHERE ((tasks.unknown_since IS NOT NULL) AND (ROW(tasks.task_name, (tasks.refused_by IS NOT NULL)) > ROW(name_1.task_name, name_1.is_refused)))
                   ORDER BY tasks.task_name, (tasks.refused_by IS NOT NULL)
                  LIMIT 1) next)
         )
  SELECT name.task_name,
     name.is_refused
    FROM name
  LIMIT unknown_task_names.max_rows;
END;

CREATE FUNCTION horsies.wakeup_payload(ready boolean, priority integer, enqueued_at timestamp with time zone, queue_name text) RETURNS text
    LANGUAGE sql
    RETURN CASE WHEN ready THEN ((((priority || ' '::text) || ((EXTRACT(epoch FROM enqueued_at) * (1000000)::numeric))::bigint) || ' '::text) || queue_name) ELSE ('later '::text || ((EXTRACT(epoch FROM (enqueued_at - clock_timestamp())) * (1000000)::numeric))::bigint) END;

CREATE TABLE horsies.finished (
    id uuid NOT NULL,
    task_name text NOT NULL,
    queue_name text NOT NULL,
    priority integer NOT NULL,
    status text NOT NULL,
    args json NOT NULL,
    result json,
    error_code text,
    error json,
    sent_at timestamp with time zone NOT NULL,
    enqueued_at timestamp with time zone NOT NULL,
    good_until timestamp with time zone,
    timeout_ms integer,
    retry_delays_ms integer[],
    retry_jitter real DEFAULT 0 NOT NULL,
    retry_for text[],
    failed_attempts json[],
    progress json,
    attempts integer NOT NULL,
    claim_no integer NOT NULL,
    claimed_by uuid,
    claimed_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    root_id uuid,
    node_id uuid,
    trace text,
    is_sensitive boolean,
    on_failure text,
    child_pid integer,
    CONSTRAINT finished_status_is_final CHECK ((status = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'EXPIRED'::text])))
)
PARTITION BY RANGE (finished_at);

CREATE VIEW horsies.all_tasks AS
 SELECT tasks.id,
    tasks.task_name,
    tasks.queue_name,
    tasks.priority,
    tasks.status,
    tasks.args,
    NULL::json AS result,
    NULL::text AS error_code,
    NULL::json AS error,
    tasks.sent_at,
    tasks.enqueued_at,
    tasks.good_until,
    tasks.timeout_ms,
    tasks.retry_delays_ms,
    tasks.retry_jitter,
    tasks.retry_for,
    tasks.failed_attempts,
    tasks.progress,
    tasks.attempts,
    tasks.claim_no,
    tasks.claimed_by,
    tasks.claimed_at,
    tasks.started_at,
    NULL::timestamp with time zone AS finished_at,
    tasks.root_id,
    tasks.node_id,
    tasks.trace,
    tasks.is_sensitive,
    tasks.on_failure,
    NULL::integer AS child_pid
   FROM horsies.tasks
UNION ALL
 SELECT finished.id,
    finished.task_name,
    finished.queue_name,
    finished.priority,
    finished.status,
    finished.args,
    finished.result,
    finished.error_code,
    finished.error,
    finished.sent_at,
    finished.enqueued_at,
    finished.good_until,
    finished.timeout_ms,
    finished.retry_delays_ms,
    finished.retry_jitter,
    finished.retry_for,
    finished.failed_attempts,
    finished.progress,
    finished.attempts,
    finished.claim_no,
    finished.claimed_by,
    finished.claimed_at,
    finished.started_at,
    finished.finished_at,
    finished.root_id,
    finished.node_id,
    finished.trace,
    finished.is_sensitive,
    finished.on_failure,
    finished.child_pid
   FROM horsies.finished;

CREATE TABLE horsies.attempt_logs (
    task_id uuid NOT NULL,
    claim_no integer NOT NULL,
    attempt integer NOT NULL,
    records json NOT NULL,
    left_out integer DEFAULT 0 NOT NULL,
    stored_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE horsies.audit (
    id uuid DEFAULT horsies.new_id() NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    count integer
);

CREATE TABLE horsies.dead_workers (
    id uuid NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    app text,
    library_version text NOT NULL,
    queues text[] NOT NULL,
    started_at timestamp with time zone NOT NULL,
    last_heartbeat_at timestamp with time zone NOT NULL,
    found_at timestamp with time zone DEFAULT now() NOT NULL,
    tasks_held integer NOT NULL,
    task_ids uuid[] NOT NULL
);

CREATE TABLE horsies.error_minutes (
    minute timestamp with time zone NOT NULL,
    task_name text NOT NULL,
    error_code text NOT NULL,
    message text NOT NULL,
    count integer NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    example_id uuid NOT NULL
);

CREATE TABLE horsies.finished_default (
    id uuid CONSTRAINT finished_id_not_null NOT NULL,
    task_name text CONSTRAINT finished_task_name_not_null NOT NULL,
    queue_name text CONSTRAINT finished_queue_name_not_null NOT NULL,
    priority integer CONSTRAINT finished_priority_not_null NOT NULL,
    status text CONSTRAINT finished_status_not_null NOT NULL,
    args json CONSTRAINT finished_args_not_null NOT NULL,
    result json,
    error_code text,
    error json,
    sent_at timestamp with time zone CONSTRAINT finished_sent_at_not_null NOT NULL,
    enqueued_at timestamp with time zone CONSTRAINT finished_enqueued_at_not_null NOT NULL,
    good_until timestamp with time zone,
    timeout_ms integer,
    retry_delays_ms integer[],
    retry_jitter real DEFAULT 0 CONSTRAINT finished_retry_jitter_not_null NOT NULL,
    retry_for text[],
    failed_attempts json[],
    progress json,
    attempts integer CONSTRAINT finished_attempts_not_null NOT NULL,
    claim_no integer CONSTRAINT finished_claim_no_not_null NOT NULL,
    claimed_by uuid,
    claimed_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone CONSTRAINT finished_finished_at_not_null NOT NULL,
    root_id uuid,
    node_id uuid,
    trace text,
    is_sensitive boolean,
    on_failure text,
    child_pid integer,
    CONSTRAINT finished_status_is_final CHECK ((status = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text, 'EXPIRED'::text])))
);

CREATE TABLE horsies.keys (
    task_name text NOT NULL,
    key text NOT NULL,
    task_id uuid NOT NULL,
    send_id uuid NOT NULL,
    args_hash text NOT NULL,
    key_window interval NOT NULL,
    ended_at timestamp with time zone,
    previous_task_ids uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    CONSTRAINT keys_ended_at_is_finite CHECK (isfinite(ended_at)),
    CONSTRAINT keys_previous_task_ids_are_a_list CHECK ((array_ndims(previous_task_ids) = 1)),
    CONSTRAINT keys_window_is_bounded CHECK (((key_window >= '00:00:00'::interval) AND (key_window <= '100 years'::interval)))
);

CREATE TABLE horsies.maintenance_lease (
    singleton boolean DEFAULT true NOT NULL,
    holder uuid NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT maintenance_lease_is_finite CHECK (isfinite(expires_at)),
    CONSTRAINT maintenance_lease_is_one_row CHECK (singleton)
);

CREATE TABLE horsies.minutes_until (
    singleton boolean DEFAULT true NOT NULL,
    minute timestamp with time zone NOT NULL,
    CONSTRAINT minutes_until_is_one_row CHECK (singleton)
);

CREATE TABLE horsies.nodes (
    id uuid NOT NULL,
    root_id uuid NOT NULL,
    workflow_id uuid NOT NULL,
    index integer NOT NULL,
    node_id text NOT NULL,
    kind text NOT NULL,
    status text DEFAULT 'PENDING'::text NOT NULL,
    propagated boolean DEFAULT false NOT NULL,
    waits_for integer[] NOT NULL,
    dependents uuid[] NOT NULL,
    needed integer NOT NULL,
    allow_failed_deps boolean NOT NULL,
    resolved integer DEFAULT 0 NOT NULL,
    succeeded integer DEFAULT 0 NOT NULL,
    task_name text,
    queue_name text,
    priority integer,
    timeout_ms integer,
    retry_delays_ms integer[],
    retry_jitter real,
    retry_for text[],
    good_until timestamp with time zone,
    args json,
    refs json,
    inputs uuid[],
    takes_inputs boolean DEFAULT false NOT NULL,
    wants_meta boolean DEFAULT false NOT NULL,
    source uuid,
    item json,
    max_parallel integer,
    child_id uuid,
    made_by text,
    makes_list boolean DEFAULT false NOT NULL,
    task_id uuid,
    result json,
    error json,
    finished_at timestamp with time zone,
    trace text,
    is_sensitive boolean,
    on_failure text,
    awaits integer[],
    awaits_left integer DEFAULT 0 NOT NULL,
    awaited_by uuid[],
    max_failures integer,
    min_item_success integer,
    results_of uuid[],
    CONSTRAINT nodes_status_is_known CHECK ((status = ANY (ARRAY['PENDING'::text, 'READY'::text, 'ENQUEUED'::text, 'RUNNING'::text, 'COMPLETED'::text, 'FAILED'::text, 'SKIPPED'::text])))
)
WITH (fillfactor='70');

CREATE TABLE horsies.queue_minutes (
    minute timestamp with time zone NOT NULL,
    queue_name text NOT NULL,
    completed integer NOT NULL,
    failed integer NOT NULL,
    cancelled integer NOT NULL,
    expired integer NOT NULL,
    retried integer NOT NULL,
    waited integer[] NOT NULL,
    ran integer[] NOT NULL,
    CONSTRAINT queue_minutes_histograms_are_complete CHECK (((cardinality(waited) = 27) AND (cardinality(ran) = 27)))
);

CREATE TABLE horsies.queues (
    name text NOT NULL,
    paused_at timestamp with time zone,
    max_concurrency integer,
    CONSTRAINT queues_cap_is_positive CHECK ((max_concurrency > 0))
);

CREATE TABLE horsies.schedule_runs (
    id bigint NOT NULL,
    schedule_name text NOT NULL,
    outcome text NOT NULL,
    slot_at timestamp with time zone,
    last_slot_at timestamp with time zone,
    task_id uuid,
    decided_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT schedule_runs_outcome_is_known CHECK ((outcome = ANY (ARRAY['ENQUEUED'::text, 'SKIPPED'::text, 'MISSED'::text, 'BY_HAND'::text])))
);

ALTER TABLE horsies.schedule_runs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME horsies.schedule_runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE horsies.schedules (
    name text NOT NULL,
    task_name text NOT NULL,
    queue_name text NOT NULL,
    priority integer NOT NULL,
    args json NOT NULL,
    timeout_ms integer,
    retry_delays_ms integer[],
    retry_jitter real DEFAULT 0 NOT NULL,
    retry_for text[],
    is_sensitive boolean,
    on_failure text,
    pattern jsonb NOT NULL,
    timezone text NOT NULL,
    catch_up_missed boolean NOT NULL,
    max_catch_up_runs integer NOT NULL,
    jitter_ms integer NOT NULL,
    overlap text NOT NULL,
    enabled boolean NOT NULL,
    declared boolean DEFAULT true NOT NULL,
    is_dynamic boolean DEFAULT false NOT NULL,
    paused_at timestamp with time zone,
    next_slot_at timestamp with time zone,
    last_slot_at timestamp with time zone,
    last_task_id uuid,
    changed_at timestamp with time zone DEFAULT now() NOT NULL,
    app text,
    CONSTRAINT schedules_catch_up_is_bounded CHECK (((max_catch_up_runs >= 0) AND (max_catch_up_runs <= 10000))),
    CONSTRAINT schedules_delay_is_bounded CHECK (((jitter_ms >= 0) AND (jitter_ms <= 86400000))),
    CONSTRAINT schedules_jitter_is_a_share CHECK (((retry_jitter >= (0)::double precision) AND (retry_jitter <= (1)::double precision))),
    CONSTRAINT schedules_queue_name_is_short CHECK ((octet_length(queue_name) <= 1000)),
    CONSTRAINT schedules_slot_is_in_range CHECK (((next_slot_at >= '1970-01-01 00:00:00+00'::timestamp with time zone) AND (next_slot_at <= '9999-12-31 23:59:59+00'::timestamp with time zone)))
)
WITH (fillfactor='70');

CREATE TABLE horsies.schema_versions (
    version integer NOT NULL,
    name text NOT NULL,
    compatible_since integer NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);

CREATE TABLE horsies.task_minutes (
    minute timestamp with time zone NOT NULL,
    queue_name text NOT NULL,
    task_name text NOT NULL,
    completed integer NOT NULL,
    failed integer NOT NULL,
    cancelled integer NOT NULL,
    expired integer NOT NULL,
    retried integer NOT NULL,
    waited integer[] NOT NULL,
    ran integer[] NOT NULL,
    CONSTRAINT task_minutes_histograms_are_complete CHECK (((cardinality(waited) = 27) AND (cardinality(ran) = 27)))
);

CREATE TABLE horsies.worker_states (
    id bigint NOT NULL,
    worker_id uuid NOT NULL,
    snapshot_at timestamp with time zone DEFAULT now() NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    processes integer NOT NULL,
    concurrency integer NOT NULL,
    queues text[] NOT NULL,
    tasks_running integer NOT NULL,
    tasks_claimed integer NOT NULL,
    memory_usage_mb real NOT NULL,
    children_memory_mb real NOT NULL,
    cpu_percent real NOT NULL,
    children_cpu_percent real NOT NULL,
    recycling_share real,
    worker_started_at timestamp with time zone NOT NULL
);

ALTER TABLE horsies.worker_states ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME horsies.worker_states_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE horsies.workers (
    id uuid NOT NULL,
    hostname text NOT NULL,
    pid integer NOT NULL,
    processes integer NOT NULL,
    concurrency integer NOT NULL,
    queues text[] NOT NULL,
    library_version text NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    heartbeat_at timestamp with time zone DEFAULT now() NOT NULL,
    holds_lock boolean DEFAULT false NOT NULL,
    task_names text[],
    signatures bigint[],
    app text,
    leave_requested_at timestamp with time zone,
    children json,
    CONSTRAINT workers_queues_are_a_list CHECK ((array_ndims(queues) = 1)),
    CONSTRAINT workers_queues_are_not_null CHECK (((cardinality(queues) = 0) OR (array_position(queues, NULL::text) IS NULL))),
    CONSTRAINT workers_tasks_are_lists CHECK (((array_ndims(task_names) = 1) AND (array_ndims(signatures) = 1))),
    CONSTRAINT workers_times_are_in_range CHECK ((isfinite(started_at) AND (heartbeat_at >= '1970-01-01 00:00:00+00'::timestamp with time zone) AND (heartbeat_at <= '9999-12-31 23:59:59+00'::timestamp with time zone)))
);

CREATE TABLE horsies.workflows (
    id uuid NOT NULL,
    root_id uuid NOT NULL,
    ancestors uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    parent_node uuid,
    name text NOT NULL,
    definition_key text,
    status text DEFAULT 'PENDING'::text NOT NULL,
    on_error text DEFAULT 'fail'::text NOT NULL,
    output integer,
    success_cases json,
    optional integer[] DEFAULT '{}'::integer[] NOT NULL,
    is_map boolean DEFAULT false NOT NULL,
    max_parallel integer,
    in_flight integer DEFAULT 0 NOT NULL,
    unresolved integer NOT NULL,
    error json,
    time_limit_ms bigint,
    deadline timestamp with time zone,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    CONSTRAINT workflows_status_is_known CHECK ((status = ANY (ARRAY['PENDING'::text, 'RUNNING'::text, 'PAUSED'::text, 'COMPLETED'::text, 'FAILED'::text, 'CANCELLED'::text])))
)
WITH (fillfactor='70');

ALTER TABLE ONLY horsies.finished ATTACH PARTITION horsies.finished_default DEFAULT;

ALTER TABLE ONLY horsies.attempt_logs
    ADD CONSTRAINT attempt_logs_pkey PRIMARY KEY (task_id, claim_no);

ALTER TABLE ONLY horsies.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY horsies.dead_workers
    ADD CONSTRAINT dead_workers_pkey PRIMARY KEY (id);

ALTER TABLE ONLY horsies.error_minutes
    ADD CONSTRAINT error_minutes_pkey PRIMARY KEY (minute, task_name, error_code, message);

ALTER TABLE ONLY horsies.keys
    ADD CONSTRAINT keys_pkey PRIMARY KEY (task_name, key);

ALTER TABLE ONLY horsies.maintenance_lease
    ADD CONSTRAINT maintenance_lease_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY horsies.minutes_until
    ADD CONSTRAINT minutes_until_pkey PRIMARY KEY (singleton);

ALTER TABLE ONLY horsies.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY horsies.queue_minutes
    ADD CONSTRAINT queue_minutes_pkey PRIMARY KEY (minute, queue_name);

ALTER TABLE ONLY horsies.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (name);

ALTER TABLE ONLY horsies.schedule_runs
    ADD CONSTRAINT schedule_runs_pkey PRIMARY KEY (id);

ALTER TABLE ONLY horsies.schedules
    ADD CONSTRAINT schedules_pkey PRIMARY KEY (name);

ALTER TABLE ONLY horsies.schema_versions
    ADD CONSTRAINT schema_versions_pkey PRIMARY KEY (version);

ALTER TABLE ONLY horsies.task_minutes
    ADD CONSTRAINT task_minutes_pkey PRIMARY KEY (minute, queue_name, task_name);

ALTER TABLE ONLY horsies.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (id);

ALTER TABLE ONLY horsies.worker_states
    ADD CONSTRAINT worker_states_pkey PRIMARY KEY (id);

ALTER TABLE ONLY horsies.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);

ALTER TABLE ONLY horsies.workflows
    ADD CONSTRAINT workflows_pkey PRIMARY KEY (id);

CREATE INDEX attempt_logs_stored_idx ON horsies.attempt_logs USING btree (stored_at);

CREATE INDEX finished_at_idx ON ONLY horsies.finished USING btree ((finished_at AT TIME ZONE 'UTC'::text));

CREATE INDEX finished_id_idx ON ONLY horsies.finished USING btree (id);

CREATE INDEX finished_default_id_idx ON horsies.finished_default USING btree (id);

CREATE INDEX finished_unsuccessful_idx ON ONLY horsies.finished USING btree (id) WHERE (status <> 'COMPLETED'::text);

CREATE INDEX finished_default_id_idx1 ON horsies.finished_default USING btree (id) WHERE (status <> 'COMPLETED'::text);

CREATE INDEX finished_failed_idx ON ONLY horsies.finished USING btree ((finished_at AT TIME ZONE 'UTC'::text), id) WHERE (status = 'FAILED'::text);

CREATE INDEX finished_default_timezone_id_idx ON horsies.finished_default USING btree ((finished_at AT TIME ZONE 'UTC'::text), id) WHERE (status = 'FAILED'::text);

CREATE INDEX finished_default_timezone_idx ON horsies.finished_default USING btree ((finished_at AT TIME ZONE 'UTC'::text));

CREATE INDEX nodes_ready_idx ON horsies.nodes USING btree (workflow_id, index) WHERE ((status = 'READY'::text) AND (kind = 'task'::text));

CREATE INDEX nodes_ready_runs_idx ON horsies.nodes USING btree (root_id) WHERE ((status = 'READY'::text) AND (kind <> 'task'::text));

CREATE INDEX nodes_sensitive_idx ON horsies.nodes USING btree (root_id) WHERE ((status = 'FAILED'::text) AND is_sensitive);

CREATE INDEX nodes_unpropagated_idx ON horsies.nodes USING btree (root_id) WHERE ((NOT propagated) AND (status = ANY (ARRAY['COMPLETED'::text, 'FAILED'::text, 'SKIPPED'::text])));

CREATE UNIQUE INDEX nodes_workflow_idx ON horsies.nodes USING btree (workflow_id, index);

CREATE INDEX schedule_runs_decided_idx ON horsies.schedule_runs USING btree (decided_at);

CREATE INDEX schedule_runs_schedule_idx ON horsies.schedule_runs USING btree (schedule_name, id);

CREATE INDEX schedule_runs_task_idx ON horsies.schedule_runs USING btree (task_id);

CREATE INDEX schedule_runs_tasks_idx ON horsies.schedule_runs USING btree (schedule_name, task_id) WHERE (task_id IS NOT NULL);

CREATE INDEX schedules_due_idx ON horsies.schedules USING btree (next_slot_at) WHERE (paused_at IS NULL);

CREATE INDEX tasks_cancel_idx ON horsies.tasks USING btree (id) WHERE (cancel_requested_at IS NOT NULL);

CREATE INDEX tasks_claim_idx ON horsies.tasks USING btree (queue_name, priority, enqueued_at, id) WHERE ((status = 'PENDING'::text) AND ready);

CREATE INDEX tasks_due_idx ON horsies.tasks USING btree (enqueued_at) WHERE ((status = 'PENDING'::text) AND (NOT ready) AND (unknown_since IS NULL));

CREATE INDEX tasks_expiry_idx ON horsies.tasks USING btree (good_until) WHERE ((good_until IS NOT NULL) AND (status <> 'RUNNING'::text));

CREATE INDEX tasks_in_flight_idx ON horsies.tasks USING btree (claimed_in, queue_name, status, claimed_by) WHERE (status <> 'PENDING'::text);

CREATE INDEX tasks_tried_idx ON horsies.tasks USING btree (id) WHERE ((failed_attempts IS NOT NULL) OR (child_deaths > 0));

CREATE INDEX tasks_unknown_idx ON horsies.tasks USING btree (task_name, ((refused_by IS NOT NULL)), unknown_since) WHERE (unknown_since IS NOT NULL);

CREATE INDEX worker_states_latest_idx ON horsies.worker_states USING btree (worker_id, snapshot_at DESC);

CREATE INDEX workflows_created_idx ON horsies.workflows USING btree (created_at, id) WHERE (parent_node IS NULL);

CREATE INDEX workflows_deadline_idx ON horsies.workflows USING btree (deadline) WHERE ((deadline IS NOT NULL) AND (status = ANY (ARRAY['RUNNING'::text, 'PAUSED'::text])));

CREATE INDEX workflows_ended_idx ON horsies.workflows USING btree (finished_at) WHERE ((id = root_id) AND (finished_at IS NOT NULL));

CREATE INDEX workflows_live_idx ON horsies.workflows USING btree (root_id, id) WHERE (status = ANY (ARRAY['RUNNING'::text, 'PAUSED'::text]));

CREATE INDEX workflows_paused_idx ON horsies.workflows USING btree (id) WHERE (status = 'PAUSED'::text);

CREATE INDEX workflows_root_idx ON horsies.workflows USING btree (root_id);

ALTER INDEX horsies.finished_id_idx ATTACH PARTITION horsies.finished_default_id_idx;

ALTER INDEX horsies.finished_unsuccessful_idx ATTACH PARTITION horsies.finished_default_id_idx1;

ALTER INDEX horsies.finished_failed_idx ATTACH PARTITION horsies.finished_default_timezone_id_idx;

ALTER INDEX horsies.finished_at_idx ATTACH PARTITION horsies.finished_default_timezone_idx;

CREATE TRIGGER finished_enqueue_on_failure AFTER INSERT ON horsies.finished FOR EACH ROW WHEN (((new.status = 'FAILED'::text) AND (new.on_failure IS NOT NULL))) EXECUTE FUNCTION horsies.enqueue_on_failure();

CREATE TRIGGER tasks_notify_new AFTER INSERT ON horsies.tasks REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT WHEN ((current_setting('horsies.notify'::text, true) IS DISTINCT FROM 'after_commit'::text)) EXECUTE FUNCTION horsies.notify_new_tasks();
