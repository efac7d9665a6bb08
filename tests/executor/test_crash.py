"""A child that dies: its task ends as crashed, another child replaces it, the worker goes on."""

import os
import signal
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg
import pytest

from tests.fixtures.apps import load_fresh
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker, Worker
from tests.worker.steps import first_line, insert, warm_up

PATIENCE_MS = 20_000
AT_ONCE_MS = 5_000


@pytest.fixture
def unruly(database: str, monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("HORSIES_DATABASE_URL", database)
    module = load_fresh("unruly")
    yield SimpleNamespace(**module.app.tasks)
    module.app.close()


@pytest.fixture
def running(worker: StartWorker) -> Worker:
    return worker("tests.apps.unruly:app", processes=1)


def crash_of(task: Any, *args: object) -> Any:
    """Return its error, which is noticed at once and not by a timeout."""
    error = task.send(*args).get(AT_ONCE_MS).err_value
    assert error.error_code == "WORKER_CRASHED", error
    return error


@pytest.mark.promise("A8", "W8", "W9")
@pytest.mark.parametrize(
    ("name", "args", "cause"),
    [
        ("segfault", (), "was killed by SIGSEGV"),
        ("exit_now", (0,), "exited with code 0"),
        ("exit_now", (3,), "exited with code 3"),
    ],
)
def test_a_task_that_takes_its_process_down_ends_as_crashed(
    unruly: Any, running: Worker, name: str, args: tuple[int, ...], cause: str
) -> None:
    child = unruly.whoami.send().get(PATIENCE_MS).ok_value
    error = crash_of(getattr(unruly, name), *args)
    assert error.message == f"the child process (pid {child}) {cause} while it ran this task"
    assert unruly.whoami.send().get(PATIENCE_MS).ok_value != child
    running.wait_for_log(f"child {child} {cause}; another takes its place")


@pytest.mark.promise("A8")
@pytest.mark.parametrize("name", ["close_descriptors", "scribble"])
def test_a_child_with_a_broken_socket_is_replaced(unruly: Any, running: Worker, name: str) -> None:
    child = unruly.whoami.send().get(PATIENCE_MS).ok_value
    crash_of(getattr(unruly, name))
    assert unruly.whoami.send().get(PATIENCE_MS).ok_value != child


def test_a_program_that_a_task_started_does_not_hide_the_child_s_death(unruly: Any, running: Worker) -> None:
    program = psutil.Process(unruly.start_program.send().get(PATIENCE_MS).ok_value)
    try:
        crash_of(unruly.segfault)
        assert unruly.add.send(1, 1).get(PATIENCE_MS).ok_value == 2
        assert program.is_running()
    finally:
        program.kill()


def test_a_copy_that_holds_the_socket_open_does_not_hide_the_child_s_death(
    unruly: Any, running: Worker, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    try:
        crash_of(unruly.fork_and_die, str(note))
        assert unruly.add.send(1, 1).get(PATIENCE_MS).ok_value == 2
        assert psutil.Process(int(note.read_text())).is_running()
    finally:
        os.kill(int(note.read_text()), signal.SIGKILL)


@pytest.mark.promise("A8", "W9", "C1")
def test_a_killed_child_is_replaced_and_its_sibling_s_task_is_untouched(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    running = worker(processes=2)
    victim = basic.gate.send(str(tmp_path / "victim"), str(tmp_path / "never"))
    sibling = basic.gate.send(str(tmp_path / "sibling"), str(tmp_path / "open"))
    pids = [eventually(lambda name=name: first_line(tmp_path / name)) for name in ("victim", "sibling")]
    assert {child.pid for child in running.children()} == {int(pid) for pid in pids}

    os.kill(int(pids[0]), signal.SIGKILL)
    error = victim.get(AT_ONCE_MS).err_value
    assert error.error_code == "WORKER_CRASHED"
    assert "was killed by SIGKILL" in error.message
    assert row(sql, "select status, claim_no from horsies.tasks where id = %s", sibling.task_id) == ("RUNNING", 1)
    assert basic.add.send(1, 1).get(PATIENCE_MS).ok_value == 2  # in the replacement of the dead one

    (tmp_path / "open").touch()
    assert sibling.get(PATIENCE_MS).ok_value == int(pids[1])
    assert (tmp_path / "sibling").read_text().split() == [pids[1]]  # it ran once
    assert len(running.children()) == 2


@pytest.mark.promise("W9")
def test_pending_tasks_of_a_killed_child_run_elsewhere_exactly_once(
    basic: Any, worker: StartWorker, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """A task that kills its child, with twenty prefetched tasks behind it."""
    running = worker("tests.apps.tuned:app", processes=1, env={"HORSIES_TEST_PREFETCH": "auto"})
    warm_up(basic)
    log = tmp_path / "log"
    with sql.transaction():
        insert(sql, "kill_self")
        for number in range(20):
            insert(sql, "write_line", path=str(log), line=str(number))
    running.wait_for_log("another takes its place")
    eventually(lambda: row(sql, "select count(*) from horsies.tasks") == (0,))
    assert sorted(map(int, log.read_text().split())) == list(range(20))
    assert column(sql, "select distinct error_code from horsies.finished where status = 'FAILED'") == ["WORKER_CRASHED"]
    # They were prefetched: claimed, released without counting an attempt, and claimed again.
    claims = column(sql, "select distinct claim_no from horsies.finished where task_name = 'write_line'")
    assert 2 in claims
    assert column(sql, "select distinct attempts from horsies.finished") == [1]


def test_a_child_ignores_termination_signals(basic: Any, worker: StartWorker, tmp_path: Path) -> None:
    running = worker(processes=1)
    gate = basic.gate.send(str(tmp_path / "begun"), str(tmp_path / "open"))
    child = int(eventually(lambda: first_line(tmp_path / "begun")))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        os.kill(child, number)
    (tmp_path / "open").touch()
    assert gate.get(PATIENCE_MS).ok_value == child
    assert running.children()[0].pid == child


def test_children_die_one_after_another_and_the_worker_goes_on(basic: Any, worker: StartWorker) -> None:
    worker(processes=2)
    crashes = [basic.kill_self.send() for _ in range(6)]
    codes = {handle.get(PATIENCE_MS).err_value.error_code for handle in crashes}
    assert codes == {"WORKER_CRASHED"}
    assert basic.add.send(2, 2).get(PATIENCE_MS).ok_value == 4
