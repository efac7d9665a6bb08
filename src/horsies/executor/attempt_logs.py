"""Capture what tasks with `keep_logs=True` log, and report it to the worker: while they run, and the rest before their ending.

A soft stop may be raised in a task while it logs. So `AttemptLines.add` takes no lock: it appends to queues, each in one atomic step. A thread sends.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from queue import Empty, SimpleQueue

from horsies.executor.protocol import LogLines, pack
from horsies.logs import message_of
from horsies.model.attempt_log import FIRST_LINES, MAX_LINE, MAX_TIME, NEWEST_LINES, KeptLines, LoggedLine, to_storable
from horsies.model.errors import TaskCancelledError, TaskTimeoutError

SEND_INTERVAL_S = 0.05
_MAX_NAME = 200
_CUT = "\N{HORIZONTAL ELLIPSIS}"

_formatter = logging.Formatter()


class AttemptLines:
    """The lines of one attempt that were not taken yet. `wake` is called when there is one again."""

    def __init__(self, assignment_no: int, wake: Callable[["AttemptLines"], None]) -> None:
        self.assignment_no = assignment_no
        self._wake = wake
        self._numbers = count(1)
        self._first: deque[LoggedLine] = deque()
        self._newest: deque[LoggedLine] = deque(maxlen=NEWEST_LINES)
        self._is_awake = self._is_over = False

    def add(self, record: logging.LogRecord) -> None:
        if self._is_over:  # a thread that the task has left behind logs
            return
        at = float(record.created if 0 <= record.created < MAX_TIME else time.time())
        names, text = (_name(record.levelname), _name(record.name)), message_of(record)
        message = to_storable(text if len(text) <= MAX_LINE else text[: MAX_LINE - 1] + _CUT)
        exception = _exception_text(record)
        number = next(self._numbers)  # only now: a soft stop may be raised in the lines above
        line = LoggedLine(number, at, *names, message, exception)
        (self._first if number <= FIRST_LINES else self._newest).append(line)
        if not self._is_awake:
            self._is_awake = True
            self._wake(self)

    def take(self, *, is_over: bool = False) -> list[LoggedLine]:
        """Return the new lines. Called by one thread at a time."""
        self._is_over = self._is_over or is_over
        self._is_awake = False  # before they are taken, or one that is added between the two would wait for the next
        taken = KeptLines()
        for queue in (self._first, self._newest):
            with suppress(IndexError):
                while True:
                    taken.add([queue.popleft()])
        return taken.in_order()


def _name(value: object) -> str:
    return to_storable(str(value)[:_MAX_NAME])


def _exception_text(record: logging.LogRecord) -> str | None:
    raised = record.exc_text  # as another handler has formatted it
    if record.exc_info:
        raised = (raised or _formatter.formatException(record.exc_info)) if record.exc_info[0] is not None else None
    text = "\n".join(filter(None, (raised, record.stack_info)))
    # The exception itself is at the end.
    return to_storable(text if len(text) <= MAX_LINE else _CUT + text[1 - MAX_LINE :]) or None


# -- the handler


_current: ContextVar[AttemptLines] = ContextVar("horsies_attempt_lines")


class _AttemptHandler(logging.Handler):
    """Adds each line to the attempt whose context the code that logs runs in."""

    def handle(self, record: logging.LogRecord) -> bool:  # without the lock of handlers: see above
        lines = _current.get(None)
        if lines is not None:
            try:
                lines.add(record)
            except Exception as error:  # a record of the user may have anything in it
                if isinstance(error, TaskTimeoutError | TaskCancelledError):  # raised in the task, and only once
                    raise
        return True


_handler = _AttemptHandler()


@contextmanager
def handler_on_root() -> Generator[None]:
    """Install the handler for a while, in a process that is not ours. Within another such context this does nothing."""
    root = logging.getLogger()
    if _handler in root.handlers:
        yield
        return
    root.addHandler(_handler)
    try:
        yield
    finally:
        root.removeHandler(_handler)


# -- in a child


class LogReports:
    """Sends the lines of running attempts to the worker."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._waiting: SimpleQueue[AttemptLines] = SimpleQueue()
        self._sending = threading.Lock()  # never taken inside a task
        self._thread: threading.Thread | None = None

    def capture(self, assignment_no: int) -> AttemptLines:
        """Begin to capture the lines of an attempt. `set_current_lines` must be called in its context."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_until_exit, name="horsies-logs", daemon=True)
            self._thread.start()
        root = logging.getLogger()
        if _handler not in root.handlers:  # also after a task has configured logging
            root.addHandler(_handler)
        return AttemptLines(assignment_no, self._waiting.put)

    def take_last(self, lines: AttemptLines) -> bytes:
        """Return the frame of what was not sent, to be sent before the ending. Nothing is sent for the attempt after this."""
        with self._sending:
            return _pack(lines, lines.take(is_over=True))

    def _send_until_exit(self) -> None:
        while True:
            waiting = {self._waiting.get()}
            with suppress(Empty):
                while True:
                    waiting.add(self._waiting.get_nowait())
            with self._sending:
                self._send(b"".join(_pack(lines, lines.take()) for lines in waiting))
            time.sleep(SEND_INTERVAL_S)


def _pack(lines: AttemptLines, taken: list[LoggedLine]) -> bytes:
    return pack(LogLines(lines.assignment_no, taken)) if taken else b""


def set_current_lines(lines: AttemptLines) -> None:
    """Set where lines of the current context go. The executor calls this in a context of its own for each task."""
    _current.set(lines)
