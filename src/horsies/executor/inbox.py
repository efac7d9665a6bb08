"""What lies before a child: filled by whoever reads the socket, taken from by whoever runs the tasks."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from horsies.executor.protocol import (
    ANY,
    Assignment,
    Done,
    Interrupt,
    KeepRunning,
    Message,
    Ping,
    Pong,
    Reason,
    Recall,
    Returned,
    RunTasks,
    Stop,
    Unpacker,
    pack,
)
from horsies.model.codec import encode_error
from horsies.model.error_codes import OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus

# --------
# The child's end of the socket to its worker, by its descriptor alone: the module `socket` takes a twentieth of a child's start to load.

RECV_BYTES = 1 << 16
"""A buffer of this size is made for each read. From 128 KiB on the C library maps and unmaps it, which takes longer than to read."""


class ParentSocket:
    """Bytes in both directions; many threads may send, one whole message at a time, if they take turns.

    Nobody closes it: somebody may read to the last, and the process takes it along when it ends.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def receive(self) -> bytes:
        """At least one byte; none when the worker has closed its end, or is gone."""
        while True:
            try:
                return os.read(self._fd, RECV_BYTES)
            except BlockingIOError:
                self._wait_again()
            except ConnectionError:
                return b""

    def send(self, data: bytes) -> None:
        """All of it. To a worker that is gone there is nothing to say: the process ends, whichever thread found out, and without a word."""
        while True:
            try:
                sent = os.write(self._fd, data)
            except BlockingIOError:
                self._wait_again()
            except ConnectionError:
                os._exit(0)
            else:
                if sent == len(data):
                    return
                data = data[sent:]

    def close_in_copy(self) -> None:
        """In a copy of this process that a task has forked: it has nothing to say, and must not hear what is said to the original."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _wait_again(self) -> None:
        """User code has made every descriptor that it found non-blocking."""
        os.set_blocking(self._fd, True)


log = logging.getLogger("horsies.executor")


class RunsTasks(Protocol):
    """Who runs the tasks. All are called by whoever hears."""

    def woken(self) -> None: ...
    def interrupt(self, assignment_no: int, reason: Reason) -> None: ...
    def pinged(self) -> int:
        """Let the event loop answer, too, if there is one. The ticket of the coroutine that it executes, or `ANY`."""
        ...


class Inbox:
    """Messages from the parent, whose death ends the process."""

    def __init__(self, link: ParentSocket) -> None:
        self._link = link
        self._unpacker = Unpacker()

    def receive(self) -> list[Message]:
        """At least one."""
        while True:
            data = self._link.receive()
            if not data:
                os._exit(0)
            if messages := list(self._unpacker.feed(data)):
                return messages


class ExecutorInbox:
    """The tray of what has not begun, and the way to the parent."""

    def __init__(self, link: ParentSocket, inbox: Inbox, max_memory_mb: float | None, rss_mb: Callable[[], float]):
        self._link = link
        self._inbox = inbox
        self._max_memory_mb = max_memory_mb
        self._rss_mb = rss_mb
        self._pending: deque[Assignment] = deque()
        self._last_taken = ANY
        self._is_leaving = False
        self._state = threading.Lock()
        self._sending = threading.Lock()  # never taken before `_state` is
        self.is_stopping = False

    def receive_message(self, runs: RunsTasks, early: Iterable[Message] = ()) -> None:
        """Wait for messages, unless there are some already, and take them in. By one thread at a time."""
        try:
            for message in early or self._inbox.receive():
                self._take_in(message, runs)
        except BaseException as error:  # a child that cannot hear would wait for ever and hold its place
            log.warning("this child can no longer hear its worker: %r", error, exc_info=error)
            os._exit(1)

    def take(self, at_most: int) -> list[Assignment]:
        """What is to begin next, in the order it came."""
        with self._state:
            taken = [self._pending.popleft() for _ in range(min(at_most, len(self._pending)))]
            if taken:
                self._last_taken = taken[-1].assignment_no
            return taken

    @property
    def has_more(self) -> bool:
        return bool(self._pending)

    def send(self, frames: bytes) -> None:
        with self._sending:
            self._link.send(frames)

    def ending(self, done: Done) -> bytes:
        """The frames that report an ending, with the measure taken. Too big: what has not begun goes back with it."""
        with self._state:
            if self._max_memory_mb is not None and not self._is_leaving:
                self._is_leaving = self._rss_mb() >= self._max_memory_mb
            if not self._is_leaving:
                return pack(done)
            done = done._replace(leaving=True)
            return pack(done, *self._given_back())

    def _given_back(self) -> list[Returned]:
        assignment_nos = [assignment.assignment_no for assignment in self._pending]
        self._pending.clear()
        return [Returned(assignment_nos)] if assignment_nos else []

    def _take_in(self, message: Message, runs: RunsTasks) -> None:
        if isinstance(message, Interrupt):
            self._interrupt(message, runs)
            return
        if isinstance(message, Ping):
            self.send(pack(Pong(runs.pinged())))
            return
        with self._state:
            match message:
                case RunTasks(assignments):
                    self._pending.extend(Assignment(*fields) for fields in assignments)
                    if self._is_leaving:
                        self.send(pack(*self._given_back()))  # it was on its way when we said so
                case Recall(behind):
                    wanted = self._given_back() if behind in {ANY, self._last_taken} else []
                    self.send(pack(*(wanted or [Returned([])])))
                case KeepRunning():
                    self._is_leaving, self._max_memory_mb = False, None
                case Stop():
                    self.is_stopping = True
                case _:
                    raise AssertionError(f"a child is never sent {message}")
        runs.woken()

    def _interrupt(self, message: Interrupt, runs: RunsTasks) -> None:
        """What is cancelled before it began ends without beginning. (A time-out cannot come before the beginning.)"""
        with self._state:
            early = next((waiting for waiting in self._pending if waiting.assignment_no == message.assignment_no), None)
            if early and message.reason == "cancel":
                self._pending.remove(early)
                self.send(pack(_never_began(early)))
        if not early:
            runs.interrupt(message.assignment_no, message.reason)


def _never_began(early: Assignment) -> Done:
    error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="it was cancelled before it began")
    text = encode_error(error, task_id=early.task_id)
    return Done(early.assignment_no, TaskStatus.CANCELLED.value, 0, error.error_code, None, text)
