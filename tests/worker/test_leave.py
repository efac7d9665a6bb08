"""An operator asks workers to leave: they behave as at the first SIGTERM, whatever else they are asked."""

import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from horsies import AppConfig, Horsies
from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.statement import rows
from horsies.model.config import PostgresConfig
from horsies.ops import Ops
from horsies.worker.heartbeat import SQL as HEARTBEAT
from horsies.worker.wakeups import look_for_work
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, OTHER, column, row
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import CLUSTER, settings
from tests.worker.steps import PATIENCE_MS, begun

ASKED = "an operator has asked this worker to leave"


@pytest.fixture
def ops(database: str, broker: PostgresBroker) -> Generator[Ops]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database)))
    yield app.ops.acting_as("alice")
    app.close()


def registered(sql: psycopg.Connection) -> list[str]:
    return [str(worker) for worker in column(sql, "select id::text from horsies.workers")]


def test_a_worker_that_is_asked_to_leave_ends_its_tasks_claims_no_more_and_exits_with_0(
    ops: Ops, basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    leaving, gate_file = worker(), tmp_path / "open"
    gate = basic.gate.send(str(tmp_path / "begun"), str(gate_file))
    begun(tmp_path / "begun")
    (asked,) = registered(sql)
    staying = worker()
    (other,) = {*registered(sql)} - {asked}
    assert ops.request_leave([asked, ME]) == {asked: True, ME: False}
    leaving.wait_for_log("shutdown: claiming no more tasks")
    assert {found.id: found.leave_requested_at is not None for found in ops.list_workers()} == {
        asked: True,
        other: False,
    }
    assert basic.echo.send(1).get(PATIENCE_MS).is_ok()  # by the other one
    assert column(sql, "select claimed_by::text from horsies.finished where task_name = 'echo'") == [other]
    gate_file.touch()
    assert leaving.wait() == 0
    assert gate.get(PATIENCE_MS).is_ok()
    assert [found.id for found in ops.list_workers()] == [other]
    assert staying.process.poll() is None
    (entry,) = ops.list_audit()
    assert (entry.actor, entry.action, entry.target) == ("alice", "ask workers to leave", f"{asked}, {ME}")
    assert entry.count == 1


def test_asking_again_and_the_first_signal_after_that_interrupt_nothing(
    ops: Ops, basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """A supervisor that stops everything sends SIGTERM also to a worker that is leaving."""
    running, gate_file = worker(), tmp_path / "open"
    gate = basic.gate.send(str(tmp_path / "begun"), str(gate_file))
    begun(tmp_path / "begun")
    (asked,) = registered(sql)
    ops.request_leave([asked])
    running.wait_for_log(ASKED)
    requested_at = row(sql, "select leave_requested_at, heartbeat_at from horsies.workers")
    ops.request_leave([asked])
    beat = "select from horsies.workers where heartbeat_at > %s"
    eventually(lambda: len(sql.execute(beat, [requested_at[1]]).fetchall()) == 1, what="another heartbeat")
    assert row(sql, "select leave_requested_at from horsies.workers") == requested_at[:1]
    running.signal(signal.SIGTERM)
    gate_file.touch()
    assert running.wait() == 0
    assert gate.get(PATIENCE_MS).is_ok()
    assert len([line for line in running.logs if ASKED in line]) == 1
    assert not [line for line in running.logs if "interrupting" in line]


def test_a_second_signal_to_a_worker_that_leaves_interrupts_its_tasks(
    ops: Ops, basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker()
    basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    ops.request_leave(registered(sql))
    running.wait_for_log("shutdown: claiming no more tasks")
    running.signal(signal.SIGTERM)
    running.signal(signal.SIGINT)  # two different ones, because equal ones may be delivered as one
    running.wait_for_log("shutdown: interrupting running tasks")
    assert running.wait() == 3


def test_a_request_without_a_notification_is_seen_by_the_next_heartbeat(
    worker: StartWorker, sql: psycopg.Connection
) -> None:
    running = worker(CLUSTER, env=settings())
    sql.execute("update horsies.workers set leave_requested_at = now()")
    assert running.wait() == 0


def test_a_notification_alone_does_not_make_a_worker_leave(
    basic: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    running = worker(CLUSTER, env=settings())
    (target,) = registered(sql)
    before = row(sql, "select heartbeat_at from horsies.workers")[0]
    for payload in (f"{target} leave", f"{target} ping", target, "*", "leave"):
        sql.execute("select pg_notify(%s, %s)", [Channel.CONTROL.name_in("horsies"), payload])
    eventually(lambda: row(sql, "select heartbeat_at > %s from horsies.workers", before) == (True,))
    assert basic.echo.send(1).get(PATIENCE_MS).is_ok()
    assert not [line for line in running.logs if "asked" in line]


def test_a_worker_that_does_not_listen_finds_the_request_when_it_looks_for_work(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    for worker_id in (ME, OTHER):
        sql.execute(
            "insert into horsies.workers (id, hostname, pid, processes, concurrency, queues, library_version) "
            "values (%s, 'h', 1, 1, 1, '{default}', '1')",
            [worker_id],
        )
    ops.request_leave([ME])
    found = [broker.run(lambda each=each: rows(look_for_work(each, ["default"]))) for each in (ME, OTHER)]
    assert found == [[(False, True)], [(False, False)]]
    # Its heartbeat has read the request now. It may wait for its tasks for hours, and polls all the time.
    heartbeat = HEARTBEAT["record_heartbeat"](id=ME, holds_lock=False, children=None)
    ((_, is_asked),) = broker.run(lambda: rows(heartbeat))
    assert is_asked
    assert broker.run(lambda: rows(look_for_work(ME, ["default"]))) == [(False, False)]


def test_an_id_that_is_no_uuid_is_refused_before_anything_is_changed(ops: Ops, sql: psycopg.Connection) -> None:
    with pytest.raises(ValueError, match="'x' is not a valid worker id"):
        ops.request_leave([str(uuid4()), "x"])
    assert ops.list_audit() == []
    assert ops.request_leave([]) == {}
