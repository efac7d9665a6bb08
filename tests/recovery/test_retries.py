"""Retries with a real worker: when, how often, for which errors, and what is stored."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies import TaskResult
from horsies.tasks.handle import TaskHandle
from horsies.tasks.inspect import TaskInfo
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker
from tests.recovery.steps import FORKED, insert_rows, settings
from tests.worker.steps import PATIENCE_MS

STUBBORN = "tests.apps.stubborn:app"
SLACK = timedelta(seconds=3)  # for a busy machine; shorter than any poll interval


@pytest.fixture(autouse=True)
def _no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without polls, only timers can start retries on time."""
    for name, value in settings(resilience={"notify_poll_interval_ms": 300_000}).items():
        monkeypatch.setenv(name, value)


def info_of(handle: Any) -> TaskInfo:
    info = handle.info()
    assert info is not None
    return info


def pauses(info: TaskInfo) -> list[timedelta]:
    """Return the seconds from the end of each failed attempt to the start of the next, by the database's clock."""
    assert info.started_at is not None
    ends = [attempt.ended_at for attempt in info.failed_attempts]
    starts = [*(attempt.started_at for attempt in info.failed_attempts[1:]), info.started_at]
    return [start - end for end, start in zip(ends, starts, strict=True) if start is not None]


def assert_on_time(info: TaskInfo, *delays_s: float) -> None:
    found = pauses(info)
    assert len(found) == len(delays_s)
    for pause, delay_s in zip(found, delays_s, strict=True):
        assert timedelta(seconds=delay_s) <= pause < timedelta(seconds=delay_s) + SLACK


@pytest.mark.promise("T1")
@pytest.mark.parametrize("how", ["BUSY", "refused", "die"])
def test_listed_codes_exceptions_and_crashes_are_retried_on_time(stubborn: Any, worker: StartWorker, how: str) -> None:
    worker(STUBBORN, options=FORKED)
    handle = stubborn.fixed.send(how, 2)
    assert handle.get(PATIENCE_MS).ok_value == 3
    info = info_of(handle)
    assert info.attempts == 3
    assert_on_time(info, 0.3, 0.1)
    codes = {"BUSY": "BUSY", "refused": "UNHANDLED_ERROR", "die": "WORKER_CRASHED"}
    assert [(past.attempt, past.error_code) for past in info.failed_attempts] == [
        (1, codes[how]),
        (2, codes[how]),
    ]
    assert all(past.worker == info.worker for past in info.failed_attempts)
    error = info.failed_attempts[0].error
    assert error is not None
    assert error.error_code == codes[how]


@pytest.mark.promise("T1")
def test_an_exception_is_retried_by_the_code_it_is_mapped_to(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN, options=FORKED)
    retried, other = stubborn.mapped.send("refused", 1), stubborn.mapped.send("value", 1)
    assert retried.get(PATIENCE_MS).ok_value == 2
    assert [past.error_code for past in info_of(retried).failed_attempts] == ["BUSY"]
    assert other.get(PATIENCE_MS).err_value.error_code == "UNHANDLED_ERROR"
    assert info_of(other).attempts == 1


@pytest.mark.promise("T1")
def test_pauses_double_up_to_the_maximum(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN, options=FORKED)
    handle = stubborn.exponential.send("BUSY", 3)
    assert handle.get(PATIENCE_MS).ok_value == 4
    assert_on_time(info_of(handle), 0.1, 0.2, 0.3)


@pytest.mark.promise("T1")
def test_jitter_varies_the_pauses(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN, processes=2, options=FORKED)
    handles = [stubborn.jittered.send("BUSY", 1) for _ in range(8)]
    assert [handle.get(PATIENCE_MS).ok_value for handle in handles] == [2] * 8
    infos = [info_of(handle) for handle in handles]
    due = [info.enqueued_at - info.failed_attempts[0].ended_at for info in infos]
    assert all(timedelta(seconds=0.1) <= pause <= timedelta(seconds=0.3) for pause in due)
    assert len(set(due)) > 1


@pytest.mark.promise("T1", "X4")
def test_async_tasks_are_retried_too(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN, options=("--concurrency=5", *FORKED))
    handles = [stubborn.fixed_async.send(how, 1) for how in ("BUSY", "refused")]
    assert [handle.get(PATIENCE_MS).ok_value for handle in handles] == [2, 2]


@pytest.mark.promise("T1", "W9")
@pytest.mark.parametrize(("how", "code"), [("OTHER", "OTHER"), ("value", "UNHANDLED_ERROR"), ("die", "WORKER_CRASHED")])
def test_an_error_that_the_policy_does_not_list_is_not_retried(
    stubborn: Any, worker: StartWorker, how: str, code: str
) -> None:
    worker(STUBBORN, options=FORKED)
    handle = stubborn.busy_only.send(how, 1)
    assert handle.get(PATIENCE_MS).err_value.error_code == code
    info = info_of(handle)
    assert (info.attempts, info.failed_attempts, info.error_code) == (1, [], code)


@pytest.mark.promise("T1")
def test_after_the_last_retry_its_error_is_the_result(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN, options=FORKED)
    handle = stubborn.fixed.send("BUSY", 99)
    result: TaskResult[int, Any] = handle.get(PATIENCE_MS)
    assert result.err_value.error_code == "BUSY"
    info = info_of(handle)
    assert (info.attempts, len(info.failed_attempts)) == (3, 2)


@pytest.mark.promise("T1", "W9")
def test_a_task_that_kills_its_child_repeatedly_fails_after_its_retries(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN, options=FORKED)
    handle = stubborn.fixed.send("die", 99)
    assert handle.get(PATIENCE_MS).err_value.error_code == "WORKER_CRASHED"
    assert info_of(handle).attempts == 3
    assert stubborn.app.tasks["quick"].send().get(PATIENCE_MS).ok_value == 1


@pytest.mark.promise("T1")
def test_an_error_may_set_the_time_of_its_retry(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN, options=FORKED)
    handle = stubborn.slow_retry.send("BUSY", 1, 0.2)
    assert handle.get(PATIENCE_MS).ok_value == 2
    assert_on_time(info_of(handle), 0.2)


@pytest.mark.promise("T1")
def test_only_the_last_twenty_failures_are_kept(stubborn: Any, worker: StartWorker) -> None:
    worker(STUBBORN, options=FORKED)
    handle = stubborn.many.send("BUSY", 25)
    assert handle.get(PATIENCE_MS).ok_value == 26
    assert [past.attempt for past in info_of(handle).failed_attempts] == list(range(6, 26))


@pytest.mark.promise("T1")
def test_a_task_is_not_retried_after_its_good_until(
    stubborn: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    """The retry would be due after its `good_until`, so the failure is final."""
    (task_id,) = insert_rows(
        sql,
        "fixed",
        [{"how": "BUSY", "failures": 1}],
        good_until="now() + interval '20 s'",
        retry_delays_ms="array[60000]",
        retry_for="array['BUSY']",
    )
    worker(STUBBORN, options=FORKED)
    result = TaskHandle(task_id, stubborn.fixed.result, stubborn.app).get(PATIENCE_MS)
    assert result.unwrap_err().error_code == "BUSY"
    assert row(sql, "select status, attempts from horsies.finished") == ("FAILED", 1)


@pytest.mark.promise("T1")
def test_a_waiting_retry_is_pending_and_shows_its_failed_attempts(
    stubborn: Any, worker: StartWorker, sql: psycopg.Connection
) -> None:
    worker(STUBBORN, options=FORKED)
    handle = stubborn.slow_retry.send("BUSY", 1)
    eventually(lambda: info_of(handle).attempts == 1)
    info = info_of(handle)
    assert (info.status, info.worker, info.started_at) == ("PENDING", None, None)
    assert info.failed_attempts[0].error_code == "BUSY"


@pytest.mark.promise("T1")
def test_another_worker_runs_the_retry_when_the_first_has_exited(stubborn: Any, worker: StartWorker) -> None:
    first = worker(STUBBORN, options=FORKED)
    handle = stubborn.slow_retry.send("BUSY", 1, 3.0)
    eventually(lambda: info_of(handle).attempts == 1)
    assert first.terminate() == 0
    worker(STUBBORN, options=FORKED)
    assert handle.get(PATIENCE_MS).ok_value == 2
    assert_on_time(info_of(handle), 3.0)
