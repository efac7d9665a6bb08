"""A task between its beginning and its end: who it is, and what has been asked of it meanwhile."""

import time
from collections.abc import Callable
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from horsies.child.wire import Assignment, Reason
from horsies.model.errors import TaskCancelledError, TaskTimeoutError
from horsies.model.status import Misfit
from horsies.tasks.current import CurrentTask, set_current_task

if TYPE_CHECKING:
    from horsies.events import Span, Tracer


class Running:
    """One task. Asked to stop by one thread and struck by it, or by another, at most once.

    Once, because the code around the task stays right then without any locks: an exception that strikes there, just before or
    after the task's own code, cannot be followed by a second one. A task that swallows it is left alone until it is killed.
    """

    __slots__ = ("assignment", "began_ns", "is_cancelled", "is_over", "is_struck", "is_timed_out", "misfit", "span")

    def __init__(self, assignment: Assignment, began_ns: int) -> None:
        self.assignment = assignment
        self.began_ns = began_ns
        self.is_timed_out = self.is_cancelled = self.is_struck = self.is_over = False
        self.misfit = Misfit.NONE
        self.span: Span | None = None

    def ask(self, reason: Reason) -> None:
        """Whoever asks must then make it known to the task."""
        if reason == "timeout":
            self.is_timed_out = True
        else:
            self.is_cancelled = True

    @property
    def is_asked(self) -> bool:
        return self.is_timed_out or self.is_cancelled

    @property
    def soft_stop(self) -> type[TaskTimeoutError] | type[TaskCancelledError]:
        return TaskTimeoutError if self.is_timed_out else TaskCancelledError

    def strike(self) -> None:
        """Raises the soft stop if it was asked for and has not been raised yet."""
        if self.is_asked and not self.is_struck:
            self.is_struck = True
            raise self.soft_stop(self.soft_stop.__doc__)


def begin(assignment: Assignment) -> Running:
    return Running(assignment, time.perf_counter_ns())


def context_of(running: Running, report: Callable[[int, float | None, str | None], None]) -> Context:
    """A context of its own, in which `current_task()` is this one. What the start hooks have set is seen in it."""
    assignment, context = running.assignment, copy_context()
    timeout_s = None if assignment.timeout_ms is None else assignment.timeout_ms / 1000

    def report_own(fraction: float | None, message: str | None) -> None:
        if not running.is_over:  # a thread that it has left behind
            report(assignment.ticket, fraction, message)

    current = CurrentTask(
        task_id=assignment.task_id,
        task_name=assignment.task_name,
        queue_name=assignment.queue_name,
        attempt=assignment.attempt,
        root_id=assignment.root_id,
        deadline=None if timeout_s is None else datetime.now(UTC) + timedelta(seconds=timeout_s),
        until=None if timeout_s is None else time.monotonic() + timeout_s,
        is_cancelled=lambda: running.is_cancelled,
        report=report_own,
    )
    context.run(set_current_task, current)
    return context


def trace(running: Running, context: Context, tracer: "Tracer | None") -> None:
    """Begin its span, if somebody traces it; spans that are made in its context are within."""
    if tracer is not None:
        from horsies.events import Run, begin_span  # noqa: PLC0415 - for nobody else

        given = running.assignment
        run = Run(given.task_id, given.task_name, given.queue_name, given.attempt, given.trace)
        running.span = context.run(begin_span, tracer, run)


Outcome = tuple[Any, BaseException | None]
"""What the function returned, or what it raised."""
