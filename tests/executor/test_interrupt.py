"""Soft stops: the exception reaches the task that it is meant for, wherever it runs, and never anybody else."""

import subprocess
import sys
from pathlib import Path

import pytest

from horsies.executor.protocol import ANY, Reason
from horsies.model.task import Claim
from horsies.worker.child import Child
from tests.fixtures.pools import FakeDispatcher, open_pool

WHERE = pytest.mark.parametrize("concurrency", [1, 10], ids=["alone", "in a crowd"])


async def interrupted(dispatcher: FakeDispatcher, name: str, reason: Reason, **arguments: object) -> str:
    """Begun, then asked to stop."""
    task_id = dispatcher.send(name, timeout_ms=600_000, **arguments)
    await dispatcher.until(lambda: dispatcher.progress.get(task_id), f"{task_id} is inside its own code")
    member, assignment_no = dispatcher.begun[task_id]
    member.interrupt(assignment_no, reason)
    return task_id


@pytest.mark.parametrize("name", ["dwell", "dwell_async"])
async def test_a_time_out_ends_a_sleeping_task_at_once(name: str) -> None:
    async with open_pool() as dispatcher:
        task_id = await interrupted(dispatcher, name, "timeout")
        done, error = await dispatcher.ending(task_id), await dispatcher.error(task_id)
        assert (done.status, done.error_code) == ("FAILED", "TASK_TIMEOUT")
        assert "timeout_ms=600000" in error["message"]
        assert f"in {name}" in error["data"]["traceback"]  # where it was at the time
        assert await dispatcher.value("whoami") == dispatcher.done_by[task_id]  # the child lives


@pytest.mark.parametrize("name", ["dwell", "dwell_async"])
async def test_a_cancelled_task_ends_as_cancelled(name: str) -> None:
    async with open_pool() as dispatcher:
        task_id = await interrupted(dispatcher, name, "cancel")
        done = await dispatcher.ending(task_id)
        assert (done.status, done.error_code, done.wants_retry) == ("CANCELLED", "TASK_CANCELLED", False)
        assert await dispatcher.value("whoami") == dispatcher.done_by[task_id]


@pytest.mark.parametrize(
    ("reason", "seen"), [("timeout", "TaskTimeoutError False"), ("cancel", "TaskCancelledError True")]
)
async def test_a_task_can_catch_the_soft_stop_and_clean_up(tmp_path: Path, reason: Reason, seen: str) -> None:
    swept = tmp_path / "swept"
    async with open_pool() as dispatcher:
        done = await dispatcher.ending(await interrupted(dispatcher, "clean_up", reason, path=str(swept)))
        assert swept.read_text() == seen
        assert done.error_code == ("TASK_TIMEOUT" if reason == "timeout" else "TASK_CANCELLED")


@WHERE
async def test_a_coroutine_is_stopped_as_asyncio_does_it(tmp_path: Path, concurrency: int) -> None:
    swept = tmp_path / "swept"
    async with open_pool(concurrency=concurrency) as dispatcher:
        done = await dispatcher.ending(await interrupted(dispatcher, "clean_up_async", "cancel", path=str(swept)))
        assert swept.read_text() == "CancelledError True"
        assert done.status == "CANCELLED"


async def test_a_clean_up_that_fails_is_a_cancellation_all_the_same() -> None:
    async with open_pool() as dispatcher:
        task_id = await interrupted(dispatcher, "fail_at_clean_up", "cancel")
        assert (await dispatcher.ending(task_id)).status == "CANCELLED"
        assert "the broom broke" in (await dispatcher.error(task_id))["data"]["traceback"]


@WHERE
async def test_a_cancelled_task_that_returns_keeps_its_result(concurrency: int) -> None:
    async with open_pool(concurrency=concurrency) as dispatcher:
        done = await dispatcher.ending(await interrupted(dispatcher, "shrug_async", "cancel"))
        assert (done.status, done.result) == ("COMPLETED", '"shrugged"')


@pytest.mark.parametrize("name", ["shrug", "shrug_async"])
async def test_what_a_task_returns_after_its_time_is_a_time_out(name: str) -> None:
    async with open_pool() as dispatcher:
        done = await dispatcher.ending(await interrupted(dispatcher, name, "timeout"))
        assert (done.status, done.error_code, done.result) == ("FAILED", "TASK_TIMEOUT", None)


async def test_a_time_out_outweighs_a_cancellation_before_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool() as dispatcher:
        task_id = dispatcher.send("shrug_and_wait", until=str(go))
        await dispatcher.until(lambda: dispatcher.progress.get(task_id))
        member, assignment_no = dispatcher.begun[task_id]
        member.interrupt(assignment_no, "cancel")
        await dispatcher.until(lambda: len(dispatcher.progress[task_id]) > 1, "it has swallowed it")
        member.interrupt(assignment_no, "timeout")
        member.recall(ANY)
        await dispatcher.until(lambda: dispatcher.recalls_answered, "it has read as far as here")
        go.touch()
        assert (await dispatcher.ending(task_id)).error_code == "TASK_TIMEOUT"


async def test_a_program_that_a_task_waits_for_does_not_hold_up_the_soft_stop() -> None:
    async with open_pool() as dispatcher:
        assert (
            await dispatcher.ending(await interrupted(dispatcher, "run_program", "timeout"))
        ).error_code == "TASK_TIMEOUT"


@WHERE
async def test_a_task_that_is_busy_in_python_can_be_stopped(concurrency: int) -> None:
    async with open_pool(concurrency=concurrency) as dispatcher:
        assert (await dispatcher.ending(await interrupted(dispatcher, "spin", "timeout"))).error_code == "TASK_TIMEOUT"
        assert await dispatcher.value("quick") == 1


async def test_a_time_out_wants_a_retry_when_the_policy_lists_its_exception() -> None:
    async with open_pool() as dispatcher:
        done = await dispatcher.ending(await interrupted(dispatcher, "retry_timeouts", "timeout"))
        assert (done.error_code, done.wants_retry) == ("TASK_TIMEOUT", True)


async def test_a_task_that_is_cancelled_before_it_began_never_begins(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(frame=2) as dispatcher:
        dispatcher.is_paused = True
        first, second = dispatcher.send("gate", until=str(go)), dispatcher.send("quick")
        dispatcher.is_paused = False
        dispatcher.assign_waiting()
        member, assignment_no = await dispatcher.beginning(first)
        member.interrupt(assignment_no + 1, "cancel")
        assert (await dispatcher.ending(second)).status == "CANCELLED"
        assert second not in dispatcher.begun
        go.touch()
        assert (await dispatcher.ending(first)).status == "COMPLETED"


@WHERE
@pytest.mark.parametrize("name", ["quick", "quick_raise", "quick_report"])
async def test_a_soft_stop_that_comes_late_never_strikes_another_task(concurrency: int, name: str) -> None:
    """Every other task is asked to stop the moment it begins, when it is mostly over already."""

    def ask_every_other(member: Child, assignment_no: int, claim: Claim) -> None:
        if int(claim.id.removeprefix("task-")) % 2:
            member.interrupt(assignment_no, "cancel")

    async with open_pool(concurrency=concurrency, frame=8) as dispatcher:
        child = await dispatcher.value("whoami")
        dispatcher.on_task_began = ask_every_other
        ids = [dispatcher.send(name) for _ in range(600)]
        await dispatcher.until(lambda: len(dispatcher.ended) == 601)
        usual = "FAILED" if name == "quick_raise" else "COMPLETED"
        spared = [task_id for task_id in ids if not int(task_id.removeprefix("task-")) % 2]
        assert {dispatcher.ended[task_id].status for task_id in spared} == {usual}
        assert {dispatcher.ended[task_id].status for task_id in ids} <= {usual, "CANCELLED"}
        assert await dispatcher.value("whoami") == child


TRACED = """
import sys
from horsies.executor.execute import begin
from horsies.executor.interrupt import OtherThread
from horsies.executor.protocol import Assignment

running = begin(Assignment(1, "id", "name", "default", 1, None, "{}"))
thread = OtherThread(running)

def function():
    if "stopped" in sys.argv:
        running.ask("cancel")
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
    """As the tests of an application are, by coverage. Python 3.11 went round for ever after a soft stop was withdrawn."""
    ran = subprocess.run([sys.executable, "-c", TRACED, how], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout.strip() == outcome
