"""How children are started: as new interpreters, or forked from a fork server with or without the app (Linux)."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from horsies.executor.protocol import Boot, Forked, ReportUnpacker
from horsies.model.errors import ConfigError
from horsies.model.status import Misfit
from horsies.model.worker_config import StartMethod
from horsies.worker.spawn import ProcessFactory, choose_start_method
from horsies.worker.supervisor import ChildRefused, PoolTimings
from tests.fixtures.eventually import eventually
from tests.fixtures.pools import PATIENCE_S, FakeDispatcher, open_pool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is a fork server on Linux only")

INTERPRETER = "tests.apps.interpreter:app"
ALL_METHODS = pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
FORK_SERVERS = pytest.mark.parametrize("method", ["forkserver", "fork"])


async def ask_children(dispatcher: FakeDispatcher, count: int, name: str = "about_process") -> list[dict[str, Any]]:
    """Ask `count` children, each once."""
    dispatcher.is_paused = True
    ids = [dispatcher.send(name) for _ in range(count)]
    dispatcher.is_paused = False
    dispatcher.assign_waiting()
    return [json.loads((await dispatcher.ending(task_id)).result or "") for task_id in ids]


async def server_pid(dispatcher: FakeDispatcher) -> int:
    return (await ask_children(dispatcher, 1))[0]["parent"]


# -- which method


def test_the_method_depends_on_recycling_unless_one_is_requested() -> None:
    assert choose_start_method(None, has_recycling=True) == "forkserver"
    assert choose_start_method(None, has_recycling=False) == "fork"
    for method in ("spawn", "forkserver", "fork"):
        assert {choose_start_method(method, has_recycling=recycling) for recycling in (True, False)} == {method}


def test_without_descriptors_of_processes_children_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int) -> int:
        raise OSError("not in this kernel")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert choose_start_method(None, has_recycling=True) == "spawn"
    assert choose_start_method("spawn", has_recycling=False) == "spawn"
    with pytest.raises(ConfigError, match=r"start_method 'fork' needs Linux .*; use 'spawn'"):
        choose_start_method("fork", has_recycling=True)


# -- what a child inherits


@pytest.mark.promise("C4")
async def test_with_fork_children_share_what_was_made_at_import_and_nothing_else() -> None:
    async with open_pool(processes=3) as dispatcher:
        children = await ask_children(dispatcher, 3)
        assert len({child["pid"] for child in children}) == 3
        assert len({child["parent"] for child in children}) == 1  # the fork server
        assert children[0]["parent"] != os.getpid()
        assert len({child["at_import"] for child in children}) == 1
        assert len({child["random"] for child in children}) == 3  # reseeded
        for child in children:
            assert child["group"] == child["pid"]
            assert child["pidfds"] == 0
            assert child["sockets"] == 3  # the socket to the worker, and the two of its event loop


@pytest.mark.promise("C4")
@pytest.mark.parametrize("limits", [{"max_tasks": 2}, {"max_memory_mb": 500}], ids=["tasks", "memory"])
async def test_with_a_limit_every_child_imports_the_app_and_inherits_nothing_of_other_children(
    limits: dict[str, Any],
) -> None:
    async with open_pool(INTERPRETER, processes=2, **limits) as dispatcher:
        asked = [child for _ in range(4) for child in await ask_children(dispatcher, 2, "about_import")]
        by_pid = {child["pid"]: child for child in reversed(asked)}  # the first answer of each
        assert len(by_pid) >= (4 if "max_tasks" in limits else 2)
        assert len({child["random"] for child in by_pid.values()}) == len(by_pid)
        for child in by_pid.values():
            assert child["imported by"] == child["pid"]
            assert (child["runs"], child["variable"], child["path"]) == (1, None, False)


@pytest.mark.promise("C4")
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_child_of_a_fork_server_without_the_app_is_like_a_spawned_one(concurrency: int) -> None:
    about: list[Any] = []
    for method in ("spawn", "forkserver"):
        async with open_pool(
            INTERPRETER, env={"GIVEN": "to both"}, start_method=method, concurrency=concurrency
        ) as dispatcher:
            about.append(await dispatcher.value("about_interpreter"))
    assert about[0] == about[1]
    assert about[0]["environment"]["GIVEN"] == "to both"


@pytest.mark.promise("C4")
async def test_the_fork_server_has_loaded_all_that_tasks_need_besides_the_app() -> None:
    """Otherwise every child would import it again."""
    item = {"item": {"name": "tea", "price": 2.5}}
    async with open_pool(INTERPRETER, max_tasks=100) as dispatcher:
        await dispatcher.value("price", **item)
        await dispatcher.value("price_async", **item)
        await dispatcher.error(dispatcher.send("fail"))
        assert await dispatcher.value("about_imports") == []


@ALL_METHODS
async def test_a_child_that_imports_the_app_builds_only_the_codecs_that_it_uses(method: StartMethod) -> None:
    """With `fork` all children share those that the fork server has built."""
    item = {"item": {"name": "tea", "price": 2.5}}
    async with open_pool(INTERPRETER, max_tasks=100, start_method=method) as dispatcher:
        await dispatcher.value("price", **item)
        built = await dispatcher.value("about_codecs")
        assert built[:2] == ["about_codecs", "about_import"] if method == "fork" else built == ["about_codecs", "price"]


async def test_a_task_whose_result_turns_out_not_to_be_encodable_is_not_called(tmp_path: Path) -> None:
    """The worker has refused such a task, so its source has changed since. Another worker may have one that fits."""
    (tmp_path / "changed.py").write_text(
        "from pathlib import Path\n"
        "from pydantic import SecretStr\n"
        "from horsies import AppConfig, Horsies, TaskError, TaskResult\n"
        "app = Horsies(AppConfig.for_database_url('postgresql://nobody@localhost:1/nowhere'))\n"
        "@app.task('touch')\n"
        "def touch(path: str) -> TaskResult[SecretStr, TaskError]:\n"
        "    Path(path).touch()\n"
    )
    touched = tmp_path / "touched"
    async with open_pool(f"{tmp_path}/changed.py:app", max_tasks=100) as dispatcher:
        done = await dispatcher.ending(dispatcher.send("touch", path=str(touched)))
    assert (done.misfit, done.error_code) == (Misfit.VALUES, "WORKER_SERIALIZATION_ERROR")
    assert "SecretStr" in (done.error or "")
    assert not touched.exists()


async def test_children_are_spawned_if_a_new_interpreter_has_threads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=[600], daemon=True).start()\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    async with open_pool(max_tasks=10, env={"PYTHONPATH": str(tmp_path)}) as dispatcher:
        assert await server_pid(dispatcher) == os.getpid()
        assert "children are spawned instead" in caplog.text


# -- the end of a fork server


@FORK_SERVERS
async def test_the_fork_server_ends_with_its_pool_and_its_children_with_it(method: StartMethod) -> None:
    async with open_pool(processes=2, start_method=method) as dispatcher:
        server = psutil.Process(await server_pid(dispatcher))
        family = [server, *server.children()]
        assert len(family) == 3
    assert not any(process.is_running() for process in family)


@FORK_SERVERS
async def test_a_dead_fork_server_is_replaced_and_its_children_go_on(method: StartMethod, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_pool(processes=2, start_method=method) as dispatcher:
        server = await server_pid(dispatcher)
        before = {child.pid for child in dispatcher.children}
        held = dispatcher.send("gate", until=str(go))
        await dispatcher.beginning(held)
        process = psutil.Process(server)
        process.kill()
        process.wait()
        error = await dispatcher.crash(dispatcher.send("die"))
        assert "exit code is unknown" in error.message
        await dispatcher.until(lambda: len(dispatcher.warm()) == 2, "another has taken its place")
        go.touch()
        assert (await dispatcher.ending(held)).status == "COMPLETED"
        survivors = before & {child.pid for child in dispatcher.children}
        assert survivors == {dispatcher.done_by[held]}
        parents = {child["pid"]: child["parent"] for child in await ask_children(dispatcher, 2)}
        assert server not in {parents[pid] for pid in parents if pid not in survivors}
        orphan = psutil.Process(survivors.pop())
    assert not _is_running(orphan)  # it left with the others


@FORK_SERVERS
async def test_a_fork_server_that_does_not_answer_is_replaced_and_its_children_go_on(
    method: StartMethod, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"
    async with open_pool(processes=2, start_method=method, timings=PoolTimings(fork_s=3.0)) as dispatcher:
        server = await server_pid(dispatcher)
        held = dispatcher.send("gate", until=str(go))
        child, _ = await dispatcher.beginning(held)
        os.kill(server, signal.SIGSTOP)
        other = next(one for one in dispatcher.children if one is not child)
        other.kill()
        await dispatcher.until(
            lambda: len(dispatcher.warm()) == 2 and other not in dispatcher.children, "there are two again"
        )
        assert "has not answered for 3 s and is killed" in caplog.text
        go.touch()
        assert (await dispatcher.ending(held)).status == "COMPLETED"


async def test_the_fork_server_leaves_no_zombies() -> None:
    async with open_pool(processes=1) as dispatcher:
        server = psutil.Process(await server_pid(dispatcher))
        for _ in range(3):
            task_id = dispatcher.send("die")
            await dispatcher.crash(task_id)
        await dispatcher.value("quick")
        assert len(server.children()) == 1


async def test_a_child_that_could_not_be_reported_shares_its_socket_with_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker had no descriptor left for it, for example. Two children would each read a part of what is meant for one."""
    receive, unreported = socket.recv_fds, list[int]()

    def lose_the_first(*args: Any) -> Any:
        data, fds, flags, address = receive(*args)
        if fds and not unreported:
            unreported.extend(message.pid for message in ReportUnpacker().feed(data) if isinstance(message, Forked))
            os.close(fds.pop())
        return data, fds, flags, address

    monkeypatch.setattr(socket, "recv_fds", lose_the_first)
    async with open_pool(max_tasks=100) as dispatcher:
        (pid,) = unreported
        await asyncio.to_thread(eventually, lambda: not _is_pid_running(pid), what="it has left")
        assert [await dispatcher.value("quick") for _ in range(3)]
        assert [child.pid for child in dispatcher.children] != unreported


async def test_more_children_can_be_requested_at_once_than_fit_into_the_socket() -> None:
    boot = Boot("tests.apps.paces:app", "INFO", 1, None, [])
    async with asyncio.TaskGroup() as group:
        factory = ProcessFactory(group, "fork", boot, {}, boot_timeout_s=PATIENCE_S, answer_timeout_s=PATIENCE_S)
        started = [await factory.start()]
        server = psutil.Process(started[0][0].pid).ppid()
        os.kill(server, signal.SIGSTOP)
        starts = [asyncio.create_task(factory.start()) for _ in range(300)]
        await asyncio.wait(starts, timeout=0.1)  # all requests are sent in the first step of the loop
        os.kill(server, signal.SIGCONT)
        started += await asyncio.gather(*starts)
        assert len({process.pid for process, _ in started}) == 301
        for process, ours in started:
            ours.close()
            process.kill()
        await asyncio.gather(*(process.wait() for process, _ in started))
        await factory.close()


HANGING = """
import os, time
from horsies import AppConfig, Horsies, TaskError, TaskResult
while os.path.exists({flag!r}):
    time.sleep(0.1)
app = Horsies(AppConfig.for_database_url("postgresql://nobody@localhost:1/nowhere"))

@app.task("nothing")
def nothing() -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)
"""


@pytest.mark.promise("W10")
@pytest.mark.parametrize("state", ["stopped", "importing"])
async def test_a_pool_that_closes_does_not_wait_for_its_fork_server(tmp_path: Path, state: str) -> None:
    flag, app = tmp_path / "flag", tmp_path / "hanging.py"
    app.write_text(HANGING.format(flag=str(flag)))
    async with open_pool(f"{app}:app", start_method="fork") as dispatcher:
        (child,) = dispatcher.children
        server = psutil.Process(psutil.Process(child.pid).ppid())
        if state == "stopped":
            server.suspend()
        else:
            flag.touch()
            server.kill()
        child.kill()
        async with asyncio.timeout(20):
            while child in dispatcher.children:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        leaving_at = time.monotonic()
    assert time.monotonic() - leaving_at < 10


BROKEN = """
import threading, time
threading.Thread(target=time.sleep, args=[60]).start()
raise ValueError("as written")
"""


@ALL_METHODS
async def test_an_app_that_cannot_be_loaded_is_refused_although_it_has_started_a_thread(
    method: StartMethod, tmp_path: Path
) -> None:
    app = tmp_path / "broken.py"
    app.write_text(BROKEN)
    with pytest.RaisesGroup(pytest.RaisesExc(ChildRefused, match="as written")):
        async with open_pool(f"{app}:app", start_method=method, timings=PoolTimings(boot_s=20)):
            pytest.fail("it has started")


# -- a fork server that the worker has forked from itself

EARLY = """
import asyncio, os, signal, sys
import psutil
from horsies.worker.spawn import close_early_fork_server, fork_server_early
from tests.fixtures.pools import open_pool

async def main():
    async with open_pool("tests.apps.interpreter:app", max_tasks=10) as dispatcher:
        print(await dispatcher.value("about_interpreter"), file=sys.stderr)
        (child,) = dispatcher.children
        child.kill()
        await dispatcher.until(lambda: child not in dispatcher.children, "it is gone")
        print(await dispatcher.value("about_interpreter"), file=sys.stderr)

{before}
fork_server_early()
{after}
if {is_used}:
    asyncio.run(main())
close_early_fork_server()
print("left", file=sys.stderr)
"""


def output_of(before: str = "", after: str = "", *, is_used: bool = True, **options: Any) -> str:
    script = EARLY.format(before=before, after=after, is_used=is_used)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    worker = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        timeout=50,
        check=False,
        **options,
    )
    assert worker.returncode == 0, worker.stderr
    assert worker.stderr.endswith("left\n")
    return worker.stderr


@pytest.mark.parametrize("is_used", [True, False], ids=["used", "unused"])
def test_a_worker_that_is_started_with_sigchld_ignored_stops(*, is_used: bool) -> None:
    """Then no process can wait for a child: the kernel has done so already."""
    output = output_of("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", is_used=is_used)
    assert "Traceback" not in output


def test_a_worker_without_stdout_starts() -> None:
    output_of(preexec_fn=lambda: os.close(1))


SHARED = """
import gc
gc.collect()
memory = dict(line.split()[:2] for line in open("/proc/self/smaps_rollup") if line.count(":") == 1)
private, anonymous = int(memory["Private_Dirty:"]), int(memory["Anonymous:"])
assert private < anonymous / 2, (private, anonymous)
"""


def test_a_collection_in_the_worker_does_not_copy_the_memory_that_it_shares_with_its_fork_server() -> None:
    output_of(after=SHARED, is_used=False)


def test_a_fork_server_that_has_died_unused_is_replaced() -> None:
    output_of(after="[server] = psutil.Process().children(); server.kill(); server.is_running()")


def test_children_do_not_have_what_the_worker_has_inherited(tmp_path: Path) -> None:
    with (tmp_path / "lock.of.launcher").open("w") as file:
        assert "lock.of.launcher" not in output_of(pass_fds=[file.fileno()])


# -- the end of the worker

WORKER = """
import asyncio, os, signal, sys
from tests.fixtures.pools import open_pool

async def main(method, is_orphaned):
    async with open_pool("tests.apps.interpreter:app", processes=2, start_method=method) as dispatcher:
        if is_orphaned:
            dispatcher.send("fail")
            await dispatcher.until(lambda: dispatcher.ended)
            os.kill(int(open(f"/proc/{dispatcher.children[0].pid}/stat").read().rpartition(")")[2].split()[1]), 9)
        else:
            dispatcher.send("hold_gil", seconds=600)
            await dispatcher.until(lambda: dispatcher.begun)
        print(*[child.pid for child in dispatcher.children], flush=True)
        await asyncio.sleep(600)

asyncio.run(main(sys.argv[1], sys.argv[2] == "orphaned"))
"""


def pids_after_killing_a_worker(method: str, state: str) -> list[psutil.Process]:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, method, state], stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdout is not None
        family = [psutil.Process(int(pid)) for pid in worker.stdout.readline().split()]
        assert len(family) == 2
        family += psutil.Process(worker.pid).children()  # the fork server
        worker.kill()
    return family


@ALL_METHODS
def test_no_child_outlives_a_worker_that_is_killed_not_even_one_that_is_stuck_in_c_code(method: str) -> None:
    family = pids_after_killing_a_worker(method, "stuck")
    eventually(lambda: not any(_is_running(process) for process in family), what="no process is left")


def test_a_child_that_has_lost_its_fork_server_does_not_outlive_its_worker_either() -> None:
    family = pids_after_killing_a_worker("forkserver", "orphaned")
    eventually(lambda: not any(_is_running(process) for process in family), what="no process is left")


def _is_pid_running(pid: int) -> bool:
    try:
        return _is_running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
