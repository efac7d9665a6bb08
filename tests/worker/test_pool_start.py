"""Children start, or the worker reports why they do not; only dead children are replaced."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import psutil
import pytest

from horsies.worker.spawn import watch_boot
from horsies.worker.supervisor import ChildRefused, PoolTimings
from tests.fixtures.eventually import eventually
from tests.fixtures.exhaustion import no_free_descriptor
from tests.fixtures.pools import open_pool

STARTED = pytest.mark.parametrize("max_tasks", [None, 100], ids=["forked", "spawned"])
SHORT_BOOT = PoolTimings(boot_s=6.0)  # enough to get to where it hangs, on a busy machine


@STARTED
async def test_a_child_that_hangs_in_an_import_is_killed_and_the_import_is_named(max_tasks: int | None) -> None:
    expected = r"not ready within 6 s: .*importing tests\.apps\.paces"
    with pytest.RaisesGroup(pytest.RaisesExc(ChildRefused, match=expected)):
        async with open_pool(max_tasks=max_tasks, env={"PACES_IMPORT": "hang"}, timings=SHORT_BOOT):
            pytest.fail("it has started")


class Hanging:
    """A process that hangs in an import."""

    pid = 4711
    current_step = "importing shop.tasks"
    start_error: str | None = None

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True


async def test_a_slow_start_is_logged_long_before_the_child_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    hanging = Hanging()
    booted = asyncio.create_task(watch_boot(hanging, timeout_s=60, warn_after_s=0.01))
    with caplog.at_level(logging.WARNING, "horsies.worker"):
        await asyncio.to_thread(eventually, lambda: "importing shop.tasks" in caplog.text, what="it is logged")
    assert not hanging.is_killed
    hanging.ready.set()
    await booted
    assert hanging.start_error is None


@STARTED
async def test_a_child_that_hangs_in_a_start_hook_is_killed_and_the_hook_is_named(max_tasks: int | None) -> None:
    expected = r"not ready within 6 s: it was running hook warm_up"
    with pytest.RaisesGroup(pytest.RaisesExc(ChildRefused, match=expected)):
        async with open_pool(max_tasks=max_tasks, env={"PACES_HOOK": "hang"}, timings=SHORT_BOOT):
            pytest.fail("it has started")


@STARTED
async def test_a_child_that_dies_at_its_start_is_reported_with_what_it_did(max_tasks: int | None) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(ChildRefused, match=r"was killed by SIGKILL while it was running hook warm_up")
    ):
        async with open_pool(max_tasks=max_tasks, env={"PACES_HOOK": "kill"}):
            pytest.fail("it has started")


@STARTED
@pytest.mark.parametrize(
    ("app", "imports", "message"),
    [
        ("tests.apps.nowhere:app", [], "there is no module 'tests.apps.nowhere'"),
        ("tests.apps.paces:missing", [], "has no attribute 'missing'"),
        ("tests.apps.paces:app", ["tests.apps.nowhere"], "cannot import task module 'tests.apps.nowhere'"),
    ],
)
async def test_an_app_that_cannot_be_loaded_is_refused(
    max_tasks: int | None, app: str, imports: list[str], message: str
) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(ChildRefused, match=message)):
        async with open_pool(app, max_tasks=max_tasks, imports=imports):
            pytest.fail("it has started")


@STARTED
@pytest.mark.promise("A8", "W8", "W9")
@pytest.mark.parametrize(("name", "cause"), [("exit_now", "exited with code 3"), ("die", "was killed by SIGKILL")])
async def test_a_dead_child_is_replaced_alone(max_tasks: int | None, name: str, cause: str) -> None:
    async with open_pool(processes=2, max_tasks=max_tasks) as dispatcher:
        before = {pool_child.pid for pool_child in dispatcher.children}
        task_id = dispatcher.send(name)
        error = await dispatcher.crash(task_id)
        assert error.error_code == "WORKER_CRASHED"
        assert cause in error.message
        await dispatcher.until(lambda: len(dispatcher.open_children()) == 2, "another has taken its place")
        after = {pool_child.pid for pool_child in dispatcher.children}
        assert before - after == {dispatcher.done_by[task_id]}


async def test_a_worker_without_a_free_descriptor_goes_on_and_replaces_the_child_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_pool(processes=2, timings=PoolTimings(pause_s=0.1)) as dispatcher:
        child = dispatcher.children[0]
        with no_free_descriptor():
            child.kill()
            async with asyncio.timeout(20):
                while "Too many open files" not in caplog.text:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
        await dispatcher.until(
            lambda: len(dispatcher.warm()) == 2 and child not in dispatcher.children, "there are two again"
        )


@STARTED
async def test_a_task_with_a_kill_reason_ends_with_it_when_its_child_is_killed(
    max_tasks: int | None, tmp_path: Path
) -> None:
    async with open_pool(max_tasks=max_tasks, prefetch=2) as dispatcher:
        dispatcher.is_paused = True
        marked, behind = dispatcher.send("gate", until=str(tmp_path / "go")), dispatcher.send("quick")
        dispatcher.is_paused = False
        dispatcher.assign_waiting()
        pool_child, assignment_no = await dispatcher.beginning(marked)
        pool_child.set_kill_reason(assignment_no, "TASK_TIMEOUT", "it did not stop")
        pool_child.kill()
        error = await dispatcher.crash(marked)
        assert (error.error_code, error.message) == ("TASK_TIMEOUT", "it did not stop")
        assert (await dispatcher.ending(behind)).status == "COMPLETED"
        assert dispatcher.returned == [behind]  # it had not begun


async def test_a_kill_reason_is_void_when_the_task_ends_on_its_own(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool() as dispatcher:
        task_id = dispatcher.send("gate", until=str(go))
        pool_child, assignment_no = await dispatcher.beginning(task_id)
        pool_child.set_kill_reason(assignment_no, "TASK_TIMEOUT", "it did not stop")
        go.touch()
        assert (await dispatcher.ending(task_id)).status == "COMPLETED"
        pool_child.kill()
        await dispatcher.until(lambda: pool_child not in dispatcher.children)
        assert dispatcher.crashed == {}


@pytest.mark.promise("C1")
@STARTED
async def test_no_more_tasks_run_at_once_than_there_are_processes(max_tasks: int | None) -> None:
    async with open_pool(processes=2, max_tasks=max_tasks) as dispatcher:
        for _ in range(20):
            dispatcher.send("sleep", seconds=0.01)
        await dispatcher.until(lambda: len(dispatcher.ended) == 20)
        assert dispatcher.most_at_once == 2


async def test_the_title_of_a_child_says_what_it_does(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool() as dispatcher:
        (child,) = (psutil.Process(pool_child.pid) for pool_child in dispatcher.children)

        def title() -> str:
            return Path(f"/proc/{child.pid}/comm").read_text().strip()

        async def shows(words: str) -> None:
            async with asyncio.timeout(5):
                while title() != words:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.01)

        await shows("horsies: idle")
        task_id = dispatcher.send("gate", until=str(go))
        await dispatcher.beginning(task_id)
        assert title() == "horsies: gate"
        go.touch()
        await dispatcher.ending(task_id)
        await shows("horsies: idle")


@STARTED
async def test_a_child_that_hangs_while_it_leaves_is_killed(
    max_tasks: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_pool(max_tasks=max_tasks, timings=PoolTimings(leave_s=0.5)) as dispatcher:
        os.kill(dispatcher.children[0].pid, signal.SIGSTOP)
    assert "has not left within 0.5 s" in caplog.text


@STARTED
async def test_a_thread_that_outlives_its_task_does_not_keep_the_child_alive(max_tasks: int | None) -> None:
    async with open_pool(max_tasks=max_tasks) as dispatcher:
        await dispatcher.value("leave_a_thread")
        (child,) = (psutil.Process(pool_child.pid) for pool_child in dispatcher.children)
    assert not child.is_running()
