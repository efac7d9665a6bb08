"""`good_until`: a task that is too late never runs, and its waiters get the result in time."""

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies.tasks.handle import TaskHandle
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import CLUSTER, insert_rows, insert_spans, notes, settings
from tests.worker.steps import begun, insert, statuses


def good_for(milliseconds: int) -> str:
    return f"clock_timestamp() + interval '{milliseconds} ms'"


@pytest.mark.promise("C22")
def test_a_waiter_gets_the_expiry_at_once_without_a_worker(basic: Any, sql: psycopg.Connection) -> None:
    (task_id,) = insert_rows(sql, "add", [{"left": 1, "right": 1}], good_until=good_for(500))
    began = time.monotonic()
    result = TaskHandle(task_id, basic.add.result, basic.app).get(20_000)
    assert result.unwrap_err().error_code == "TASK_EXPIRED"
    assert time.monotonic() - began < 2.5  # a waiter polls after 5 s
    assert row(sql, "select status from horsies.tasks") == ("PENDING",)  # there was no worker to end it


@pytest.mark.promise("C22")
def test_the_leader_ends_expired_tasks(worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> None:
    worker(CLUSTER, env=settings())
    gate_file = tmp_path / "open"
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(gate_file))
    begun(tmp_path / "begun")
    insert_rows(sql, "write_line", [{"path": str(tmp_path / "log"), "line": "1"}], good_until=good_for(300))
    eventually(lambda: statuses(sql) == {"RUNNING": 1, "EXPIRED": 1}, seen=lambda: statuses(sql))
    gate_file.touch()
    eventually(lambda: statuses(sql) == {"COMPLETED": 1, "EXPIRED": 1})
    assert not (tmp_path / "log").exists()
    found = row(
        sql,
        "select error_code, attempts, good_until, finished_at from horsies.finished where status = 'EXPIRED'",
    )
    code, attempts, good_until, finished_at = found
    assert (code, attempts) == ("TASK_EXPIRED", 0)
    assert isinstance(good_until, datetime)
    assert good_until <= finished_at < good_until + timedelta(seconds=5)


@pytest.mark.promise("C22")
def test_a_task_that_started_in_time_does_not_expire_for_its_waiter(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Only its start must be before `good_until`."""
    worker(CLUSTER, env=settings())
    gate_file = tmp_path / "open"
    arguments = {"begun": str(tmp_path / "begun"), "until": str(gate_file)}
    (task_id,) = insert_rows(sql, "gate", [arguments], good_until=good_for(3_000))
    pid = begun(tmp_path / "begun")
    eventually(lambda: row(sql, "select good_until < now() from horsies.tasks") == (True,))
    handle = TaskHandle(task_id, basic.gate.result, basic.app)
    assert handle.get(500).unwrap_err().error_code == "WAIT_TIMEOUT"
    gate_file.touch()
    assert handle.get(20_000).unwrap() == pid


@pytest.mark.promise("W5", "C22")
def test_a_task_that_expires_in_the_buffer_of_a_worker_does_not_run(
    worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """There is no leader at first, so that the check at the start decides."""
    sql.execute(
        "insert into horsies.maintenance_lease (holder, expires_at) values (gen_random_uuid(), now() + interval '1 day')"
    )
    worker(CLUSTER, env=settings(prefetch_buffer=4, claim_lease_ms=60_000))
    gate_file, log = tmp_path / "open", tmp_path / "log"
    insert(sql, "gate", begun=str(tmp_path / "begun"), until=str(gate_file))
    begun(tmp_path / "begun")
    insert_spans(sql, log, 2, 0.0)
    eventually(lambda: statuses(sql) == {"RUNNING": 1, "CLAIMED": 2}, seen=lambda: statuses(sql))
    sql.execute("update horsies.tasks set good_until = clock_timestamp() where args->>'number' = '0'")
    gate_file.touch()
    eventually(lambda: statuses(sql)["COMPLETED"] == 2, seen=lambda: statuses(sql))
    eventually(lambda: statuses(sql)["CLAIMED"] == 0, seen=lambda: statuses(sql))
    assert {note.number for note in notes(log)} == {1}
    assert row(sql, "select status, attempts from horsies.tasks") == ("PENDING", 0)
    sql.execute("delete from horsies.maintenance_lease")
    eventually(lambda: statuses(sql) == {"COMPLETED": 2, "EXPIRED": 1}, seen=lambda: statuses(sql))
