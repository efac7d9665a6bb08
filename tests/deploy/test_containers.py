"""A worker as in a container: in a PID namespace of its own, as process 1 or below an init."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.worker.steps import insert, wait_until_ended

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
LEAVING = """
import subprocess
from horsies import Horsies, TaskError, TaskResult
app = Horsies()

@app.task("leave_one_behind")
def leave_one_behind() -> TaskResult[None, TaskError]:
    subprocess.run(["sh", "-c", "sleep 0.01 &"], check=True)
    return TaskResult(ok=None)
"""


@pytest.fixture
def contained(database: str, tmp_path: Path) -> Generator[Callable[..., psutil.Process]]:
    """Start a worker in a namespace, below these words. Returns its process 1."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not create PID namespaces")
    (tmp_path / "leaving.py").write_text(LEAVING)
    log = tmp_path / "log"
    started: list[subprocess.Popen[bytes]] = []

    def start(*init: str) -> psutil.Process:
        command = [*UNSHARE, *init, str(Path(sys.executable).parent / "horsies"), "worker", "leaving:app"]
        with log.open("wb") as file:
            env = {**os.environ, "HORSIES_DATABASE_URL": database}
            started.append(
                subprocess.Popen([*command, "--processes=1"], cwd=tmp_path, env=env, stdout=file, stderr=file)
            )
        eventually(lambda: "is ready on queues" in log.read_text(), 30.0, what="it is ready", seen=log.read_text)
        (process,) = psutil.Process(started[-1].pid).children()
        return process

    yield start
    for each in started:
        each.kill()
        each.wait()


def stop(process: psutil.Process) -> int:
    """Stop it as a container is stopped: with a signal for its process 1. Returns the exit code."""
    parent = process.parent()
    assert parent is not None
    process.send_signal(signal.SIGTERM)
    return parent.wait(20)


def test_as_process_1_it_runs_tasks_and_stops_when_it_is_asked_to(
    contained: Callable[..., psutil.Process], sql: psycopg.Connection
) -> None:
    process = contained()
    assert row(sql, "select pid from horsies.workers") == (1,)
    insert(sql, "leave_one_behind")
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}
    assert stop(process) == 0
    assert row(sql, "select count(*) from horsies.workers") == (0,)


def test_below_an_init_it_stops_too_and_what_tasks_leave_behind_is_waited_for(
    contained: Callable[..., psutil.Process], sql: psycopg.Connection
) -> None:
    if shutil.which("tini") is None:
        pytest.skip("there is no tini")
    process = contained("tini", "--")
    for _ in range(3):
        insert(sql, "leave_one_behind")
    assert wait_until_ended(sql, 3) == {"COMPLETED": 3}

    def others() -> list[str]:
        return [each.name() for each in process.children(recursive=True) if each.name() in {"sh", "sleep"}]

    eventually(lambda: not others(), what="no zombie is left", seen=others)
    assert stop(process) == 0
    assert row(sql, "select count(*) from horsies.workers") == (0,)
