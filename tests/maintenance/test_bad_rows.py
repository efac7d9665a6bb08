"""A row that maintenance cannot process does not block the others: it is logged once, and ended or skipped."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.statement import Op
from horsies.doctor.findings import CheckContext
from horsies.doctor.run import run_doctor
from horsies.maintenance import rescue, retention
from horsies.maintenance.isolate import FIRST_PAUSE_S, FailedRows
from horsies.maintenance.retention import RetentionLimits
from horsies.tasks.claim import promote_tasks
from horsies.workflows.advance import run_steps
from tests.doctor.conftest import add_worker
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, OTHER, column, do, row
from tests.fixtures.workers import StartWorker
from tests.maintenance.aged_rows import ago, finish, retained
from tests.recovery.steps import CLUSTER, settings
from tests.worker.steps import insert_lines, numbers

THIRD = "00000000-0000-4000-8000-00000000000c"
HELD = (
    "insert into horsies.tasks (task_name, status, claimed_by, claim_no, claimed_at, started_at, lease_until, retry_delays_ms, retry_for) "
    "values (%s, %s, %s, 1, now(), now(), now() - interval '1 minute', %s, '{{WORKER_CRASHED}}') returning id::text"
)


def hold(sql: psycopg.Connection, name: str, worker: str, status: str = "RUNNING", delays: str | None = None) -> str:
    return str(row(sql, HELD.replace("{{", "{").replace("}}", "}"), name, status, worker, delays)[0])


def refuse(sql: psycopg.Connection, table: str, event: str, condition: str, words: str = "not this one") -> None:
    """Create a user's trigger that rejects some rows."""
    sql.execute(
        f"create function refuse_{table}_{event}() returns trigger language plpgsql as "
        f"$$ begin raise exception '{words}'; end $$; "
        f"create trigger refuse_{event} before {event} on horsies.{table} for each row "
        f"when ({condition}) execute function refuse_{table}_{event}()".encode()
    )


def endings(sql: psycopg.Connection) -> dict[str, str]:
    return dict(sql.execute("select task_name, status from horsies.all_tasks").fetchall())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def run_duty(broker: PostgresBroker, duty: Callable[[FailedRows], Op[Any]], failed: FailedRows, times: int = 1) -> None:
    for _ in range(times):
        broker.run(partial(duty, failed))


# -- orphans


@pytest.mark.promise("D6", "T2")
def test_an_orphan_that_cannot_be_retried_keeps_no_other_and_ends(
    broker: PostgresBroker, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """No attempt can be added to what is not a list."""
    bad = hold(sql, "bad", ME, delays="{0}")
    sql.execute("update horsies.tasks set failed_attempts = array[array['{}'], array['{}']]::json[]")
    for number in range(20):
        hold(sql, f"crashed {number}", ME if number % 2 else OTHER)
    hold(sql, "retried", THIRD, delays="{1000}")
    hold(sql, "claimed", THIRD, "CLAIMED")
    rescued = broker.run(rescue.rescue_orphans)
    assert rescued.count == 23
    assert endings(sql) == {f"crashed {number}": "FAILED" for number in range(20)} | {
        "bad": "FAILED",
        "retried": "PENDING",
        "claimed": "PENDING",
    }
    code, message = row(sql, "select error_code, error->>'message' from horsies.finished where id = %s", bad)
    assert code == "WORKER_CRASHED"
    assert "cannot be retried" in message
    assert "one-dimensional" in message
    (warning,) = warnings(caplog)
    assert bad in warning


@pytest.mark.promise("D6", "T1")
@pytest.mark.parametrize("delays", ["{NULL}", "{{1,2},{3,4}}", "[5:6]={1,2}", "{-1}"])
def test_a_manually_inserted_row_without_a_delay_is_retried_at_once(
    broker: PostgresBroker, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture, delays: str
) -> None:
    hold(sql, "odd", ME, delays=delays)
    assert broker.run(rescue.rescue_orphans).count == 1
    assert row(sql, "select status, attempts, enqueued_at <= now() from horsies.tasks") == ("PENDING", 1, True)
    assert warnings(caplog) == []


@pytest.mark.promise("D6", "T2")
def test_an_orphan_that_cannot_be_ended_keeps_no_other_and_is_logged_once(
    broker: PostgresBroker, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(sql, "tasks", "delete", "old.task_name = 'bad'")
    bad = hold(sql, "bad", ME)
    for number in range(5):
        hold(sql, f"crashed {number}", ME if number % 2 else OTHER)
    failed = FailedRows()
    run_duty(broker, rescue.rescue_orphans, failed, times=3)
    assert endings(sql) == {f"crashed {number}": "FAILED" for number in range(5)} | {"bad": "RUNNING"}
    (warning,) = warnings(caplog)
    assert bad in warning
    assert "not this one" in warning
    report = run_doctor(broker.config, CheckContext(schema=broker.config.schema, stuck_after_s=0.0))
    assert bad in str(report.findings)


@pytest.mark.promise("D6")
def test_a_skipped_row_is_tried_again_and_processed_when_that_is_possible(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    refuse(sql, "tasks", "delete", "old.task_name = 'bad'")
    hold(sql, "bad", ME)
    now = [1000.0]
    failed = FailedRows(clock=lambda: now[0])
    run_duty(broker, rescue.rescue_orphans, failed)
    sql.execute("drop trigger refuse_delete on horsies.tasks")
    run_duty(broker, rescue.rescue_orphans, failed)
    assert endings(sql) == {"bad": "RUNNING"}
    now[0] += FIRST_PAUSE_S
    run_duty(broker, rescue.rescue_orphans, failed)
    assert endings(sql) == {"bad": "FAILED"}


@pytest.mark.promise("D6", "T2")
def test_a_locked_orphan_is_not_waited_for(broker: PostgresBroker, database: str, sql: psycopg.Connection) -> None:
    locked = hold(sql, "locked", ME)
    hold(sql, "crashed", ME)
    with psycopg.connect(database) as holder:
        holder.execute("select from horsies.tasks where id = %s for update", [locked])
        assert broker.run(rescue.rescue_orphans).count == 1
        assert endings(sql) == {"locked": "RUNNING", "crashed": "FAILED"}
    assert broker.run(rescue.rescue_orphans).count == 1


# -- the other duties

TASK = (
    "insert into horsies.tasks (task_name, {columns}) select name, {values} from unnest(array['a', 'bad', 'c']) as name"
)
CASES: dict[str, tuple[Callable[[FailedRows], Op[Any]], str, str, str, Sequence[str]]] = {
    "expiry": (rescue.expire_tasks, "good_until", "now() - interval '1 s'", "delete", ["bad"]),
    "a cancellation": (rescue.cancel_pending_tasks, "cancel_requested_at", "now()", "delete", ["bad"]),
    "promotion": (
        rescue.promote_overdue_tasks,
        "ready, enqueued_at",
        "false, now() - interval '1 hour'",
        "update",
        ["bad"],
    ),
    "a past lease": (
        rescue.release_expired_claims,
        "status, claimed_by, claim_no, lease_until",
        f"'CLAIMED', '{ME}', 1, now() - interval '1 s'",
        "update",
        ["bad"],
    ),
}


@pytest.mark.promise("D6")
@pytest.mark.parametrize("case", CASES)
def test_a_duty_serves_all_rows_but_the_bad_one_which_is_logged_once(
    broker: PostgresBroker, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    duty, columns, values, event, left = CASES[case]
    add_worker(sql, worker=ME)
    sql.execute(TASK.format(columns=columns, values=values).encode())
    refuse(sql, "tasks", event, "old.task_name = 'bad'")
    run_duty(broker, duty, FailedRows(), times=3)
    undone = (
        "select task_name from horsies.tasks where good_until is not null or cancel_requested_at is not null "
        "or not ready or status = 'CLAIMED' order by task_name"
    )
    assert column(sql, undone) == left
    assert len(warnings(caplog)) == 1


WORKFLOWS = (
    "insert into horsies.workflows (id, root_id, name, status, unresolved, success_cases, deadline) "
    "select id, id, name, 'RUNNING', {unresolved}, case when name = 'bad' then '{{\"a\": 1}}'::json end, {deadline} "
    "from (values ('00000000-0000-4000-8000-000000000001'::uuid, 'a'), ('00000000-0000-4000-8000-000000000002', 'bad'), "
    "('00000000-0000-4000-8000-000000000003', 'c')) as made (id, name)"
)


@pytest.mark.promise("D6")
def test_a_workflow_that_cannot_be_settled_keeps_no_other(
    broker: PostgresBroker, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    sql.execute(WORKFLOWS.format(unresolved=0, deadline="null").encode())
    run_duty(broker, rescue.settle_workflows, FailedRows(), times=3)
    assert dict(sql.execute("select name, status from horsies.workflows").fetchall()) == {
        "a": "COMPLETED",
        "bad": "RUNNING",
        "c": "COMPLETED",
    }
    assert len(warnings(caplog)) == 1


@pytest.mark.promise("D6")
def test_a_node_that_can_never_begin_makes_no_endless_steps_and_is_shown(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """One of its nodes stands for a run that is not there."""
    sql.execute(
        WORKFLOWS.replace("name = 'bad'", "false")
        .format(unresolved="case when name = 'bad' then 1 else 0 end", deadline="null")
        .encode()
    )
    sql.execute(
        "insert into horsies.nodes (id, root_id, workflow_id, index, node_id, kind, status, waits_for, dependents, needed, allow_failed_deps) "
        "select gen_random_uuid(), id, id, 0, 'n', 'workflow', 'READY', '{}', '{}', 0, false from horsies.workflows where name = 'bad'"
    )
    assert broker.run(partial(run_steps, ["00000000-0000-4000-8000-000000000002"], at_most=20)) == []
    run_duty(broker, rescue.settle_workflows, FailedRows(), times=3)
    assert dict(sql.execute("select name, status from horsies.workflows").fetchall()) == {
        "a": "COMPLETED",
        "bad": "RUNNING",
        "c": "COMPLETED",
    }
    assert "it does not begin" in str(
        run_doctor(broker.config, CheckContext(schema="horsies", recheck_after_s=0.0)).findings
    )


@pytest.mark.promise("D6")
def test_an_overdue_workflow_that_cannot_be_ended_keeps_no_other(
    broker: PostgresBroker, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    sql.execute(WORKFLOWS.format(unresolved=1, deadline="now() - interval '1 minute'").encode())
    refuse(sql, "workflows", "update", "old.name = 'bad'")
    run_duty(broker, rescue.end_overdue_workflows, FailedRows(), times=3)
    assert dict(sql.execute("select name, status from horsies.workflows").fetchall()) == {
        "a": "FAILED",
        "bad": "RUNNING",
        "c": "FAILED",
    }
    assert len(warnings(caplog)) == 1


@pytest.mark.promise("D6")
def test_a_lost_node_that_cannot_be_ended_keeps_no_other(
    broker: PostgresBroker, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    sql.execute(WORKFLOWS.replace("name = 'bad'", "false").format(unresolved=1, deadline="null").encode())
    sql.execute(
        "insert into horsies.nodes (id, root_id, workflow_id, index, node_id, kind, status, waits_for, dependents, needed, "
        "allow_failed_deps, task_id) select gen_random_uuid(), id, id, 0, name, 'task', 'ENQUEUED', '{}', '{}', 0, false, "
        "gen_random_uuid() from horsies.workflows"
    )
    refuse(sql, "nodes", "update", "old.node_id = 'bad'")
    run_duty(broker, rescue.resolve_lost_nodes, FailedRows(), times=3)
    assert column(sql, "select node_id from horsies.nodes where status = 'ENQUEUED'") == ["bad"]
    assert len(warnings(caplog)) == 1


# -- retention


@pytest.mark.promise("D6")
def test_retention_continues_past_rows_that_cannot_be_deleted(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    ids = finish(sql, ago(400), 5)
    refuse(sql, "finished_default", "delete", f"old.id = '{ids[0]}'")
    sql.execute(
        "insert into horsies.schedule_runs (schedule_name, outcome, decided_at) select name, 'MISSED', now() - interval '400 days' "
        "from unnest(array['bad', 'b', 'c', 'd', 'e']) as name"
    )
    refuse(sql, "schedule_runs", "delete", "old.schedule_name = 'bad'")
    sql.execute(
        "insert into horsies.keys (task_name, key, task_id, send_id, args_hash, key_window) "
        "select 'pack', name, gen_random_uuid(), gen_random_uuid(), '', '0' from unnest(array['a', 'b', 'bad', 'c', 'd', 'e']) as name"
    )
    refuse(sql, "keys", "delete", "old.key = 'bad'")
    sql.execute(
        "insert into horsies.workflows (id, root_id, name, status, unresolved, finished_at) "
        "select id, id, name, 'COMPLETED', 0, now() - interval '400 days' "
        "from (select gen_random_uuid(), name from unnest(array['a', 'bad', 'c']) as name) as made (id, name)"
    )
    refuse(sql, "workflows", "delete", "old.name = 'bad'")
    retained(broker, limits=RetentionLimits(rows=2))
    assert column(sql, "select id::text from horsies.finished") == [ids[0]]
    assert column(sql, "select schedule_name from horsies.schedule_runs") == ["bad"]
    assert column(sql, "select key from horsies.keys") == ["bad"]
    assert column(sql, "select name from horsies.workflows") == ["bad"]


@pytest.mark.promise("D6")
@pytest.mark.parametrize("moment", ["-infinity", "infinity", "0044-03-15 BC", "0400-01-01"])
def test_a_finished_task_of_no_day_stops_neither_migrations_nor_retention(
    broker: PostgresBroker, sql: psycopg.Connection, moment: str
) -> None:
    finish(sql, moment)  # pyright: ignore[reportArgumentType] - the server reads it
    broker.migrate()
    assert broker.run(partial(retention.prepare_next_partitions, "horsies", None)).postponed is False
    retained(broker)
    assert column(sql, "select count(*) from horsies.finished") == [1 if moment == "infinity" else 0]


# -- promotion by workers


@pytest.mark.promise("D6")
def test_promotion_continues_past_a_row_that_cannot_be_changed(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    sql.execute(TASK.format(columns="ready, enqueued_at", values="false, now() - interval '1 hour'").encode())
    refuse(sql, "tasks", "update", "old.task_name = 'bad'")
    (promoted,) = do(broker, promote_tasks())
    assert len(promoted) == 2
    assert column(sql, "select task_name from horsies.tasks where ready order by 1") == ["a", "c"]


@pytest.mark.promise("D6", "A7")
def test_a_row_that_cannot_be_promoted_stops_no_worker(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Any
) -> None:
    sql.execute(TASK.format(columns="ready, enqueued_at", values="false, now() - interval '1 hour'").encode())
    refuse(sql, "tasks", "update", "old.task_name = 'bad'")
    started = worker(CLUSTER, env=settings())
    insert_lines(sql, tmp_path / "log", 5)
    sql.execute(
        "update horsies.tasks set ready = false, enqueued_at = now() + interval '1 s' where task_name = 'write_line' and ready"
    )
    eventually(lambda: sorted(numbers(tmp_path / "log")) == list(range(5)))
    started.wait_for_log(r"could not promote task .* not this one")
    left = "select task_name from horsies.tasks where unknown_since is null"
    eventually(lambda: column(sql, left) == ["bad"], what="all others have ended, or wait for a worker that knows them")


# -- the lease


@pytest.mark.promise("D6", "T2")
def test_a_lease_longer_than_any_leader_takes_does_not_count(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    sql.execute(
        "insert into horsies.maintenance_lease (holder, expires_at) values (%s, now() + interval '1 year')", [OTHER]
    )
    assert broker.run(partial(rescue.acquire_lease, ME, 3000))[0]
    assert column(sql, "select holder::text from horsies.maintenance_lease") == [ME]


def test_a_lease_that_another_worker_may_have_taken_counts(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    sql.execute(
        "insert into horsies.maintenance_lease (holder, expires_at) values (%s, now() + interval '3 minutes')", [OTHER]
    )
    is_ours, left_s = broker.run(partial(rescue.acquire_lease, ME, 3000))
    assert not is_ours
    assert 170 < left_s <= 180
