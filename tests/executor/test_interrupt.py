"""Soft stops: the exception is raised in the task that is to be stopped, wherever it runs, and in no other."""

import subprocess
import sys
from pathlib import Path

import pytest

from horsies.executor.protocol import NO_ASSIGNMENT, StopReason
from horsies.model.task import Claim
from horsies.worker.child import Child
from tests.fixtures.pools import FakeDispatcher, open_pool

RUNNERS = pytest.mark.parametrize("concurrency", [1, 10], ids=["sequential", "concurrent"])


async def send_and_interrupt(dispatcher: FakeDispatcher, name: str, reason: StopReason, **arguments: object) -> str:
    """Send a task, and interrupt it inside its own code."""
    task_id = dispatcher.send(name, timeout_ms=600_000, **arguments)
    await dispatcher.until(lambda: dispatcher.progress.get(task_id), f"{task_id} is inside its own code")
    child, assignment_no = dispatcher.begun[task_id]
    child.interrupt(assignment_no, reason)
    return task_id


@pytest.mark.parametrize("name", ["dwell", "dwell_async"])
async def test_a_time_out_ends_a_sleeping_task_at_once(name: str) -> None:
    async with open_pool() as dispatcher:
        task_id = await send_and_interrupt(dispatcher, name, "timeout")
        done, error = await dispatcher.ending(task_id), await dispatcher.error(task_id)
        assert (done.status, done.error_code) == ("FAILED", "TASK_TIMEOUT")
        assert "timeout_ms=600000" in error["message"]
        assert f"in {name}" in error["data"]["traceback"]  # where it was at the time
        assert await dispatcher.value("whoami") == dispatcher.done_by[task_id]  # the child lives


@pytest.mark.parametrize("name", ["dwell", "dwell_async"])
async def test_a_cancelled_task_ends_as_cancelled(name: str) -> None:
    async with open_pool() as dispatcher:
        task_id = await send_and_interrupt(dispatcher, name, "cancel")
        done = await dispatcher.ending(task_id)
        assert (done.status, done.error_code, done.wants_retry) == ("CANCELLED", "TASK_CANCELLED", False)
        assert await dispatcher.value("whoami") == dispatcher.done_by[task_id]


@pytest.mark.parametrize(
    ("reason", "seen"), [("timeout", "TaskTimeoutError False"), ("cancel", "TaskCancelledError True")]
)
async def test_a_task_can_catch_the_soft_stop_and_clean_up(tmp_path: Path, reason: StopReason, seen: str) -> None:
    cleaned = tmp_path / "cleaned"
    async with open_pool() as dispatcher:
        done = await dispatcher.ending(await send_and_interrupt(dispatcher, "clean_up", reason, path=str(cleaned)))
        assert cleaned.read_text() == seen
        assert done.error_code == ("TASK_TIMEOUT" if reason == "timeout" else "TASK_CANCELLED")


@RUNNERS
async def test_a_soft_stop_while_a_task_logs_is_raised_after_that(concurrency: int) -> None:
    """Handlers of `logging` report any error and go on, so it would be lost there."""
    async with open_pool(concurrency=concurrency) as dispatcher:
        done = await dispatcher.ending(await send_and_interrupt(dispatcher, "log_slowly", "cancel"))
        assert done.status == "CANCELLED"
        assert await dispatcher.value("whoami") == dispatcher.done_by["task-1"]  # the child lives


@RUNNERS
async def test_a_coroutine_is_stopped_as_asyncio_does_it(tmp_path: Path, concurrency: int) -> None:
    cleaned = tmp_path / "cleaned"
    async with open_pool(concurrency=concurrency) as dispatcher:
        done = await dispatcher.ending(
            await send_and_interrupt(dispatcher, "clean_up_async", "cancel", path=str(cleaned))
        )
        assert cleaned.read_text() == "CancelledError True"
        assert done.status == "CANCELLED"


async def test_a_clean_up_that_fails_is_a_cancellation_all_the_same() -> None:
    async with open_pool() as dispatcher:
        task_id = await send_and_interrupt(dispatcher, "fail_at_clean_up", "cancel")
        assert (await dispatcher.ending(task_id)).status == "CANCELLED"
        assert "the broom broke" in (await dispatcher.error(task_id))["data"]["traceback"]


@RUNNERS
async def test_a_cancelled_task_that_returns_keeps_its_result(concurrency: int) -> None:
    async with open_pool(concurrency=concurrency) as dispatcher:
        done = await dispatcher.ending(await send_and_interrupt(dispatcher, "shrug_async", "cancel"))
        assert (done.status, done.result) == ("COMPLETED", '"shrugged"')


@pytest.mark.parametrize("name", ["shrug", "shrug_async"])
async def test_what_a_task_returns_after_its_time_is_a_time_out(name: str) -> None:
    async with open_pool() as dispatcher:
        done = await dispatcher.ending(await send_and_interrupt(dispatcher, name, "timeout"))
        assert (done.status, done.error_code, done.result) == ("FAILED", "TASK_TIMEOUT", None)


async def test_a_time_out_outweighs_a_cancellation_before_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool() as dispatcher:
        task_id = dispatcher.send("shrug_and_wait", until=str(go))
        await dispatcher.until(lambda: dispatcher.progress.get(task_id))
        child, assignment_no = dispatcher.begun[task_id]
        child.interrupt(assignment_no, "cancel")
        await dispatcher.until(lambda: len(dispatcher.progress[task_id]) > 1, "it has swallowed the soft stop")
        child.interrupt(assignment_no, "timeout")
        child.recall(NO_ASSIGNMENT)
        await dispatcher.until(lambda: dispatcher.recalls_answered, "it has read the messages before")
        go.touch()
        assert (await dispatcher.ending(task_id)).error_code == "TASK_TIMEOUT"


async def test_a_program_that_a_task_waits_for_does_not_hold_up_the_soft_stop() -> None:
    async with open_pool() as dispatcher:
        assert (
            await dispatcher.ending(await send_and_interrupt(dispatcher, "run_program", "timeout"))
        ).error_code == "TASK_TIMEOUT"


@RUNNERS
async def test_a_task_that_is_busy_in_python_can_be_stopped(concurrency: int) -> None:
    async with open_pool(concurrency=concurrency) as dispatcher:
        assert (
            await dispatcher.ending(await send_and_interrupt(dispatcher, "spin", "timeout"))
        ).error_code == "TASK_TIMEOUT"
        assert await dispatcher.value("quick") == 1


async def test_a_time_out_wants_a_retry_when_the_policy_lists_its_exception() -> None:
    async with open_pool() as dispatcher:
        done = await dispatcher.ending(await send_and_interrupt(dispatcher, "retry_timeouts", "timeout"))
        assert (done.error_code, done.wants_retry) == ("TASK_TIMEOUT", True)


async def test_a_task_that_is_cancelled_before_it_began_never_begins(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(prefetch=2) as dispatcher:
        dispatcher.is_paused = True
        first, second = dispatcher.send("gate", until=str(go)), dispatcher.send("quick")
        dispatcher.is_paused = False
        dispatcher.assign_waiting()
        child, assignment_no = await dispatcher.beginning(first)
        child.interrupt(assignment_no + 1, "cancel")
        assert (await dispatcher.ending(second)).status == "CANCELLED"
        assert second not in dispatcher.begun
        go.touch()
        assert (await dispatcher.ending(first)).status == "COMPLETED"


@RUNNERS
@pytest.mark.parametrize("name", ["quick", "quick_raise", "quick_report"])
async def test_a_late_soft_stop_is_never_raised_in_another_task(concurrency: int, name: str) -> None:
    """Every other task is send_and_interrupt the moment it starts, when it is usually over already."""

    def interrupt_every_other(child: Child, assignment_no: int, claim: Claim) -> None:
        if int(claim.id.removeprefix("task-")) % 2:
            child.interrupt(assignment_no, "cancel")

    async with open_pool(concurrency=concurrency, prefetch=8) as dispatcher:
        child = await dispatcher.value("whoami")
        dispatcher.on_task_began = interrupt_every_other
        ids = [dispatcher.send(name) for _ in range(600)]
        await dispatcher.until(lambda: len(dispatcher.ended) == 601)
        usual = "FAILED" if name == "quick_raise" else "COMPLETED"
        spared = [task_id for task_id in ids if not int(task_id.removeprefix("task-")) % 2]
        assert {dispatcher.ended[task_id].status for task_id in spared} == {usual}
        assert {dispatcher.ended[task_id].status for task_id in ids} <= {usual, "CANCELLED"}
        assert await dispatcher.value("whoami") == child


TRACED = """
import sys
from horsies.executor.execute import RunningTask
from horsies.executor.interrupt import InterruptThread
from horsies.executor.protocol import Assignment

running = RunningTask(Assignment(1, "id", "name", "default", 1, None, "{}"))
thread = InterruptThread(running)

def function():
    if "stopped" in sys.argv:
        running.request_stop("cancel")
        thread.stop()
    return "returned"

def go_on():
    pass

print(thread.call(function))
sys.settrace(lambda *_: None)
go_on()
"""


@pytest.mark.parametrize(
    ("how", "outcome"), [("left alone", "('returned', None)"), ("stopped", "(None, TaskCancelledError())")]
)
def test_a_process_that_ran_a_task_outside_of_a_child_can_be_traced_afterwards(how: str, outcome: str) -> None:
    """As coverage does in the tests of an app. Python 3.11 entered an endless loop after a soft stop was withdrawn."""
    ran = subprocess.run([sys.executable, "-c", TRACED, how], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout.strip() == outcome
