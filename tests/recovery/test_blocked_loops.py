"""A coroutine blocks the event loop of its child: the other tasks in it end by their policy, and the worker continues."""

from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker, Worker
from tests.recovery.steps import insert_rows
from tests.worker.steps import PATIENCE_MS, begun, wait_until_ended

STUBBORN = "tests.apps.stubborn:app"


class Blocked:
    """A child with five slots, one of which runs a coroutine that never awaits."""

    def __init__(self, stubborn: Any, running: Worker, sql: psycopg.Connection, folder: Path) -> None:
        self.stubborn, self.running, self.sql, self.folder = stubborn, running, sql, folder
        self.gate = folder / "gate"
        self.pid = 0

    def run_sibling(self, name: str = "gate_async", **columns: str) -> str:
        """Start a task that ends when the gate opens, unless the loop is blocked. It runs when this returns."""
        (task_id,) = insert_rows(self.sql, name, [{"until": str(self.gate)}], **columns)
        eventually(lambda: self.status(task_id) == "RUNNING")
        return task_id

    def block(self, **columns: str) -> str:
        args = {"begun": str(self.folder / "begun"), "until": str(self.folder / "never")}
        (task_id,) = insert_rows(self.sql, "block_loop", [args], **columns)
        self.pid = begun(self.folder / "begun")
        return task_id

    def status(self, task_id: str) -> str:
        return str(row(self.sql, "select status from horsies.all_tasks where id = %s", task_id)[0])

    def error(self, task_id: str) -> Any:
        ended = "select error_code, error->>'message' from horsies.finished where id = %s"
        eventually(lambda: column(self.sql, "select 1 from horsies.finished where id = %s", task_id), 20.0)
        return row(self.sql, ended, task_id)

    def wait_until_replaced(self) -> None:
        eventually(lambda: not psutil.pid_exists(self.pid), 20.0, what="the blocked child is gone")
        assert self.stubborn.app.tasks["whoami"].send().get(PATIENCE_MS).ok_value != self.pid


@pytest.fixture
def blocked(stubborn: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path) -> Blocked:
    return Blocked(stubborn, worker(STUBBORN, options=("--concurrency=5",)), sql, tmp_path)


@pytest.mark.promise("X3", "X4", "W9")
def test_the_siblings_of_a_blocking_coroutine_end_by_their_policy(blocked: Blocked) -> None:
    siblings = [blocked.run_sibling(name) for name in ("gate_async", "gate")]
    retried = blocked.run_sibling(retry_delays_ms="array[50]", retry_for="array['WORKER_CRASHED']")
    blocker = blocked.block(timeout_ms="300")
    blocked.gate.touch()  # from now on all of them could end if the loop ran
    assert blocked.error(blocker)[0] == "TASK_TIMEOUT"
    for sibling in siblings:
        code, message = blocked.error(sibling)
        assert code == "WORKER_CRASHED"
        assert message.startswith("another task of the same child process")
        assert "blocked its event loop" in message
    blocked.wait_until_replaced()
    eventually(lambda: blocked.status(retried) == "COMPLETED", 20.0)
    blocked.running.wait_for_log(f"child {blocked.pid} is killed: its event loop is blocked; it runs gate, gate_async")
    assert blocked.running.terminate() == 0


@pytest.mark.promise("W9")
def test_a_task_that_waits_in_a_blocked_child_is_released_uncounted(blocked: Blocked) -> None:
    """It was assigned to the child but has not begun. Without a timeout the child is not killed, but logged and assigned nothing more."""
    blocked.run_sibling()
    blocker = blocked.block()
    waiting = blocked.stubborn.app.tasks["whoami"].send()
    eventually(lambda: waiting.status() == "RUNNING")
    line = f"event loop of child {blocked.pid} has not run for .* a coroutine blocks it; it runs block_loop, gate_async"
    blocked.running.wait_for_log(line)
    eventually(lambda: waiting.status() == "PENDING")
    assert blocked.status(blocker) == "RUNNING"
    (blocked.folder / "never").touch()  # unblocks the loop; the sibling does not end yet
    assert waiting.get(PATIENCE_MS).ok_value == blocked.pid
    assert waiting.info().attempts == 1
    eventually(lambda: blocked.status(blocker) == "COMPLETED")
    blocked.gate.touch()


@pytest.mark.promise("X4")
@pytest.mark.parametrize("which", ["the blocker", "a sibling"])
def test_cancelling_works_in_a_blocked_child(blocked: Blocked, which: str) -> None:
    sibling = blocked.run_sibling()
    blocker = blocked.block()
    cancelled, other = (blocker, sibling) if which == "the blocker" else (sibling, blocker)
    blocked.stubborn.app.handle(cancelled).cancel()
    assert blocked.error(cancelled)[0] == "TASK_CANCELLED"
    code, message = blocked.error(other)
    assert code == "WORKER_CRASHED"
    assert "blocked" in message
    assert message.startswith("it blocked" if other == blocker else "another task")
    blocked.wait_until_replaced()


@pytest.mark.promise("W10", "X4")
def test_a_worker_with_a_blocked_child_stops_after_its_shutdown_timeout(
    stubborn: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(STUBBORN, options=("--concurrency=5", "--shutdown-timeout=1"))
    blocked = Blocked(stubborn, running, sql, tmp_path)
    ids = [blocked.run_sibling(), blocked.block()]
    assert running.terminate() == 3
    assert [blocked.error(task_id)[0] for task_id in ids] == ["INTERRUPTED"] * 2


@pytest.mark.promise("X3", "X4")
def test_an_abandoned_thread_does_not_end_the_child_of_the_others(blocked: Blocked) -> None:
    """The thread does not stop, but the event loop runs: the other tasks continue in the same child."""
    sibling = blocked.run_sibling()
    insert_rows(blocked.sql, "ignore_stops", [{"begun": str(blocked.folder / "ignore_stops")}], timeout_ms=300)
    pid = begun(blocked.folder / "ignore_stops")
    eventually(lambda: column(blocked.sql, "select error_code from horsies.finished") == ["TASK_TIMEOUT"])
    blocked.block(timeout_ms="300")  # in the other child, whose loop is checked later than that of the first
    blocked.wait_until_replaced()
    assert psutil.pid_exists(pid)
    blocked.gate.touch()
    eventually(lambda: blocked.status(sibling) == "COMPLETED")
    eventually(lambda: not psutil.pid_exists(pid))
    wait_until_ended(blocked.sql, 4)
