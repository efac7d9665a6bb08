"""Processes that a task forks from its child: they are not children, and send no messages."""

import signal
from pathlib import Path

import pytest

from tests.fixtures.pools import open_pool

FORGING = "tests.apps.forging:app"
EXIT_CODES = {"return": 0, "raise": 1, "exit": 3, "look for the socket": 0}


@pytest.mark.promise("A8")
@pytest.mark.parametrize(("how", "code"), EXIT_CODES.items())
@pytest.mark.parametrize("name", ["fork_a_copy", "fork_a_copy_async"])
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_a_forked_copy_exits_where_the_code_of_the_task_ends(
    name: str, concurrency: int, how: str, code: int
) -> None:
    """It exits as a program does: with 0, with 1 and a traceback, or with its own code. It has no socket, and does not go on as a second child."""
    async with open_pool(FORGING, concurrency=concurrency) as dispatcher:
        assert await dispatcher.value(name, how=how) == code
        (child,) = dispatcher.children
        assert await dispatcher.value("whoami") == child.pid


async def test_a_forked_copy_does_not_run_the_other_coroutines_of_the_event_loop(tmp_path: Path) -> None:
    path, until = tmp_path / "notes", tmp_path / "until"
    async with open_pool(FORGING, concurrency=5) as dispatcher:
        others = [dispatcher.send("note_async", path=str(path), until=str(until)) for _ in range(3)]
        for task_id in others:
            await dispatcher.beginning(task_id)
        assert await dispatcher.value("fork_a_copy_async", how="await") == 1
        until.touch()
        for task_id in others:
            assert (await dispatcher.ending(task_id)).status == "COMPLETED"
        (child,) = dispatcher.children
        assert set(path.read_text().split()) == {str(child.pid)}


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_multiprocessing_works_inside_a_task(concurrency: int) -> None:
    """It terminates its processes by a signal that children ignore."""
    async with open_pool(FORGING, concurrency=concurrency) as dispatcher:
        assert await dispatcher.value("end_a_process") == -signal.SIGTERM
        assert await dispatcher.value("use_a_pool") == [1, 2, 3]
        (child,) = dispatcher.children
        assert await dispatcher.value("whoami") == child.pid
