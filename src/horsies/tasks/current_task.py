"""`current_task()`: the running task as its own code sees it, and its progress reports.

It is kept in a context variable. Asyncio tasks and `asyncio.to_thread` inherit it; for a thread that the task starts itself, run the function of the thread
with `contextvars.copy_context().run`.
"""

import inspect
import time
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from horsies.model.errors import OutsideTaskError
from horsies.model.other_queues import CURRENT_TASK_NAMES, explain_missing
from horsies.model.send_options import TaskId

MAX_MESSAGE = 1_000


@dataclass(frozen=True, kw_only=True)
class CurrentTask:
    """The running task, for its own code."""

    task_id: TaskId
    task_name: str
    queue_name: str
    attempt: int
    """1 for the first attempt."""
    root_id: str | None = None
    """For a task of a workflow: the outermost run."""
    deadline: datetime | None
    """When its `timeout_ms` ends."""
    until: float | None = field(repr=False)
    """The deadline on the monotonic clock, which cannot be set back or forward."""
    is_cancelled: Callable[[], bool] = field(repr=False)
    report: Callable[[float | None, str | None], None] = field(repr=False)

    call: "partial[Any] | None" = field(default=None, repr=False)
    """The function with its arguments."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the task by parameter name, with the defaults of those that were not given. For middleware."""
        if self.call is None:
            return {}
        bound = inspect.signature(self.call.func).bind(*self.call.args, **self.call.keywords)
        bound.apply_defaults()
        return bound.arguments

    @property
    def seconds_left(self) -> float | None:
        """The time until the deadline: negative after it, None without one."""
        return None if self.until is None else self.until - time.monotonic()

    @property
    def cancelled(self) -> bool:
        """Whether this task was requested to stop."""
        return self.is_cancelled()

    def progress(self, fraction: float | None, message: str | None = None) -> None:
        """Report the progress, from 0 to 1, or None if it is not known. Call it as often as you like: about one report a second is stored, and the last one.

        Safe from any thread.
        """
        given: Any = fraction  # users without a type checker
        if given is not None:
            if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:  # NaN is not
                raise ValueError(f"progress is {given!r}; give a fraction from 0 to 1, or None with a message")
            fraction = float(given)
        if message is not None:
            if not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"the message of a progress report must be text, not {type(message).__name__}")
            # Text that the database accepts.
            message = message[:MAX_MESSAGE].encode(errors="replace").decode().replace("\x00", "�")
        self.report(fraction, message)

    if not TYPE_CHECKING:
        __getattr__ = explain_missing(CURRENT_TASK_NAMES)


_current: ContextVar[CurrentTask] = ContextVar("horsies_current_task")


def current_task() -> CurrentTask:
    """Return the task that runs this code. Raises OutsideTaskError outside a task."""
    try:
        return _current.get()
    except LookupError:
        raise OutsideTaskError(
            "current_task() was called outside a task; in a thread that a task has started, "
            "run the function with contextvars.copy_context().run(function)"
        ) from None


def current_task_if_any() -> CurrentTask | None:
    return _current.get(None)


set_current_task = _current.set
"""Set the task of the current context. The executor calls this in a context of its own for each task."""


def warn_inside_task(stacklevel: int) -> None:
    """Warn about a wait for other tasks: if the tasks in all slots wait for tasks that need a slot, none of them ever continues."""
    if (current := _current.get(None)) is not None:
        warnings.warn(
            f"task {current.task_name!r} waits for another task and occupies a slot of its worker during that time; when all slots "
            "wait like this, none continues. Send the next task at the end of the other task instead",
            stacklevel=stacklevel + 1,
        )
