"""Many tasks at a time in one child: the concurrent runner."""

from pathlib import Path

import pytest

from horsies.executor.protocol import NO_ASSIGNMENT
from tests.fixtures.pools import open_pool


@pytest.mark.promise("X1", "X2")
async def test_thousands_of_coroutines_wait_at_the_same_time() -> None:
    async with open_pool(concurrency=3_000) as dispatcher:
        for _ in range(2_999):
            dispatcher.send("wait_for_release")
        await dispatcher.until(lambda: len(dispatcher.begun) == 2_999)
        assert not dispatcher.ended
        dispatcher.send("release")
        await dispatcher.until(lambda: len(dispatcher.ended) == 3_000)
        assert {done.status for done in dispatcher.ended.values()} == {"COMPLETED"}
        assert len(set(dispatcher.done_by.values())) == 1


@pytest.mark.promise("X2")
async def test_no_more_than_the_concurrency_run_at_once(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=3, prefetch=10) as dispatcher:  # ten at hand, three at once
        for number in range(10):
            dispatcher.send("gate_async" if number % 2 else "gate", until=str(go))
        await dispatcher.until(lambda: len(dispatcher.begun) == 3)
        (child,) = dispatcher.children
        assert child.load == 10
        go.touch()
        await dispatcher.until(lambda: len(dispatcher.ended) == 10)
        assert dispatcher.most_at_once == 3


@pytest.mark.promise("X1")
async def test_functions_run_on_threads_beside_the_coroutines(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=4) as dispatcher:
        held = [dispatcher.send("gate_async", until=str(go)), dispatcher.send("gate", until=str(go))]
        thread = await dispatcher.value("run_loop")  # asyncio.run() works in it, while our own loop runs
        assert thread.startswith("horsies-task")
        go.touch()
        for task_id in held:
            assert (await dispatcher.ending(task_id)).status == "COMPLETED"


@pytest.mark.promise("X3")
async def test_a_task_that_fails_does_not_affect_the_others(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=10) as dispatcher:
        others = [dispatcher.send(name, until=str(go)) for name in ("gate", "gate_async")]
        for name in ("quick_raise", "no such task"):
            assert (await dispatcher.ending(dispatcher.send(name))).status == "FAILED"
        assert (
            await dispatcher.ending(dispatcher.send("nap", seconds="long"))
        ).error_code == "WORKER_SERIALIZATION_ERROR"
        go.touch()
        for task_id in others:
            assert (await dispatcher.ending(task_id)).status == "COMPLETED"


async def test_pending_tasks_of_a_concurrent_child_can_be_recalled(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=2, prefetch=5) as dispatcher:
        ids = [dispatcher.send("gate_async", until=str(go)) for _ in range(5)]
        await dispatcher.until(lambda: len(dispatcher.begun) == 2)
        (child,) = dispatcher.children
        dispatcher.is_paused = True
        child.recall(NO_ASSIGNMENT)
        assert not child.budget_left
        await dispatcher.until(lambda: len(dispatcher.returned) == 3)
        assert set(dispatcher.returned) == set(ids) - set(dispatcher.begun)
        go.touch()
        await dispatcher.until(lambda: len(dispatcher.ended) == 2)
        assert child.budget_left


@pytest.mark.promise("A8", "W9")
async def test_all_running_tasks_of_a_concurrent_child_crash_with_it(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=3, prefetch=5) as dispatcher:
        ids = [dispatcher.send("gate_async", until=str(go)) for _ in range(2)]
        ids.append(dispatcher.send("gate", until=str(go)))
        unbegun = [dispatcher.send("gate_async", until=str(go)) for _ in range(2)]
        await dispatcher.until(lambda: len(dispatcher.begun) == 3)
        dispatcher.is_paused = True
        dispatcher.children[0].kill()
        for task_id in ids:
            error = await dispatcher.crash(task_id)
            assert error.error_code == "WORKER_CRASHED"
            assert "SIGKILL" in error.message
        assert dispatcher.returned == unbegun


async def test_an_abandoned_task_is_forgotten_and_its_child_replaced(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(concurrency=4) as dispatcher:
        stuck, other = dispatcher.send("sleep", seconds=600), dispatcher.send("gate_async", until=str(go))
        child, assignment_no = await dispatcher.beginning(stuck)
        await dispatcher.beginning(other)
        child.set_kill_reason(assignment_no, "TASK_TIMEOUT", "it took too long")
        child.interrupt(assignment_no, "timeout")  # a thread cannot be woken from its sleep
        claim, verdict = child.abandon(assignment_no)
        assert (claim.id, verdict.error_code, verdict.message) == (stuck, "TASK_TIMEOUT", "it took too long")
        assert (child.load, child.budget_left > 0, child.recycling.is_retiring) == (1, False, True)
        fresh = await dispatcher.value("whoami")  # a replacement has the free slots
        assert fresh != child.pid
        assert child in dispatcher.children  # it has not exited: a task runs in it
        go.touch()
        assert (await dispatcher.ending(other)).status == "COMPLETED"
        await dispatcher.until(lambda: child not in dispatcher.children)
        assert stuck not in dispatcher.ended
        assert stuck not in dispatcher.crashed


async def test_the_late_ending_of_an_abandoned_task_is_ignored(tmp_path: Path) -> None:
    late, go = tmp_path / "late", tmp_path / "go"
    async with open_pool(concurrency=4) as dispatcher:
        slow, other = dispatcher.send("gate", until=str(late)), dispatcher.send("gate_async", until=str(go))
        child, assignment_no = await dispatcher.beginning(slow)
        await dispatcher.beginning(other)
        child.abandon(assignment_no)
        late.touch()
        go.touch()
        assert (await dispatcher.ending(other)).status == "COMPLETED"
        await dispatcher.until(lambda: child not in dispatcher.children)
        assert slow not in dispatcher.ended
