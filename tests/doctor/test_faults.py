"""For each fault, one test that creates it: the doctor finds that one, and nothing else."""

import re
import time
from functools import partial
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.migrate import library_version
from horsies.doctor.findings import FindingCode, Severity
from horsies.model.config import CustomQueueConfig, PostgresConfig
from horsies.model.graph import Graph, OnError
from horsies.model.schedule import IntervalSchedule
from horsies.schedules.control import create_schedule, run_schedule
from horsies.tasks.finish import finish_tasks
from horsies.tasks.ids import new_task_id
from horsies.workflows.control import pause
from tests.cli.test_commands import GONE
from tests.doctor.conftest import Doctor, add_worker
from tests.fixtures.journey import ME, OTHER, claim, column, do, failed, row
from tests.fixtures.pgbouncer import StartPgBouncer
from tests.fixtures.roles import PlainUser
from tests.fixtures.server import DatabaseServer, database_with
from tests.schedules.steps import declare, store
from tests.workflows.steps import node, run_all_tasks, start_run

TASK: LiteralString = "insert into horsies.tasks (task_name, "
NO_PAPER = '{"error_code": "BROKEN", "message": "no paper"}'
ENDED: LiteralString = (
    "insert into horsies.finished (id, task_name, queue_name, priority, status, args, sent_at, enqueued_at, attempts, claim_no, "
    "finished_at) values (gen_random_uuid(), 'add', 'default', 100, 'COMPLETED', '{}', now(), now(), 1, 1, "
)


def test_every_code_has_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [code.name for code in FindingCode if not re.search(rf"Code\.{code.name}\b", tests)] == []


def test_every_fix_is_a_sentence() -> None:
    assert all(code.value.fix.endswith(".") for code in FindingCode)


def test_a_healthy_system_has_no_findings(healthy: psycopg.Connection, doctor: Doctor) -> None:
    assert doctor().codes == set()


# -- faults that a single SQL statement creates

BY_SQL: dict[str, tuple[FindingCode, LiteralString]] = {
    "a dropped trigger": (FindingCode.NOTIFY_TRIGGER_OFF, "drop trigger tasks_notify_new on horsies.tasks"),
    "a disabled trigger": (FindingCode.NOTIFY_TRIGGER_OFF, "alter table horsies.tasks disable trigger tasks_notify_new"),
    "a newer schema that is compatible": (
        FindingCode.SCHEMA_AHEAD,
        "insert into horsies.schema_versions (version, name, compatible_since) values (901, 'later', 1)",
    ),
    "a newer schema": (
        FindingCode.SCHEMA_NEWER,
        "insert into horsies.schema_versions (version, name, compatible_since) values (901, 'later', 900)",
    ),
    "a function that depends on its caller's path": (
        FindingCode.SEARCH_PATH_UNPINNED,
        "alter function horsies.notify_new_tasks() reset search_path",
    ),
    "a function with a path in which others may create objects": (
        FindingCode.SEARCH_PATH_UNPINNED,
        "alter function horsies.notify_new_tasks() set search_path = pg_catalog, public",
    ),
    "a view that uses a function of another schema": (
        FindingCode.SEARCH_PATH_UNPINNED,
        (
            "do $$ begin create function public.mine() returns integer language sql return 1; "
            "create view horsies.mine as select public.mine(); grant select on horsies.mine to public; end $$"
        ),
    ),
    "a schema in which every role may create objects": (FindingCode.SCHEMA_OPEN, "grant create on schema horsies to public"),
    "a public schema in which every role may create objects": (FindingCode.OPEN_TO_PUBLIC, "grant create on schema public to public"),
    "a session with the replica role": (
        FindingCode.NOTIFY_TRIGGER_OFF,
        "do $$ begin execute format('alter database %I set session_replication_role = replica', current_database()); end $$",
    ),
    "a row without a partition for its day": (FindingCode.DEFAULT_PARTITION_USED, ENDED + "'2000-01-01')"),
    "a table without autovacuum": (FindingCode.AUTOVACUUM_OFF, "alter table horsies.nodes set (autovacuum_enabled = off)"),
    "a heartbeat in the future": (
        FindingCode.HEARTBEAT_AHEAD,
        "update horsies.workers set heartbeat_at = now() + interval '1 day'",
    ),
    "an id from a clock that is ahead": (
        FindingCode.PRODUCER_CLOCK_SKEW,
        TASK + "sent_at) values ('add', now() - interval '1 hour')",
    ),
    "a running task of a worker that is gone": (
        FindingCode.TASKS_ORPHANED,
        TASK + "status, claimed_by, claimed_at, started_at) "
        "values ('add', 'RUNNING', gen_random_uuid(), now() - interval '1 hour', now() - interval '1 hour')",
    ),
    "a lease that expired long ago": (
        FindingCode.LEASES_EXPIRED,
        TASK + "status, claimed_by, claimed_at, lease_until) "
        "select 'add', 'CLAIMED', id, now() - interval '1 hour', now() - interval '1 hour' from horsies.workers",
    ),
    "a task past its timeout": (
        FindingCode.TASKS_OVERTIME,
        TASK + "status, claimed_by, claimed_at, started_at, timeout_ms) "
        "select 'add', 'RUNNING', id, now() - interval '1 hour', now() - interval '1 hour', 1000 from horsies.workers",
    ),
    "a task that no worker knows": (
        FindingCode.TASKS_UNKNOWN,
        TASK + "ready, unknown_since) values ('unknown', false, now())",
    ),
    "arguments that no worker can read": (
        FindingCode.TASKS_CHANGED,
        TASK + "ready, unknown_since, refused_by) values ('unknown', false, now(), '{1}')",
    ),
    "a due task that is not ready": (
        FindingCode.PROMOTION_LATE,
        TASK + "ready, enqueued_at) values ('add', false, now() - interval '1 hour')",
    ),
    "an expired task that was not ended": (
        FindingCode.EXPIRY_LATE,
        TASK + "good_until) values ('add', now() - interval '1 hour')",
    ),
    "a running task of a worker that is gone, without a claim time": (
        FindingCode.TASKS_ORPHANED,
        TASK + "id, status, claimed_by, sent_at) values ('add', gen_random_uuid(), 'RUNNING', gen_random_uuid(), now() - interval '1 hour')",
    ),
    "a cancellation that is ignored": (
        FindingCode.CANCEL_IGNORED,
        TASK + "status, claimed_by, claimed_at, started_at, cancel_requested_at) "
        "select 'add', 'RUNNING', id, now(), now(), now() - interval '1 hour' from horsies.workers",
    ),
    "a task that waits for a long time": (
        FindingCode.WAITING_LONG,
        TASK + "enqueued_at) values ('add', now() - interval '1 hour')",
    ),
    "a queue that lags": (FindingCode.LAGGING, TASK + "enqueued_at) values ('add', now() - interval '2 minutes')"),
    "a queue behind a task that hangs": (
        FindingCode.QUEUE_BLOCKED,
        "with hung as ("
        + TASK
        + "status, claimed_by, claimed_at, started_at) select 'hang', 'RUNNING', id, now(), now() - interval '40 seconds' from horsies.workers) "
        + TASK
        + "enqueued_at) values ('add', now() - interval '20 seconds')",
    ),
    "a task that runs without a time limit": (
        FindingCode.TASK_RUNS_LONG,
        TASK + "status, claimed_by, claimed_at, started_at) select 'add', 'RUNNING', id, now(), now() - interval '1 hour' from horsies.workers",
    ),
    "a task whose children die": (FindingCode.CHILDREN_CRASHING, TASK + "child_deaths, attempts) values ('add', 3, 1)"),
    "a worker that died": (
        FindingCode.DEAD_WORKERS,
        (
            "insert into horsies.dead_workers (id, hostname, pid, started_at, last_heartbeat_at, found_at, tasks_held, task_ids, library_version, queues) "
            "values (gen_random_uuid(), 'there', 5, now() - interval '1 hour', now() - interval '2 minutes', now() - interval '1 minute', 2, '{}', '0.1.0', '{}')"
        ),
    ),
    "a schedule that no scheduler serves": (
        FindingCode.SCHEDULES_UNSERVED,
        (
            "insert into horsies.schedules (name, task_name, queue_name, priority, args, pattern, timezone, catch_up_missed, "
            "max_catch_up_runs, jitter_ms, overlap, enabled, next_slot_at, app) values ('nightly', 'add', 'default', 100, '{}', "
            "'{}', 'UTC', false, 1, 0, 'allow', true, now() - interval '1 hour', 'shop')"
        ),
    ),
    "a schedule without an app": (
        FindingCode.SCHEDULES_WITHOUT_APP,
        (
            "insert into horsies.schedules (name, task_name, queue_name, priority, args, pattern, timezone, catch_up_missed, "
            "max_catch_up_runs, jitter_ms, overlap, enabled, next_slot_at) values ('nightly', 'add', 'default', 100, '{}', "
            "'{}', 'UTC', false, 1, 0, 'allow', true, now() + interval '1 hour')"
        ),
    ),
    "a queue that no worker serves": (
        FindingCode.QUEUE_UNSERVED,
        TASK + "queue_name, enqueued_at) values ('add', 'mial', now() - interval '1 hour')",
    ),
    "a paused queue with tasks": (
        FindingCode.QUEUE_PAUSED,
        "with paused as (insert into horsies.queues (name, paused_at) values ('default', now())) "
        + TASK
        + "enqueued_at) values ('add', now() - interval '1 hour')",
    ),
    "a maintenance lease that expired": (FindingCode.LEADER_MISSING, "update horsies.maintenance_lease set expires_at = now() - interval '1 hour'"),
    "no maintenance leader": (FindingCode.LEADER_MISSING, "delete from horsies.maintenance_lease"),
    "a renamed column": (FindingCode.CHECK_FAILED, "alter table horsies.maintenance_lease rename expires_at to til"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BY_SQL)
def test_only_the_fault_is_found(healthy: psycopg.Connection, doctor: Doctor, fault: str) -> None:
    code, statement = BY_SQL[fault]
    healthy.execute(statement)
    assert doctor().codes == {code}


def test_recent_tasks_are_not_a_fault(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute(TASK + "queue_name) values ('add', 'mial')")
    healthy.execute(TASK + "ready, enqueued_at) values ('add', false, now() + interval '1 hour')")
    healthy.execute(
        TASK + "status, claimed_by, claimed_at, started_at) values ('add', 'RUNNING', gen_random_uuid(), now(), now())"
    )
    assert doctor().codes == set()


# -- the database itself


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_store_every_text(server: DatabaseServer, doctor: Doctor, encoding: str) -> None:
    with database_with(server, encoding) as url:
        assert doctor(url).codes == {FindingCode.ENCODING_UNSUITABLE}


def test_an_unreachable_database(doctor: Doctor) -> None:
    found = doctor(GONE)
    assert found.codes == {FindingCode.DATABASE_UNREACHABLE}
    assert [check.name for check in found.report.checks] == ["database"]
    assert "my-secret" not in found.report.findings[0].seen


def test_a_database_without_the_schema_is_checked_as_far_as_possible(empty_database: str, doctor: Doctor) -> None:
    found = doctor(empty_database)
    assert found.codes == {FindingCode.SCHEMA_MISSING}
    assert {check.name: check.findings for check in found.report.checks}["stuck tasks"] is None


def test_an_older_schema_is_checked_as_far_as_possible(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute("update horsies.schema_versions set version = -version")
    healthy.execute("drop table horsies.maintenance_lease")  # as if it came with a later version
    found = doctor()
    assert found.codes == {FindingCode.SCHEMA_OLDER}
    assert found.data(FindingCode.SCHEMA_OLDER)["library_version"] == library_version()
    by_name = {check.name: check.findings for check in found.report.checks}
    assert (by_name["workers"], by_name["stuck tasks"]) == (None, [])


def test_a_check_that_waits_for_a_lock_times_out_and_the_others_run(
    healthy: psycopg.Connection, database: str, doctor: Doctor
) -> None:
    with psycopg.connect(database) as holder:
        holder.execute("lock table horsies.tasks in access exclusive mode")
        found = doctor(check_timeout_s=0.1)
    assert found.codes == {FindingCode.CHECK_TIMED_OUT}
    names = {check.name for check in found.report.checks if check.severity is Severity.OK}
    assert {"workers", "partitions", "caps"} <= names
    assert "stuck tasks" not in names


def test_a_server_that_is_too_old(healthy: psycopg.Connection, doctor: Doctor) -> None:
    assert doctor(oldest_postgres=99).codes == {FindingCode.POSTGRES_TOO_OLD}


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("default_transaction_read_only = on", FindingCode.SERVER_READ_ONLY),
        ("synchronous_commit = off", FindingCode.SYNCHRONOUS_COMMIT_OFF),
    ],
)
def test_a_setting_of_the_database(
    healthy: psycopg.Connection, doctor: Doctor, setting: str, code: FindingCode
) -> None:
    healthy.execute(f'alter database "{healthy.info.dbname}" set {setting}'.encode())
    assert doctor().codes == {code}


def test_a_server_without_fsync(healthy: psycopg.Connection, doctor: Doctor) -> None:
    is_off = row(healthy, "select current_setting('fsync') = 'off'")[0]
    assert is_off is any(finding.code is FindingCode.FSYNC_OFF for finding in doctor().report.findings)


def test_few_free_connections(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute(f'alter database "{healthy.info.dbname}" connection limit 5'.encode())
    found = doctor()
    assert found.codes == {FindingCode.CONNECTIONS_SHORT}
    assert found.data(FindingCode.CONNECTIONS_SHORT)["of"] == "the database"


def test_missing_partitions(healthy: psycopg.Connection, doctor: Doctor) -> None:
    (tomorrow,) = row(healthy, "select to_char((now() at time zone 'UTC')::date + 1, 'YYYYMMDD')")
    healthy.execute(f"drop table horsies.finished_{tomorrow}".encode())
    found = doctor()
    assert found.codes == {FindingCode.PARTITIONS_MISSING}
    assert found.data(FindingCode.PARTITIONS_MISSING) == {"days": 1}


# -- privileges


def grant(sql: psycopg.Connection, user: PlainUser, *privileges: str) -> None:
    sql.execute(f"grant usage on schema horsies to {user.name}".encode())
    sql.execute(f"grant {', '.join(privileges)} on all tables in schema horsies to {user.name}".encode())


def test_a_user_with_the_documented_grants_lacks_only_the_privileges_of_the_owner(
    healthy: psycopg.Connection, database: str, plain_user: PlainUser, doctor: Doctor
) -> None:
    grant(healthy, plain_user, "select", "insert", "update", "delete")
    assert doctor(plain_user.url(database)).codes == {
        FindingCode.PARTITION_PRIVILEGE_MISSING,
        FindingCode.SESSIONS_HIDDEN,
    }
    healthy.execute(f"grant pg_monitor to {plain_user.name}".encode())
    assert doctor(plain_user.url(database)).codes == {FindingCode.PARTITION_PRIVILEGE_MISSING}


def test_each_missing_privilege_is_named(
    healthy: psycopg.Connection, database: str, plain_user: PlainUser, doctor: Doctor
) -> None:
    grant(healthy, plain_user, "select", "insert", "update", "delete")
    healthy.execute(f"revoke insert, delete on horsies.tasks from {plain_user.name}".encode())
    healthy.execute("revoke execute on all functions in schema horsies from public")
    found = doctor(plain_user.url(database))
    assert found.codes == {
        FindingCode.PRIVILEGES_MISSING,
        FindingCode.CHECK_NOT_PERMITTED,
        FindingCode.PARTITION_PRIVILEGE_MISSING,
        FindingCode.SESSIONS_HIDDEN,
    }
    missing = found.data(FindingCode.PRIVILEGES_MISSING)["missing"]
    assert missing["tasks"] == ["DELETE", "INSERT"]
    assert missing["new_id"] == ["EXECUTE"]
    assert "finished" not in missing


def test_a_user_that_may_only_read_can_use_everything_that_reads(
    healthy: psycopg.Connection, database: str, plain_user: PlainUser, doctor: Doctor
) -> None:
    grant(healthy, plain_user, "select")
    found = doctor(plain_user.url(database))
    assert found.codes == {
        FindingCode.ROLE_READ_ONLY,
        FindingCode.SESSIONS_HIDDEN,
    }
    assert {finding.severity for finding in found.report.findings if finding.code in found.codes} == {Severity.INFO}


def test_a_user_without_privileges_gets_one_explanation(
    healthy: psycopg.Connection, database: str, plain_user: PlainUser, doctor: Doctor
) -> None:
    found = doctor(plain_user.url(database))
    assert found.codes == {
        FindingCode.PRIVILEGES_MISSING,
        FindingCode.CHECK_NOT_PERMITTED,
        FindingCode.SESSIONS_HIDDEN,
    }
    assert found.data(FindingCode.PRIVILEGES_MISSING)["missing"]["the schema"] == ["USAGE"]


def test_a_check_that_is_not_permitted_is_a_finding(
    healthy: psycopg.Connection, database: str, plain_user: PlainUser, doctor: Doctor
) -> None:
    grant(healthy, plain_user, "select", "insert", "update", "delete")
    healthy.execute("revoke execute on function pg_notification_queue_usage() from public")
    found = doctor(plain_user.url(database))
    assert found.codes - {FindingCode.PARTITION_PRIVILEGE_MISSING, FindingCode.SESSIONS_HIDDEN} == {
        FindingCode.CHECK_NOT_PERMITTED
    }


# -- notifications and poolers


@pytest.mark.parametrize("listen", ["not set", "to the pooler as well"])
def test_a_transaction_pooler_before_the_listener(
    healthy: psycopg.Connection, pgbouncer: StartPgBouncer, doctor: Doctor, listen: str
) -> None:
    url = pgbouncer().url
    config = PostgresConfig(database_url=url, listen_url=None if listen == "not set" else url)
    found = doctor(config)
    assert found.codes == {FindingCode.LISTEN_POOLED}
    assert listen in found.report.findings[-1].seen


def test_a_pooler_with_a_direct_listen_url_is_only_an_info(
    healthy: psycopg.Connection, pgbouncer: StartPgBouncer, database: str, doctor: Doctor
) -> None:
    found = doctor(PostgresConfig(database_url=pgbouncer().url, listen_url=database))
    assert found.codes == {FindingCode.POOLER_FOUND}
    assert found.report.severity <= Severity.WARNING


def test_lost_notifications_are_found_and_nothing_is_left_in_the_session(
    healthy: psycopg.Connection, pgbouncer: StartPgBouncer, doctor: Doctor
) -> None:
    pooler = pgbouncer(default_pool_size=1)
    # Both connections share one session, so the listener receives nothing.
    # Without pooler checks there is no proof that the session is shared.
    found = doctor(PostgresConfig(database_url=pooler.url), check_timeout_s=0.3, pooler_checks=0)
    assert found.codes == {FindingCode.LISTEN_NOT_RECEIVED}
    with psycopg.connect(pooler.url, autocommit=True) as through:
        assert column(through, "select pg_listening_channels()") == []


def test_a_listen_url_to_another_database(
    healthy: psycopg.Connection, database: str, empty_database: str, doctor: Doctor
) -> None:
    assert doctor(PostgresConfig(database_url=database, listen_url=empty_database)).codes == {
        FindingCode.LISTEN_OTHER_DATABASE
    }


def test_an_unreachable_listen_url(healthy: psycopg.Connection, database: str, doctor: Doctor) -> None:
    found = doctor(PostgresConfig(database_url=database, listen_url=GONE))
    assert found.codes == {FindingCode.LISTEN_UNREACHABLE}
    assert "my-secret" not in found.report.findings[-1].seen


# -- clocks


@pytest.mark.parametrize(("by_s", "words"), [(60, "ahead of"), (-60, "behind")])
def test_a_wrong_clock_on_this_machine(healthy: psycopg.Connection, doctor: Doctor, by_s: int, words: str) -> None:
    found = doctor(clock=lambda: time.time() + by_s)
    assert found.codes == {FindingCode.CLOCK_SKEW}
    assert abs(found.data(FindingCode.CLOCK_SKEW)["skew_s"] - by_s) < 2
    assert f" s {words} the database" in found.report.findings[-1].seen


# -- vacuum


def test_a_transaction_that_stays_open(healthy: psycopg.Connection, database: str, doctor: Doctor) -> None:
    with psycopg.connect(database, application_name="forgotten") as forgotten:
        forgotten.execute("set transaction isolation level repeatable read")
        forgotten.execute("select 1")
        found = doctor(max_transaction_s=0.0)
        assert found.codes == {FindingCode.LONG_TRANSACTION}
        data = found.data(FindingCode.LONG_TRANSACTION)
        assert (data["pid"], data["application"]) == (forgotten.info.backend_pid, "forgotten")
        assert doctor().codes == set()  # not old enough for the default threshold


def test_dead_rows_that_are_not_removed(healthy: psycopg.Connection, doctor: Doctor) -> None:
    with healthy.transaction():
        healthy.execute(TASK + "queue_name) select 'add', 'default' from generate_series(1, 500)")
        healthy.execute("delete from horsies.tasks")
    healthy.execute("select pg_stat_force_next_flush()")
    found = doctor(max_dead_rows=400)
    assert found.codes == {FindingCode.DEAD_ROWS}
    data = found.data(FindingCode.DEAD_ROWS)
    assert (data["table"], data["live"], data["dead"]) == ("tasks", 0, 500)


def test_a_bloated_table(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute(TASK + "queue_name) select 'add', 'default' from generate_series(1, 5000)")
    healthy.execute("delete from horsies.tasks where id <> (select id from horsies.tasks order by ctid desc limit 1)")
    healthy.execute("vacuum analyze horsies.tasks")
    found = doctor(min_bloat_bytes=500_000)
    assert found.codes == {FindingCode.TABLE_BLOATED}
    assert found.data(FindingCode.TABLE_BLOATED)["table"] == "tasks"


# -- workers


def test_a_system_without_workers_is_only_an_info(sql: psycopg.Connection, doctor: Doctor) -> None:
    found = doctor()
    assert found.codes == {FindingCode.NO_WORKERS}


def test_dead_workers_that_were_not_removed(sql: psycopg.Connection, doctor: Doctor) -> None:
    add_worker(sql, worker=ME)
    sql.execute("update horsies.workers set heartbeat_at = now() - interval '1 hour'")
    found = doctor()
    assert found.codes == {FindingCode.STALE_WORKERS, FindingCode.NO_WORKERS}
    assert found.data(FindingCode.STALE_WORKERS) == {"worker_id": ME, "worker_ids": [ME]}


def test_a_worker_that_missed_a_few_heartbeats_is_not_stale(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute("update horsies.workers set heartbeat_at = now() - interval '15 seconds'")
    assert doctor().codes == set()


def test_workers_of_different_versions(healthy: psycopg.Connection, doctor: Doctor) -> None:
    add_worker(healthy, worker=OTHER, version="0.2.0")
    found = doctor()
    assert found.codes == {FindingCode.WORKER_VERSIONS_DIFFER}
    assert found.data(FindingCode.WORKER_VERSIONS_DIFFER) == {"workers": {"0.1.0": 1, "0.2.0": 1}}


def test_a_worker_whose_children_take_longer_to_start_than_to_work(healthy: psycopg.Connection, doctor: Doctor) -> None:
    add_state = """
        insert into horsies.worker_states (
            worker_id, hostname, pid, processes, concurrency, queues, tasks_running, tasks_claimed, memory_usage_mb,
            children_memory_mb, cpu_percent, children_cpu_percent, recycling_share, worker_started_at, snapshot_at
        )
        select
            id, hostname, pid, processes, concurrency, queues, 0, 0, 1, 1, 1, 1, %s::real, started_at,
            now() - %s::integer * interval '1 second'
        from horsies.workers
    """
    healthy.execute(add_state, (0.9, 60))
    healthy.execute(add_state, (0.25, 30))
    assert doctor().codes == set()
    healthy.execute(add_state, (0.75, 0))
    found = doctor()
    assert found.codes == {FindingCode.RECYCLING_DOMINATES}
    assert found.data(FindingCode.RECYCLING_DOMINATES) == {"worker_id": ME, "worker_ids": [ME], "share": 0.75}


def test_workers_that_do_not_serve_the_queues_of_the_app(healthy: psycopg.Connection, doctor: Doctor) -> None:
    found = doctor(queues=[CustomQueueConfig(name="email")])
    assert found.codes == {FindingCode.QUEUE_WITHOUT_WORKER, FindingCode.QUEUE_UNKNOWN}
    assert found.data(FindingCode.QUEUE_WITHOUT_WORKER) == {"queue": "email", "queues": ["email"]}
    assert found.data(FindingCode.QUEUE_UNKNOWN) == {"queue": "default", "queues": ["default"]}
    assert doctor(queues=[CustomQueueConfig(name="default")]).codes == set()


@pytest.mark.promise("D3")
def test_a_schedule_that_belongs_to_another_app(healthy: psycopg.Connection, doctor: Doctor, database: str) -> None:
    with PostgresBroker(PostgresConfig(database_url=database)) as broker:
        store(
            broker, declare("report", IntervalSchedule(hours=1)), declare("mail", IntervalSchedule(hours=1)), app="shop"
        )
        store(broker, declare("mail", IntervalSchedule(hours=1)), app="shop")
    found = doctor(app="bank", schedules=["report", "mail"])
    assert found.codes == {FindingCode.SCHEDULE_CLASH}
    assert found.data(FindingCode.SCHEDULE_CLASH) == {
        "schedule": "mail",
        "schedules": {"mail": "shop"},
    }  # the other one was removed, so its name is free
    assert doctor(app="bank", schedules=["count"]).codes == set()
    assert doctor(app="shop", schedules=["mail"]).codes == set()
    assert doctor(app="store", locator="shop", schedules=["mail"]).codes == set()


@pytest.mark.promise("D3")
def test_a_declared_schedule_whose_name_was_taken_at_run_time(
    healthy: psycopg.Connection, broker: PostgresBroker, doctor: Doctor
) -> None:
    assert healthy
    broker.run(partial(create_schedule, declare("mail", IntervalSchedule(hours=1))))
    assert doctor(app="shop", schedules=["report"]).codes == set()  # it needs no app
    found = doctor(app="shop", schedules=["mail"])
    assert found.codes == {FindingCode.SCHEDULE_CLASH}
    assert found.data(FindingCode.SCHEDULE_CLASH) == {"schedule": "mail", "schedules": {"mail": None}}


@pytest.mark.promise("D3")
def test_a_task_name_that_two_apps_have(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute("update horsies.workers set app = 'shop', task_names = array['add', 'pack']")
    add_worker(healthy, worker=OTHER)
    theirs = "update horsies.workers set app = 'bank', task_names = array['add', 'count'], queues = %s where id = %s"
    healthy.execute(theirs, [["others"], OTHER])
    assert doctor().codes == set()  # neither gets tasks of the other
    healthy.execute(theirs, [["others", "default"], OTHER])
    found = doctor()
    assert found.codes == {FindingCode.TASK_NAME_CLASH}
    assert found.data(FindingCode.TASK_NAME_CLASH) == {"task_name": "add", "tasks": {"add": ["bank", "shop"]}}
    healthy.execute("update horsies.workers set app = 'shop' where id = %s", [OTHER])
    assert doctor().codes == set()  # two releases of one app


def test_a_queue_that_two_apps_serve(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute("update horsies.workers set app = 'shop', task_names = array['pack']")
    add_worker(healthy, worker=OTHER)
    healthy.execute("update horsies.workers set app = 'bank', task_names = array['count'] where id = %s", [OTHER])
    found = doctor()
    assert found.codes == {FindingCode.APPS_MIXED}
    assert found.data(FindingCode.APPS_MIXED) == {"queue": "default", "queues": {"default": ["bank", "shop"]}}


def test_no_worker_is_an_error_when_tasks_wait(sql: psycopg.Connection, doctor: Doctor) -> None:
    sql.execute(TASK + "queue_name) values ('add', 'default')")
    found = doctor()
    assert found.codes == {FindingCode.NO_WORKERS}
    assert found.report.severity is Severity.ERROR


def test_the_task_that_blocks_a_queue_is_named(healthy: psycopg.Connection, doctor: Doctor) -> None:
    _, statement = BY_SQL["a queue behind a task that hangs"]
    healthy.execute(statement)
    found = doctor()
    (hung,) = column(healthy, "select id::text from horsies.tasks where task_name = 'hang'")
    assert found.data(FindingCode.QUEUE_BLOCKED)["task_id"] == hung
    add_worker(healthy, worker=OTHER)  # which has a free slot
    assert doctor().codes == set()
    healthy.execute("insert into horsies.queues (name, max_concurrency) values ('default', 1)")
    assert doctor().codes == {FindingCode.QUEUE_BLOCKED}


def test_workers_of_another_app_may_serve_queues_of_their_own(healthy: psycopg.Connection, doctor: Doctor) -> None:
    add_worker(healthy, "others", worker=OTHER)
    healthy.execute("update horsies.workers set app = 'bank' where id = %s", [OTHER])
    ours = [CustomQueueConfig(name="default")]
    assert doctor(app="shop", queues=ours).codes == set()
    assert doctor(app="bank", queues=ours).codes == {FindingCode.QUEUE_UNKNOWN}


def test_workers_with_another_cap_than_the_app_s(healthy: psycopg.Connection, doctor: Doctor) -> None:
    healthy.execute(
        TASK + "status, claimed_by, claimed_at, started_at) "
        "select 'add', 'RUNNING', id, now(), now() from horsies.workers, generate_series(1, 3)"
    )
    assert doctor(queues=[CustomQueueConfig(name="default", max_concurrency=3)]).codes == set()
    found = doctor(queues=[CustomQueueConfig(name="default", max_concurrency=2)])
    assert found.codes == {FindingCode.CAP_EXCEEDED}
    assert found.data(FindingCode.CAP_EXCEEDED) == {"queue": "default", "in_flight": 3, "max_concurrency": 2}
    healthy.execute("insert into horsies.queues (name, max_concurrency) values ('default', 3)")
    assert doctor(queues=[CustomQueueConfig(name="default", max_concurrency=2)]).codes == set()


# -- schedules


def test_a_schedule_whose_runs_fail(healthy: psycopg.Connection, broker: PostgresBroker, doctor: Doctor) -> None:
    store(broker, declare("report", IntervalSchedule(hours=1)), app="shop")
    for _ in range(3):
        broker.run(partial(run_schedule, "report", new_task_id()))
        (held,) = claim(broker)
        do(broker, finish_tasks(ME, [failed(held, error=NO_PAPER)]))
    found = doctor()
    assert found.codes == {FindingCode.SCHEDULE_FAILING}
    data = found.data(FindingCode.SCHEDULE_FAILING)
    assert data.pop("since")
    assert data == {"schedule": "report", "failures_in_a_row": 3, "error_code": "BROKEN"}
    assert "no paper" in found.report.findings[-1].seen


# -- workflows


def test_a_workflow_that_a_failed_node_paused(
    healthy: psycopg.Connection, broker: PostgresBroker, doctor: Doctor
) -> None:
    run = start_run(broker, Graph("two", (node(0), node(1, 0)), on_error=OnError.PAUSE))
    run_all_tasks(broker, healthy, failing={(0,)})
    found = doctor()
    assert found.codes == {FindingCode.WORKFLOW_PAUSED_BY_ERROR}
    data = found.data(FindingCode.WORKFLOW_PAUSED_BY_ERROR)
    assert (data["workflow_ids"], data["node"], data["count"]) == ([run], "n0", 1)
    healthy.execute("update horsies.nodes set error = %s::json where status = 'FAILED'", [NO_PAPER])
    assert "failed: BROKEN: no paper; run" in doctor().report.findings[-1].seen
    healthy.execute("update horsies.nodes set is_sensitive = true")
    assert "failed: BROKEN; run" in doctor().report.findings[-1].seen


def test_a_workflow_that_was_paused_is_only_an_info(
    healthy: psycopg.Connection, broker: PostgresBroker, doctor: Doctor
) -> None:
    run = start_run(broker, Graph("two", (node(0), node(1, 0))))
    broker.run(partial(pause, run))
    found = doctor()
    assert found.codes == {FindingCode.WORKFLOW_PAUSED}
    assert found.data(FindingCode.WORKFLOW_PAUSED) == {"workflow_id": run, "count": 1, "workflow_ids": [run]}


def test_a_stuck_workflow(healthy: psycopg.Connection, broker: PostgresBroker, doctor: Doctor) -> None:
    run = start_run(broker, Graph("two", (node(0), node(1, 0))))
    assert doctor().codes == set()
    healthy.execute("delete from horsies.tasks")
    found = doctor()
    assert found.codes == {FindingCode.WORKFLOWS_STUCK}
    assert found.data(FindingCode.WORKFLOWS_STUCK) == {"workflow_id": run, "count": 1, "workflow_ids": [run]}
