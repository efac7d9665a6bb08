"""`current_task()`: what a task can know of itself while it runs, and what it can say.

Held by a context variable: an asyncio task and `asyncio.to_thread` inherit it, a thread that the task starts by hand takes it
along with `contextvars.copy_context().run`.
"""

import time
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime

from horsies.model.errors import OutsideTaskError
from horsies.model.record import Record
from horsies.model.send_options import TaskId

MAX_MESSAGE = 1_000


class CurrentTask(Record, hidden=frozenset({"until", "is_cancelled", "report"})):
    """The running task, seen from inside."""

    task_id: TaskId
    task_name: str
    queue_name: str
    attempt: int
    """1 for the first."""
    root_id: str | None = None
    """Of a task that a workflow runs: the outermost run."""
    deadline: datetime | None
    """When its `timeout_ms` is over."""
    until: float | None
    """The same on the monotonic clock, which nobody sets."""
    is_cancelled: Callable[[], bool]
    report: Callable[[float | None, str | None], None]

    @property
    def seconds_left(self) -> float | None:
        """Until the deadline: negative after it, None without one."""
        return None if self.until is None else self.until - time.monotonic()

    @property
    def cancelled(self) -> bool:
        """Somebody has asked this task to stop."""
        return self.is_cancelled()

    def progress(self, fraction: float | None, message: str | None = None) -> None:
        """Say how far it is, from 0 to 1 (None: no idea), as often as you like: about one a second is passed on, and the last.

        Safe from any thread.
        """
        self.report(_checked_fraction(fraction), _checked_message(message))


_current: ContextVar[CurrentTask] = ContextVar("horsies_current_task")


def current_task() -> CurrentTask:
    """The task that this code runs in. Raises OutsideTaskError where there is none."""
    try:
        return _current.get()
    except LookupError:
        raise OutsideTaskError(
            "current_task() was called where no task runs; in a thread that a task has started, "
            "run the function with contextvars.copy_context().run(function)"
        ) from None


def current_task_if_any() -> CurrentTask | None:
    return _current.get(None)


def set_current_task(current: CurrentTask) -> None:
    """For whoever runs tasks, in the context made for this one."""
    _current.set(current)


def warn_inside_task(stacklevel: int) -> None:
    """About a wait for other tasks: those that wait in all slots, for tasks that need a slot, wait for ever."""
    current = current_task_if_any()
    if current is not None:
        warnings.warn(
            f"task {current.task_name!r} waits for another task, and holds a slot of its worker meanwhile; when all slots are "
            "held so, nothing goes on: better send what comes next at the end of the other task",
            stacklevel=stacklevel + 1,
        )


def _checked_fraction(fraction: object) -> float | None:
    if fraction is None:
        return None
    if isinstance(fraction, int | float) and not isinstance(fraction, bool) and 0 <= fraction <= 1:  # NaN is not
        return float(fraction)
    raise ValueError(f"progress is {fraction!r}; give a fraction from 0 to 1, or None with a message")


def _checked_message(message: object) -> str | None:
    if message is None:
        return None
    if not isinstance(message, str):
        raise TypeError(f"the message of a progress report must be text, not {type(message).__name__}")
    return message[:MAX_MESSAGE].encode(errors="replace").decode().replace("\x00", "�")  # as the database takes it
