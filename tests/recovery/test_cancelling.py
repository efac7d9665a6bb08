"""`handle.cancel()` in every state of a task, and `current_task()`: information and progress."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from horsies.tasks.control import CancelOutcome
from horsies.tasks.handle import TaskHandle
from horsies.tasks.ids import new_task_id
from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import insert_rows, settings
from tests.worker.steps import PATIENCE_MS, begun, statuses

STUBBORN = "tests.apps.stubborn:app"


def is_inside(handle: Any) -> bool:
    progress = handle.info().progress
    return progress is not None and progress["message"] == "inside"


def assert_cancelled(handle: Any) -> None:
    assert handle.get(PATIENCE_MS).err_value.error_code == "TASK_CANCELLED"
    info = handle.info()
    assert (info.status, info.error_code) == ("CANCELLED", "TASK_CANCELLED")


def test_a_pending_task_ends_at_once_and_never_runs(
    stubborn: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    handle = stubborn.app.tasks["quick"].send()
    assert handle.cancel() is CancelOutcome.CANCELLED
    assert_cancelled(handle)  # there is no worker to run it
    worker(STUBBORN)
    assert stubborn.app.tasks["quick"].send().get(PATIENCE_MS).ok_value == 1
    assert row(sql, "select attempts, claim_no from horsies.finished where status = 'CANCELLED'") == (0, 0)


def test_a_task_that_waits_for_its_retry_ends_at_once(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN)
    handle = stubborn.slow_retry.send("BUSY", 1)
    eventually(lambda: handle.info().attempts == 1)
    assert handle.cancel() is CancelOutcome.CANCELLED
    assert_cancelled(handle)


@pytest.fixture
def buffered(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    for name, value in settings(prefetch_buffer=4, claim_lease_ms=60_000).items():
        monkeypatch.setenv(name, value)
    module = load_fresh("stubborn")
    yield module
    module.app.close()


def test_a_claimed_task_that_has_not_begun_ends_at_once_and_never_runs(
    buffered: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    worker(STUBBORN)
    tasks, gate_file = buffered.app.tasks, tmp_path / "open"
    gate = tasks["gate"].send(str(gate_file))
    eventually(lambda: gate.status() == "RUNNING")
    note = tasks["overstay"].send(str(tmp_path / "note"))
    eventually(lambda: note.status() == "CLAIMED")
    assert note.cancel() is CancelOutcome.CANCELLED
    assert_cancelled(note)
    gate_file.touch()
    assert gate.get(PATIENCE_MS).ok_value == "through"
    assert tasks["quick"].send().get(PATIENCE_MS).ok_value == 1
    assert not (tmp_path / "note").exists()
    assert statuses(sql) == {"COMPLETED": 2, "CANCELLED": 1}


@pytest.mark.parametrize("name", ["tidy", "clean_up_async"])
@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_running_task_cleans_up_and_ends_as_cancelled(
    stubborn: Any, worker: StartWorker, tmp_path: Path, name: str, concurrency: int
) -> None:
    worker(STUBBORN, options=(f"--concurrency={concurrency}",))
    handle = stubborn.app.tasks[name].send(str(tmp_path / "note"))
    eventually(lambda: is_inside(handle))
    assert handle.cancel() is CancelOutcome.REQUESTED
    assert_cancelled(handle)
    assert (tmp_path / "note").read_text().endswith("Error True")  # current_task().cancelled
    assert stubborn.app.tasks["quick"].send().get(PATIENCE_MS).ok_value == 1


def test_a_task_that_ignores_the_cancellation_is_killed_after_its_grace_period(
    stubborn: Any, worker: StartWorker, tmp_path: Path
) -> None:
    worker(STUBBORN)
    handle = stubborn.ignore_stops.send(str(tmp_path / "begun"))
    pid = begun(tmp_path / "begun")
    assert handle.cancel() is CancelOutcome.REQUESTED
    assert_cancelled(handle)
    eventually(lambda: not psutil.pid_exists(pid))
    assert stubborn.app.tasks["quick"].send().get(PATIENCE_MS).ok_value == 1


@pytest.mark.promise("T1")
def test_a_cancelled_task_is_never_retried(
    stubborn: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Not even when its child dies first with an error that its policy lists."""
    worker(STUBBORN)
    (task_id,) = insert_rows(
        sql,
        "ignore_stops",
        [{"begun": str(tmp_path / "begun")}],
        retry_delays_ms="array[0]",
        retry_for="array['WORKER_CRASHED', 'TASK_CANCELLED']",
    )
    pid = begun(tmp_path / "begun")
    handle = TaskHandle(task_id, stubborn.ignore_stops.result, stubborn.app)
    sql.execute("update horsies.tasks set cancel_requested_at = now()")  # its worker has not read it yet
    psutil.Process(pid).kill()
    assert handle.get(PATIENCE_MS).is_err()
    assert row(sql, "select attempts from horsies.finished") == (1,)


def test_cancel_distinguishes_ended_and_unknown_tasks(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN)
    handle = stubborn.app.tasks["quick"].send()
    assert handle.get(PATIENCE_MS).ok_value == 1
    assert handle.cancel() is CancelOutcome.ALREADY_ENDED
    assert handle.status() == "COMPLETED"
    unknown = TaskHandle(new_task_id(), stubborn.overstay.result, stubborn.app)
    assert unknown.cancel() is CancelOutcome.NOT_FOUND


async def test_cancel_and_info_have_async_twins(stubborn: Any) -> None:
    handle = await stubborn.app.tasks["quick"].send_async()
    assert await handle.cancel_async() is CancelOutcome.CANCELLED
    assert (await handle.info_async()).status == await handle.status_async() == "CANCELLED"
    assert (await handle.get_async(PATIENCE_MS)).err_value.error_code == "TASK_CANCELLED"
    await stubborn.app.close_async()


def test_a_cancellation_without_a_notification_is_read_at_the_next_heartbeat(
    stubborn: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    worker(STUBBORN)
    handle = stubborn.app.tasks["dwell"].send()
    eventually(lambda: is_inside(handle))
    sql.execute("update horsies.tasks set cancel_requested_at = now()")  # and no notification
    assert_cancelled(handle)


def test_progress_is_visible_while_the_task_runs(stubborn: Any, worker: StartWorker, tmp_path: Path) -> None:
    worker(STUBBORN)
    gate_file = tmp_path / "open"
    handle = stubborn.app.tasks["report_and_wait"].send(str(gate_file))
    expected = {"fraction": 0.2, "message": "and now it takes long"}
    eventually(lambda: handle.info().progress == expected, seen=lambda: handle.info().progress)
    assert handle.status() == "RUNNING"
    gate_file.touch()
    handle.get(PATIENCE_MS)
    assert handle.info().progress == expected


def test_a_task_can_read_its_own_id_and_attempt(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN)
    handle = stubborn.app.tasks["myself"].send()
    assert handle.get(PATIENCE_MS).ok_value == [handle.task_id, "myself", "default", 1, None, "None", False]
