"""A child without a worker: the test sends and receives the messages."""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import cast

import psutil
import pytest

from horsies.executor.protocol import (
    NO_ASSIGNMENT,
    Assignment,
    Began,
    Boot,
    Booting,
    Done,
    Interrupt,
    KeepRunning,
    Message,
    Ready,
    Recall,
    ReportUnpacker,
    Returned,
    RunTasks,
    StartFailed,
    Stop,
    pack,
)
from tests.fixtures.processes import ModuleProcess

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 15
IMPORTING = Booting("importing tests.apps.basic")


def boot(app: str = "tests.apps.basic:app", *, max_memory_mb: float | None = None) -> Boot:
    return Boot(app, "INFO", 1, max_memory_mb, [])


class Child:
    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(TIMEOUT_S)
        with theirs:
            self.process = ModuleProcess(
                [sys.executable, "-m", "horsies.executor", "child", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        self._unpacker = ReportUnpacker()
        self._received: list[Message] = []

    def send(self, *messages: Message) -> None:
        self.socket.sendall(pack(*messages))

    def receive(self) -> Message:
        while not self._received:
            data = self.socket.recv(1 << 16)
            assert data, self.process.communicate()[1]
            self._received += self._unpacker.feed(data)
        return self._received.pop(0)

    def receive_boot(self) -> None:
        """It reports what it imports, and then its memory."""
        assert self.receive() == IMPORTING
        ready = self.receive()
        assert isinstance(ready, Ready)
        assert ready.pid == self.process.pid
        assert ready.rss_mb == pytest.approx(psutil.Process(ready.pid).memory_info().rss / 2**20, rel=0.5)

    def exit_code(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def child() -> Generator[Child]:
    made = Child()
    yield made
    made.close()


@pytest.fixture
def ready(child: Child) -> Child:
    child.send(boot())
    child.receive_boot()
    return child


def add(assignment_no: int, left: int, right: int) -> Assignment:
    return Assignment(
        assignment_no,
        "an id",
        "add",
        "default",
        1,
        None,
        f'{{"left": {left}, "right": {right}}}',
        None,
        None,
        None,
    )


def gate(assignment_no: int, folder: Path) -> Assignment:
    args = f'{{"begun": "{folder / "begun"}", "until": "{folder / "open"}"}}'
    return Assignment(assignment_no, "an id", "gate", "default", 1, None, args, None, None, None)


@pytest.mark.promise("W6")
def test_a_child_reports_every_beginning_and_every_end_in_order(ready: Child) -> None:
    ready.send(RunTasks([add(1, 1, 1), add(2, 2, 2)]), RunTasks([add(3, 3, 3)]))
    received = [ready.receive() for _ in range(6)]
    assert [message.assignment_no for message in received if isinstance(message, Began)] == [1, 2, 3]
    done = [message for message in received if isinstance(message, Done)]
    assert [(message.assignment_no, message.status, message.result) for message in done] == [
        (1, "COMPLETED", "2"),
        (2, "COMPLETED", "4"),
        (3, "COMPLETED", "6"),
    ]
    for number, message in enumerate(received):
        assert isinstance(message, (Began, Done)[number % 2])


def test_a_recall_is_answered_while_a_task_runs_and_what_is_returned_never_runs(ready: Child, tmp_path: Path) -> None:
    ready.send(RunTasks([gate(1, tmp_path), add(2, 1, 1), add(3, 1, 1)]))
    assert ready.receive() == Began(1)
    ready.send(Recall(NO_ASSIGNMENT))
    assert ready.receive() == Returned([2, 3])
    ready.send(RunTasks([add(4, 5, 5)]))
    (tmp_path / "open").touch()
    ended, began, then = ready.receive(), ready.receive(), ready.receive()
    assert isinstance(ended, Done)
    assert (ended.assignment_no, ended.status) == (1, "COMPLETED")
    assert began == Began(4)
    assert isinstance(then, Done)
    assert then.result == "10"


def test_tasks_behind_a_task_that_has_ended_are_not_returned(ready: Child, tmp_path: Path) -> None:
    ready.send(RunTasks([add(1, 1, 1), gate(2, tmp_path), add(3, 1, 1)]))
    assert [type(ready.receive()) for _ in range(3)] == [Began, Done, Began]
    ready.send(Recall(behind=1))
    assert ready.receive() == Returned([])
    ready.send(Recall(behind=2))
    assert ready.receive() == Returned([3])
    (tmp_path / "open").touch()


def test_a_task_that_is_interrupted_before_it_arrives_stops(ready: Child, tmp_path: Path) -> None:
    """As if it were on its way from the inbox to the runner: then it is found in neither."""
    ready.send(Interrupt(1, "cancel"), RunTasks([gate(1, tmp_path)]))
    assert ready.receive() == Began(1)
    done = ready.receive()
    assert isinstance(done, Done)
    assert (done.assignment_no, done.status) == (1, "CANCELLED")


def test_an_idle_child_has_nothing_to_return(ready: Child) -> None:
    ready.send(Recall(NO_ASSIGNMENT))
    assert ready.receive() == Returned([])


@pytest.mark.promise("W10")
def test_a_stopped_child_first_runs_what_was_assigned(ready: Child) -> None:
    ready.send(RunTasks([add(1, 1, 1), add(2, 2, 2)]), Stop())
    assert [type(ready.receive()) for _ in range(4)] == [Began, Done, Began, Done]
    assert ready.exit_code() == 0


def test_a_stop_that_arrives_with_the_boot_is_obeyed(child: Child) -> None:
    child.send(boot(), RunTasks([add(1, 1, 1)]), Stop())
    assert [type(child.receive()) for _ in range(4)] == [Booting, Ready, Began, Done]
    assert child.exit_code() == 0


def test_a_child_that_cannot_load_the_app_says_why(child: Child) -> None:
    child.send(boot("tests.apps.basic:no_such_app"))
    assert child.receive() == IMPORTING
    failed = child.receive()
    assert isinstance(failed, StartFailed)
    assert "no attribute 'no_such_app'" in failed.reason
    assert child.exit_code() == 0


@pytest.mark.promise("C5")
def test_a_child_above_its_memory_limit_reports_it_and_returns_the_rest(child: Child) -> None:
    child.send(boot(max_memory_mb=1.0))
    child.receive_boot()
    child.send(RunTasks([add(1, 1, 1), add(2, 2, 2), add(3, 3, 3)]))
    assert child.receive() == Began(1)
    done = child.receive()
    assert isinstance(done, Done)
    assert (done.assignment_no, done.result, done.leaving) == (1, "2", True)
    assert child.receive() == Returned([2, 3])
    child.send(RunTasks([add(4, 4, 4)]))  # which was on its way
    assert child.receive() == Returned([4])
    child.send(Stop())
    assert child.exit_code() == 0


def test_a_child_above_its_memory_limit_goes_on_after_keep_running(child: Child) -> None:
    child.send(boot(max_memory_mb=1.0))
    child.receive_boot()
    child.send(RunTasks([add(1, 1, 1)]))
    assert [type(child.receive()) for _ in range(2)] == [Began, Done]
    child.send(KeepRunning(), RunTasks([add(2, 2, 2)]))
    assert child.receive() == Began(2)
    done = child.receive()
    assert isinstance(done, Done)
    assert (done.result, done.leaving) == ("4", False)


def test_a_task_that_is_cancelled_before_it_began_never_begins(ready: Child, tmp_path: Path) -> None:
    ready.send(RunTasks([gate(1, tmp_path), add(2, 1, 1)]))
    assert ready.receive() == Began(1)
    ready.send(Interrupt(2, "cancel"))
    never = ready.receive()
    assert isinstance(never, Done)
    assert (never.assignment_no, never.status, never.error_code) == (2, "CANCELLED", "TASK_CANCELLED")
    (tmp_path / "open").touch()
    ended = ready.receive()
    assert isinstance(ended, Done)
    assert (ended.assignment_no, ended.status) == (1, "COMPLETED")


@pytest.mark.parametrize("when", ["at once", "while it loads", "when idle", "while it works", "with unread messages"])
def test_a_child_whose_worker_has_died_exits_silently(child: Child, tmp_path: Path, when: str) -> None:
    if when != "at once":
        child.send(boot())
    if when in {"when idle", "while it works", "with unread messages"}:
        child.receive_boot()
    if when == "while it works":
        child.send(RunTasks([gate(1, tmp_path)]))
        assert child.receive() == Began(1)
    if when == "with unread messages":
        child.send(RunTasks([add(1, 1, 1)]))
        select.select([child.socket], [], [], TIMEOUT_S)  # its end is reset then, and not only closed
    child.socket.close()
    assert child.exit_code() == 0
    assert child.process.stderr is not None
    assert child.process.stderr.read() == ""


@pytest.mark.parametrize("nonsense", [b"nonsense, a lot of it", pack(Began(1))], ids=["nonsense", "the wrong message"])
def test_a_child_that_receives_an_invalid_message_exits(ready: Child, nonsense: bytes) -> None:
    ready.socket.sendall(nonsense)
    assert ready.exit_code() != 0


def test_a_child_whose_first_message_is_not_boot_fails(child: Child) -> None:
    child.send(Stop())
    assert child.exit_code() != 0


def test_programs_that_a_task_starts_do_not_inherit_the_socket(ready: Child) -> None:
    fd = int(cast("list[str]", ready.process.args)[-1])
    flags = Path(f"/proc/{ready.process.pid}/fdinfo/{fd}")
    if not flags.exists():
        pytest.skip("this system does not show the flags of descriptors")
    line = next(line for line in flags.read_text().splitlines() if line.startswith("flags:"))
    assert int(line.split()[1], 8) & os.O_CLOEXEC


def test_a_value_that_is_not_plain_is_validated_by_pydantic(child: Child) -> None:
    child.send(boot("tests.apps.plain:app"))
    child.send(RunTasks([plain(1, "add", left="7"), plain(2, "add", left="x"), plain(3, "loaded", names=["pydantic"])]))
    done = [message for message in (child.receive() for _ in range(8)) if isinstance(message, Done)]
    assert [(message.result, message.error_code) for message in done] == [
        ('{"sum":7,"note":""}', None),
        (None, "WORKER_SERIALIZATION_ERROR"),
        ('["pydantic"]', None),
    ]


def plain(assignment_no: int, name: str, **arguments: object) -> Assignment:
    return Assignment(
        assignment_no,
        "an id",
        name,
        "default",
        1,
        None,
        json.dumps(arguments, ensure_ascii=False),
        None,
        None,
        None,
    )
