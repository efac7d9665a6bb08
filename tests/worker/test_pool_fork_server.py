"""Children forked from the fork server (Linux, without recycling)."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.pools import FakeDispatcher, open_pool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a fork server on Linux only")


async def describe_children(dispatcher: FakeDispatcher, count: int) -> list[dict[str, Any]]:
    """Ask `count` children, each once."""
    dispatcher.is_paused = True
    ids = [dispatcher.send("about_process") for _ in range(count)]
    dispatcher.is_paused = False
    dispatcher.assign_waiting()
    return [json.loads((await dispatcher.ending(task_id)).result or "") for task_id in ids]


@pytest.mark.promise("C4")
async def test_children_share_what_was_made_at_import_and_nothing_else() -> None:
    async with open_pool(processes=3) as dispatcher:
        children = await describe_children(dispatcher, 3)
        assert len({child["pid"] for child in children}) == 3
        assert len({child["parent"] for child in children}) == 1  # the fork server
        assert children[0]["parent"] != os.getpid()
        assert len({child["at_import"] for child in children}) == 1
        assert len({child["random"] for child in children}) == 3  # reseeded
        for child in children:
            assert child["group"] == child["pid"]
            assert child["pidfds"] == 0
            assert child["sockets"] == 3  # the socket to the worker, and the two of its event loop


async def test_the_fork_server_ends_with_its_pool_and_its_children_with_it() -> None:
    async with open_pool(processes=2) as dispatcher:
        server = psutil.Process((await describe_children(dispatcher, 1))[0]["parent"])
        family = [server, *server.children()]
        assert len(family) == 3
    assert not any(process.is_running() for process in family)


async def test_a_dead_fork_server_is_started_again_and_its_children_are_replaced() -> None:
    async with open_pool(processes=2) as dispatcher:
        server = (await describe_children(dispatcher, 1))[0]["parent"]
        before = {pool_child.pid for pool_child in dispatcher.children}
        held = dispatcher.send("sleep", seconds=600)
        await dispatcher.beginning(held)
        os.kill(server, signal.SIGKILL)
        assert (await dispatcher.crash(held)).error_code == "WORKER_CRASHED"
        await dispatcher.until(lambda: len(dispatcher.open_children()) == 2, "two children are there again")
        assert not before & {pool_child.pid for pool_child in dispatcher.children}
        assert (await describe_children(dispatcher, 1))[0]["parent"] != server


async def test_the_fork_server_leaves_no_zombies() -> None:
    async with open_pool(processes=1) as dispatcher:
        server = psutil.Process((await describe_children(dispatcher, 1))[0]["parent"])
        for _ in range(3):
            task_id = dispatcher.send("die")
            await dispatcher.crash(task_id)
        await dispatcher.value("quick")
        assert len(server.children()) == 1


WORKER = """
import asyncio, sys
from tests.fixtures.pools import open_pool

async def main():
    async with open_pool(processes=2) as dispatcher:
        dispatcher.send("sleep", seconds=600)
        await dispatcher.until(lambda: dispatcher.begun)
        print(*[child.pid for child in dispatcher.children], flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_no_child_outlives_a_worker_that_is_killed() -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdout is not None
        pids = list(map(int, worker.stdout.readline().split()))
        family = list(psutil.Process(worker.pid).children(recursive=True))
        assert len(pids) == 2
        assert len(family) == 3  # the fork server and two children
        worker.kill()
    eventually(lambda: not any(_is_running(process) for process in family), what="no process is left")


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
