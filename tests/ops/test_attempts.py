"""The history of a task: each attempt with its outcome, its worker and the child that ran it."""

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.ops.api import TaskView
from horsies.tasks.attempts import Attempt, AttemptOutcome, get_attempts
from horsies.tasks.finish import finish_tasks
from horsies.testing import drain, open_sandbox
from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, claim, completed, do, failed, send_new
from tests.fixtures.workers import StartWorker
from tests.testing import shop
from tests.worker.steps import PATIENCE_MS

RECORDED = "tests.apps.recorded:app"
A_TIME = "2026-11-19T01:02:03+00:00"


@pytest.fixture
def recorded(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("recorded")
    yield module
    module.app.close()


def view_of(recorded: Any, handle: Any) -> TaskView:
    view = recorded.app.ops.show_task(handle.task_id)
    assert view is not None
    return view


def history(broker: PostgresBroker, task_id: str) -> Sequence[Attempt]:
    found = broker.run(lambda: get_attempts(task_id))
    assert found is not None
    return found[0]


def outcomes(attempts: Sequence[Attempt]) -> list[tuple[int, str, str | None]]:
    return [(attempt.number, attempt.outcome.value, attempt.error_code) for attempt in attempts]


def test_every_attempt_is_listed_with_its_outcome_worker_and_child(recorded: Any, worker: StartWorker) -> None:
    running = worker(RECORDED)
    (first_child,) = [child.pid for child in running.children()]
    handle = recorded.act.send(["fail", "raise", "die", "succeed"], "")
    last_child = handle.get(PATIENCE_MS).ok_value
    attempts = view_of(recorded, handle).attempts
    assert outcomes(attempts) == [
        (1, "FAILED", "FAULTY"),
        (2, "FAILED", "UNHANDLED_ERROR"),
        (3, "CRASHED", "WORKER_CRASHED"),
        (4, "COMPLETED", None),
    ]
    assert [attempt.child_pid for attempt in attempts] == [first_child, first_child, first_child, last_child]
    assert {attempt.worker for attempt in attempts} == {recorded.app.ops.list_workers()[0].id}
    assert [attempt.message for attempt in attempts[:2]] == ["the first line", "ValueError: no such thing"]
    error = attempts[0].error
    assert error is not None
    assert (error.message, error.data) == ("the first line\nthe second", {"a": 1})
    for attempt in attempts:
        assert attempt.started_at is not None
        assert attempt.ended_at is not None
        assert attempt.duration_s == (attempt.ended_at - attempt.started_at).total_seconds()
    claims = [attempt.claim_no or 0 for attempt in attempts]
    assert claims == sorted(set(claims))


def test_timeouts_are_distinguished_from_other_failures(recorded: Any, worker: StartWorker) -> None:
    worker(RECORDED)
    handle = recorded.hurry.send(["sleep", "succeed"])
    handle.get(PATIENCE_MS)
    assert outcomes(view_of(recorded, handle).attempts) == [(1, "TIMED_OUT", "TASK_TIMEOUT"), (2, "COMPLETED", None)]


def test_a_running_attempt_shows_its_child_after_a_heartbeat(
    recorded: Any, worker: StartWorker, tmp_path: Path
) -> None:
    running = worker(RECORDED)
    handle = recorded.once.send("gate", str(tmp_path))
    eventually((tmp_path / "begun").exists, what="the task has begun")
    recorded.app.ops.request_heartbeats([recorded.app.ops.list_workers()[0].id])
    (child,) = [child.pid for child in running.children()]

    def shows_child() -> bool:
        (attempt,) = view_of(recorded, handle).attempts
        assert (attempt.number, attempt.outcome, attempt.ended_at) == (1, AttemptOutcome.RUNNING, None)
        return attempt.child_pid == child

    eventually(shows_child, what="the attempt shows its child")
    (tmp_path / "open").touch()
    assert handle.get(PATIENCE_MS).is_ok()
    assert [attempt.child_pid for attempt in view_of(recorded, handle).attempts] == [child]


def test_cancelled_and_interrupted_attempts_are_kept(recorded: Any, worker: StartWorker, tmp_path: Path) -> None:
    """The interrupted one does not count: the next has the same number."""
    first = worker(RECORDED, options=("--shutdown-timeout=0",))
    handle = recorded.act.send(["gate", "succeed"], str(tmp_path))
    eventually((tmp_path / "begun").exists, what="the task has begun")
    assert first.terminate() == 3
    (interrupted,) = view_of(recorded, handle).attempts
    assert outcomes([interrupted]) == [(1, "INTERRUPTED", "INTERRUPTED")]
    assert interrupted.child_pid is not None
    assert interrupted.message == "its worker was stopped while it ran"
    assert list(handle.info().failed_attempts) == []
    (tmp_path / "begun").unlink()
    worker(RECORDED)
    eventually((tmp_path / "begun").exists, what="the task has begun again")
    handle.cancel()
    assert handle.get(PATIENCE_MS).err_value.error_code == "TASK_CANCELLED"
    attempts = view_of(recorded, handle).attempts
    assert outcomes(attempts) == [(1, "INTERRUPTED", "INTERRUPTED"), (1, "CANCELLED", "TASK_CANCELLED")]
    assert attempts[0].worker != attempts[1].worker
    assert attempts[0].claim_no != attempts[1].claim_no


def test_the_attempt_of_a_dead_worker_has_crashed(recorded: Any, worker: StartWorker, tmp_path: Path) -> None:
    first = worker(RECORDED)
    handle = recorded.once.send("gate", str(tmp_path))
    eventually((tmp_path / "begun").exists, what="the task has begun")
    dead = recorded.app.ops.list_workers()[0].id
    first.kill()
    worker(RECORDED)
    assert handle.get(60_000).err_value.error_code == "WORKER_CRASHED"
    (attempt,) = view_of(recorded, handle).attempts
    assert (attempt.outcome, attempt.worker) == (AttemptOutcome.CRASHED, dead)
    assert dead in (attempt.message or "")


def test_a_task_that_waits_or_ended_without_a_start_has_no_attempt(recorded: Any) -> None:
    handle = recorded.once.send("succeed", "")
    assert view_of(recorded, handle).attempts == []
    handle.cancel()
    assert view_of(recorded, handle).info.status == "CANCELLED"
    assert view_of(recorded, handle).attempts == []
    assert recorded.app.ops.show_task("00000000-0000-4000-8000-000000000000") is None


def test_a_forced_retry_keeps_the_attempt_that_had_succeeded(recorded: Any, broker: PostgresBroker) -> None:
    (task,) = send_new(broker)
    (held,) = claim(broker)
    do(broker, finish_tasks(ME, [completed(held)._replace(child_pid=42)]))
    recorded.app.ops.retry_tasks([task.id], force=True)
    (again,) = claim(broker)
    do(broker, finish_tasks(ME, [failed(again)]))
    attempts = history(broker, task.id)
    assert outcomes(attempts) == [(1, "COMPLETED", None), (2, "FAILED", "BROKEN")]
    assert [attempt.child_pid for attempt in attempts] == [42, None]
    assert recorded.app.handle(task.id).info().failed_attempts == []


@pytest.mark.parametrize(
    "entry",
    [
        "1",
        "null",
        '"text"',
        "[]",
        "{}",
        '{"attempt": "x", "error_code": 7, "error": 1, "worker": [], "started_at": 3, "ended_at": {}}',
        '{"attempt": true, "error_code": null, "error": null, "worker": 9, "started_at": "infinity", "ended_at": "x"}',
        '{"attempt": 1e300, "error_code": "X", "error": {"message": 3}, "worker": "w", "started_at": null, "ended_at": "2026-01-01"}',
        '{"attempt": 1, "error_code": "\\u0000", "error": "\\ud800", "worker": "\\u0000", "started_at": null, "ended_at": null}',
    ],
)  # fmt: skip
def test_what_other_software_has_written_is_shown_as_far_as_it_makes_sense(
    broker: PostgresBroker, sql: psycopg.Connection, entry: str
) -> None:
    (task,) = send_new(broker)
    sql.execute("update horsies.tasks set failed_attempts = array[%s::json, null::json, %s::json]", [entry, A_GOOD_ONE])
    found = history(broker, task.id)
    assert [attempt.number for attempt in found][1:] == [2, 3]
    assert found[0].ended_at is None or found[0].ended_at.tzinfo is not None
    assert (found[2].outcome, found[2].child_pid, found[2].error_code) == (AttemptOutcome.FAILED, None, "BUSY")


A_GOOD_ONE = (
    '{"attempt": 3, "error_code": "BUSY", "error": {"error_code": "BUSY", "message": "m", "data": null}, '
    f'"worker": null, "started_at": "{A_TIME}", "ended_at": "{A_TIME}"}}'
)


def test_a_row_with_times_that_cannot_be_right_is_shown(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    (task,) = send_new(broker)
    claim(broker)
    sql.execute(
        "update horsies.tasks set started_at = 'infinity', failed_attempts = array[array['{}'], array['1']]::json[]"
    )
    *_, last = history(broker, task.id)
    assert last.outcome is AttemptOutcome.RUNNING


def test_a_drain_records_this_process(database: str) -> None:
    with open_sandbox(shop.app, database):
        handle = shop.note.send("hello")
        drain()
        view = shop.app.ops.show_task(handle.task_id)
    assert view is not None
    assert [attempt.child_pid for attempt in view.attempts] == [os.getpid()]
