"""The child's end of the socket to its worker, and the assignments that have not started.

One thread at a time reads the socket and puts assignments into the inbox; the runner takes them out.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from horsies.executor.protocol import (
    NO_ASSIGNMENT,
    Assignment,
    Done,
    Interrupt,
    KeepRunning,
    Message,
    Ping,
    Pong,
    Recall,
    Returned,
    RunTasks,
    Stop,
    StopReason,
    Unpacker,
    pack,
    pack_done,
)
from horsies.model.codec import encode_error
from horsies.model.error_codes import OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus

RECV_BYTES = 1 << 16
"""The size of the buffer for each read. From 128 KiB on the C library maps and unmaps it, which takes longer than reading."""

log = logging.getLogger("horsies.executor")


class ParentSocket:
    """The socket to the worker. It is never closed, because a thread may still read; the kernel closes it with the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unpacker = Unpacker()
        self._sending = threading.Lock()

    def receive(self) -> list[Message]:
        """Wait for at least one message. The process exits when the worker has closed its end or is dead."""
        while True:
            try:
                data = os.read(self._fd, RECV_BYTES)
            except BlockingIOError:
                os.set_blocking(self._fd, True)  # user code may make every descriptor that it finds non-blocking
                continue
            except ConnectionError:
                data = b""
            if not data:
                os._exit(0)
            if messages := list(self._unpacker.feed(data)):
                return messages

    def send(self, data: bytes) -> None:
        """Send all of it; callers take turns. If the worker is dead, the process exits silently, on whichever thread this is."""
        with self._sending:
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except BlockingIOError:
                    os.set_blocking(self._fd, True)
                except ConnectionError:
                    os._exit(0)

    def close_in_copy(self) -> None:
        """Close the descriptor in a copy of this process that a task has forked, so that it neither reads nor writes."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class TaskRunner(Protocol):
    """What runs the tasks. The thread that reads the socket calls these methods."""

    def wake(self) -> None: ...
    def interrupt(self, assignment_no: int, reason: StopReason) -> None: ...
    def on_ping(self) -> int:
        """Let the event loop answer too, if there is one. Return the assignment that it executes, or `NO_ASSIGNMENT`."""
        ...


class Inbox:
    """The assignments that have not started, and the way to send reports."""

    def __init__(self, parent: ParentSocket, max_memory_mb: float | None, rss_mb: Callable[[], float]) -> None:
        self._parent, self.send = parent, parent.send
        self._max_memory_mb = max_memory_mb
        self._rss_mb = rss_mb
        self.pending: deque[Assignment] = deque()
        self._last_taken = NO_ASSIGNMENT
        self._is_leaving = False
        self._state = threading.Lock()  # taken before the lock of the socket, never the other way round
        self.is_stopping = False

    def receive(self, runner: TaskRunner, received: Iterable[Message] = ()) -> None:
        """Wait for messages, unless some were received before, and apply them. Called by one thread at a time."""
        try:
            for message in received or self._parent.receive():
                if isinstance(message, RunTasks):
                    with self._state:
                        self.pending.extend(message.assignments)
                        if self._is_leaving:  # and the worker had not read that yet
                            self.send(pack(*self._clear_pending()))
                    runner.wake()
                elif isinstance(message, Interrupt):
                    self._interrupt(message, runner)
                elif isinstance(message, Ping):
                    self.send(pack(Pong(runner.on_ping())))
                else:
                    with self._state:
                        self._apply(message)
                    runner.wake()
        except BaseException as error:  # a child that cannot read would wait without end and keep its slot
            log.warning("child: cannot read messages of the worker, exiting: %r", error, exc_info=error)
            os._exit(1)

    def take(self, at_most: int) -> list[Assignment]:
        """Take the assignments to start next, in the order of arrival."""
        with self._state:
            taken = [self.pending.popleft() for _ in range(min(at_most, len(self.pending)))]
            if taken:
                self._last_taken = taken[-1].assignment_no
            return taken

    def pack_ending(self, done: Done) -> bytes:
        """Return the frames that report an ending. Above the memory limit they also return what has not started."""
        with self._state:
            if self._max_memory_mb is not None and not self._is_leaving:
                self._is_leaving = self._rss_mb() >= self._max_memory_mb
            if not self._is_leaving:
                return pack_done(done)
            return pack(done._replace(leaving=True), *self._clear_pending())

    def _clear_pending(self) -> list[Returned]:
        assignment_nos = [assignment.assignment_no for assignment in self.pending]
        self.pending.clear()
        return [Returned(assignment_nos)] if assignment_nos else []

    def _apply(self, message: Message) -> None:
        match message:
            case Recall(behind):
                is_due = behind in {NO_ASSIGNMENT, self._last_taken}
                self.send(pack(*((is_due and self._clear_pending()) or [Returned([])])))
            case KeepRunning():
                self._is_leaving, self._max_memory_mb = False, None
            case Stop():
                self.is_stopping = True
            case _:
                raise AssertionError(f"unexpected message from the worker: {message}")

    def _interrupt(self, message: Interrupt, runner: TaskRunner) -> None:
        """End a task that is cancelled before its start without starting it. (A timeout cannot come before the start.)"""
        with self._state:
            pending = next((one for one in self.pending if one.assignment_no == message.assignment_no), None)
            if pending and message.reason != "timeout":
                self.pending.remove(pending)
                error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="it was cancelled before it started")
                text = encode_error(error, task_id=pending.id)
                status = TaskStatus.CANCELLED.value
                self.send(pack(Done(pending.assignment_no, status, 0, error.error_code, None, text)))
        if not pending:
            runner.interrupt(message.assignment_no, message.reason)
