"""A task that exceeds its timeout is stopped softly, killed after its grace period, and only its own child is replaced."""

from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import FORKED, insert_rows
from tests.worker.steps import PATIENCE_MS, begun, wait_until_ended

STUBBORN = "tests.apps.stubborn:app"


@pytest.mark.parametrize("name", ["overstay", "overstay_async"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_task_over_its_timeout_cleans_up_and_ends_as_task_timeout(
    stubborn: Any, worker: StartWorker, tmp_path: Path, name: str, concurrency: int
) -> None:
    worker(STUBBORN, options=(f"--concurrency={concurrency}",))
    before = stubborn.app.tasks["whoami"].send().get(PATIENCE_MS).ok_value
    handle = stubborn.app.tasks[name].send(str(tmp_path / "note"))
    error = handle.get(PATIENCE_MS).err_value
    assert error.error_code == "TASK_TIMEOUT"
    assert "timeout_ms=300" in error.message
    assert (tmp_path / "note").read_text() == "cleaned up"
    assert handle.status() == "FAILED"
    # The soft stop was enough, so its child continues.
    assert stubborn.app.tasks["whoami"].send().get(PATIENCE_MS).ok_value == before


def test_a_task_that_ignores_the_soft_stop_is_killed_and_only_its_child_is_replaced(
    stubborn: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker(STUBBORN, processes=2)
    gate_file = tmp_path / "open"
    gate = stubborn.app.tasks["gate"].send(str(gate_file))
    insert_rows(sql, "ignore_stops", [{"begun": str(tmp_path / "begun")}], timeout_ms=300)
    pid = begun(tmp_path / "begun")
    eventually(lambda: row(sql, "select count(*) from horsies.finished") == (1,))
    assert row(sql, "select status, error_code, attempts from horsies.finished") == ("FAILED", "TASK_TIMEOUT", 1)
    eventually(lambda: not psutil.pid_exists(pid))
    assert gate.status() == "RUNNING"
    assert stubborn.app.tasks["whoami"].send().get(PATIENCE_MS).ok_value != pid  # the killed child is replaced
    gate_file.touch()
    assert gate.get(PATIENCE_MS).ok_value == "through"
    assert gate.info().attempts == 1


@pytest.mark.promise("T1")
@pytest.mark.parametrize("ignores_stop", [False, True])
def test_a_timeout_that_the_policy_lists_is_retried(stubborn: Any, worker: StartWorker, *, ignores_stop: bool) -> None:
    worker(STUBBORN, options=FORKED)
    handle = stubborn.hurry_up.send(ignores_stop=ignores_stop)
    assert handle.get(PATIENCE_MS).ok_value == 2
    (past,) = handle.info().failed_attempts
    assert past.error_code == "TASK_TIMEOUT"


@pytest.mark.promise("X3", "X4")
def test_with_concurrency_a_task_that_ignores_the_soft_stop_is_abandoned(
    stubborn: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Its child cannot be killed while others run in it: it is ended in the database, the others continue, and the child exits after them."""
    worker(STUBBORN, options=("--concurrency=3",))
    gate_file = tmp_path / "open"
    gate = stubborn.app.tasks["gate_async"].send(str(gate_file))
    insert_rows(sql, "ignore_stops", [{"begun": str(tmp_path / "begun")}], timeout_ms=300)
    pid = begun(tmp_path / "begun")
    eventually(lambda: row(sql, "select count(*) from horsies.finished") == (1,))
    assert row(sql, "select error_code from horsies.finished") == ("TASK_TIMEOUT",)
    assert stubborn.app.tasks["whoami"].send().get(PATIENCE_MS).ok_value != pid
    assert psutil.pid_exists(pid)
    gate_file.touch()
    assert gate.get(PATIENCE_MS).ok_value == "through"
    eventually(lambda: not psutil.pid_exists(pid), what="the deserted child is killed")
    assert wait_until_ended(sql, 3) == {"COMPLETED": 2, "FAILED": 1}
