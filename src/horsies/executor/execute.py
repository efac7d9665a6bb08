"""Turn an assignment into a call, and the outcome of the call into the report of an ending.

User code may do anything: what it returns or raises becomes a value here, and the child goes on.
"""

import logging
import os
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias, cast

from horsies.events import Span, TaskRaised, TaskSpan, Tracer, begin_span, emit, end_span, subscribers
from horsies.executor.protocol import Assignment, Done, Progress, StopReason, pack
from horsies.model.codec import encode_error
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode, holds_for_all
from horsies.model.errors import PayloadError, TaskCancelledError, TaskTimeoutError
from horsies.model.payload_errors import DEFAULT_MAX_BYTES
from horsies.model.result import TaskError, TaskResult
from horsies.model.retry_policy import RetryPolicy
from horsies.model.status import Misfit, TaskStatus
from horsies.tasks.current_task import CurrentTask, set_current_task
from horsies.tasks.task import (
    BaseTask,
    codec_error,
    encode_result,
    exception_chain,
    exception_data,
    unhandled_error,
)
from horsies.workflows.inputs import inputs_from_json

PROGRESS_INTERVAL_S = 1.0
_OUR_FOLDER = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - compared with the names of files in tracebacks

CallOutcome: TypeAlias = tuple[Any, BaseException | None]
"""What the function returned, or what it raised."""

log = logging.getLogger("horsies.executor")


class RunningTask:
    """A task from its start to its end, with the requests to stop it. The soft stop is raised in it at most once.

    Once, because then the code around the task is correct without locks: a soft stop that is raised there, just before or
    after the task's own code, cannot be followed by a second one. A task that swallows it is left alone until it is killed.
    """

    __slots__ = (
        "assignment",
        "began_ns",
        "is_cancelled",
        "is_interrupted",
        "is_over",
        "is_timed_out",
        "misfit",
        "span",
    )

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.began_ns = time.perf_counter_ns()
        self.is_timed_out = self.is_cancelled = self.is_interrupted = self.is_over = False
        self.misfit = Misfit.NONE
        self.span: Span | None = None

    def request_stop(self, reason: StopReason) -> None:
        """Record the request. The caller must then make the thread or event loop of the task call `raise_once`."""
        if reason == "timeout":
            self.is_timed_out = True
        else:
            self.is_cancelled = True

    @property
    def soft_stop(self) -> type[TaskTimeoutError] | type[TaskCancelledError]:
        return TaskTimeoutError if self.is_timed_out else TaskCancelledError

    def raise_once(self) -> None:
        """Raise the soft stop if it was requested and has not been raised yet."""
        if (self.is_timed_out or self.is_cancelled) and not self.is_interrupted:
            self.is_interrupted = True
            raise self.soft_stop(self.soft_stop.__doc__)

    def task_context(self, report: Callable[[int, float | None, str | None], None]) -> Context:
        """Return a new context in which `current_task()` is this task. It includes what the start hooks have set."""
        assignment, context = self.assignment, copy_context()
        timeout_s = None if assignment.timeout_ms is None else assignment.timeout_ms / 1000

        def report_while_running(fraction: float | None, message: str | None) -> None:
            if not self.is_over:  # else a thread that the task has left behind reports
                report(assignment.assignment_no, fraction, message)

        current = CurrentTask(
            task_id=assignment.id,
            task_name=assignment.task_name,
            queue_name=assignment.queue_name,
            attempt=assignment.attempt,
            root_id=assignment.root_id,
            deadline=None if timeout_s is None else datetime.now(UTC) + timedelta(seconds=timeout_s),
            until=None if timeout_s is None else time.monotonic() + timeout_s,
            is_cancelled=lambda: self.is_cancelled,
            report=report_while_running,
        )
        context.run(set_current_task, current)
        return context

    def begin_span(self, context: Context, tracer: Tracer | None) -> None:
        """Begin the span of this task, if the app has a tracer; spans that are made in its context are inside it."""
        if tracer is not None:
            given = self.assignment
            work = TaskSpan(given.id, given.task_name, given.queue_name, given.attempt, given.trace)
            self.span = context.run(begin_span, tracer, work)


class PreparedCall(NamedTuple):
    """A task, and its function with the arguments."""

    task: BaseTask[..., Any]
    function: Callable[[], Any]


def prepare(tasks: Mapping[str, BaseTask[..., Any]], running: RunningTask) -> PreparedCall | TaskError:
    """Return the call that was sent, or why it cannot be made here."""
    assignment = running.assignment
    task = tasks.get(assignment.task_name)
    if task is None:
        running.misfit = Misfit.UNKNOWN
        return TaskError(
            error_code=OperationalErrorCode.WORKER_RESOLUTION_ERROR,
            message=f"this worker has no task named {assignment.task_name!r}; "
            "is its module in app.discover_tasks([...]), and is this worker up to date?",
        )
    inputs, text = None, assignment.args
    if assignment.inputs is not None:
        try:
            inputs = inputs_from_json(assignment.inputs)
            text = inputs.insert_into(text)
        except Exception as error:  # noqa: BLE001 - the row of a node may have been written by hand; the child must survive it
            message = f"what its node refers to cannot be read: {type(error).__name__}"
            return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=message)
        if isinstance(text, TaskError):
            return text
    try:
        args, kwargs = task.arguments.decode(text)
    except PayloadError as error:
        running.misfit = Misfit.VALUES if task.arguments.has_these_parameters(text) else Misfit.PARAMETERS
        return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=str(error))
    except Exception as error:  # noqa: BLE001 - a validator of the user
        running.misfit = Misfit.VALUES
        return codec_error(task, "reading the arguments", error)
    if inputs is not None:
        kwargs |= inputs.context_arguments(task.arguments.wants, tasks)
    return PreparedCall(task, partial(task.function, *args, **kwargs))


def fail_before_start(running: RunningTask, error: TaskError) -> Done:
    """Report a task that `prepare` could not prepare."""
    if running.misfit is Misfit.NONE:
        _log_failure(running, error)
    return _failure(running, error)._replace(misfit=running.misfit)


def finish(running: RunningTask, task: BaseTask[..., Any], outcome: CallOutcome) -> Done:
    """Report how a call ended. After its timeout a task has failed, whatever it did then; a cancelled task may still succeed."""
    running.is_over = True
    raised = outcome[1]
    if raised is not None:
        trace = raised.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
            trace = trace.tb_next
        if trace is not None:
            raised.__traceback__ = trace  # it begins at the user's code, without our frames
    done = _done_from_outcome(running, task, outcome)
    if running.span is not None:
        end_span(running.span, done.error_code, raised)
    return done


def _done_from_outcome(running: RunningTask, task: BaseTask[..., Any], outcome: CallOutcome) -> Done:
    returned, raised = outcome
    if running.is_timed_out:
        timeout_ms = running.assignment.timeout_ms
        log.warning("task %s: ran longer than its timeout of %s ms, failed", task.name, timeout_ms, exc_info=raised)
        error = TaskError(
            error_code=OutcomeCode.TASK_TIMEOUT,
            message=f"it ran longer than its timeout_ms={timeout_ms}",
            data=exception_data(raised) if raised else None,  # where it was at that time
        )
        return _failure(running, error, wants_retry=_is_retryable(task.retry_policy, TaskTimeoutError()))
    if raised is None:
        return _done_from_value(running, task, returned)
    if running.is_cancelled and any(
        isinstance(each, TaskCancelledError | CancelledError) for each in exception_chain(raised)
    ):
        log.info("task %s: cancelled while running", task.name)
        message, data = "it was cancelled while it ran", exception_data(raised)
        error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message=message, data=data)
        return _failure(running, error, status=TaskStatus.CANCELLED)
    log.warning("task %s: raised %s", task.name, type(raised).__name__, exc_info=raised)
    if subscribers:
        given = running.assignment
        emit(TaskRaised(given.id, task.name, given.queue_name, given.attempt, raised))
    return _failure(running, unhandled_error(task, raised), wants_retry=_is_retryable(task.retry_policy, raised))


def _is_retryable(policy: RetryPolicy | None, raised: BaseException) -> bool:
    return policy is not None and holds_for_all(raised, lambda error: isinstance(error, policy.exceptions))


def _done_from_value(running: RunningTask, task: BaseTask[..., Any], returned: object) -> Done:
    result = encode_result(task, returned)
    if isinstance(result, TaskError):
        _log_failure(running, result)
        is_own = not isinstance(returned, TaskResult) or result is not cast("TaskResult[Any, TaskError]", returned).err
        return _failure(running, result, max_bytes=task.result.size_check.limits.max_bytes, is_own=is_own)
    duration_us = _duration_us(running)
    log.debug("task %s: completed in %.1f ms", task.name, duration_us / 1000)
    return Done(running.assignment.assignment_no, TaskStatus.COMPLETED.value, duration_us, None, result, None)


def _failure(
    running: RunningTask,
    error: TaskError,
    *,
    status: TaskStatus = TaskStatus.FAILED,
    wants_retry: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    is_own: bool = True,
) -> Done:
    """Report an ending with an error. `is_own`: the library made the error, not the task."""
    retry_after_s = error.retry_after_seconds
    return Done(
        assignment_no=running.assignment.assignment_no,
        status=status.value,
        duration_us=_duration_us(running),
        error_code=error.error_code,
        result=None,
        error=encode_error(error, max_bytes, running.assignment.id if is_own else None),
        wants_retry=wants_retry,
        retry_after_ms=None if retry_after_s is None else max(0, round(retry_after_s * 1000)),
    )


def _duration_us(running: RunningTask) -> int:
    return (time.perf_counter_ns() - running.began_ns) // 1000


def _log_failure(running: RunningTask, error: TaskError) -> None:
    # The code only: messages may quote the arguments, which are never logged.
    log.warning("task %s: failed with %s", running.assignment.task_name, error.error_code)


class _TaskProgress:
    """The newest report of one task that has not been sent."""

    def __init__(self) -> None:
        self.next_send_at = 0.0
        self.unsent: Progress | None = None


class ProgressReports:
    """Send the progress that tasks report to the worker: at most once a second per task, and always the newest.

    Any thread may report. Nothing is sent for an assignment after `take_last` has returned for it.

    A soft stop may be raised in a task while it reports. So `report` only puts values into sets and queues, each in one atomic
    step; a lock might stay locked, and a write might send half a frame. A thread does the rest.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._reporting: set[int] = set()
        self._reports: SimpleQueue[Progress] = SimpleQueue()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._progress: dict[int, _TaskProgress] = {}
        self._state = threading.Lock()  # guards `_progress`, and reading from `_reports`
        threading.Thread(target=self._send_until_exit, name="horsies-progress", daemon=True).start()

    def report(self, assignment_no: int, fraction: float | None, message: str | None) -> None:
        self._reporting.add(assignment_no)
        self._reports.put(Progress(assignment_no, fraction, message))
        self._wakeups.put(None)

    def take_last(self, assignment_no: int) -> bytes:
        """Return the frame of the last report if it has not been sent, to be sent before the ending."""
        if assignment_no not in self._reporting:  # the usual case costs one lookup
            return b""
        self._reporting.discard(assignment_no)
        with self._state:
            self._read_reports()
            progress = self._progress.pop(assignment_no, None)
            return pack(progress.unsent) if progress and progress.unsent else b""

    def _send_until_exit(self) -> None:
        due_in_s: float | None = None
        while True:
            with suppress(Empty):
                self._wakeups.get(timeout=due_in_s)
            with self._state:
                self._read_reports()
                now = time.monotonic()
                due = [one for one in self._progress.values() if one.unsent and one.next_send_at <= now]
                if due:
                    self._send(pack(*(one.unsent for one in due if one.unsent)))
                for progress in due:
                    progress.next_send_at, progress.unsent = now + PROGRESS_INTERVAL_S, None
                send_times = [progress.next_send_at for progress in self._progress.values() if progress.unsent]
            due_in_s = max(0.0, min(send_times) - now) if send_times else None

    def _read_reports(self) -> None:
        with suppress(Empty):
            while True:
                report = self._reports.get_nowait()
                self._progress.setdefault(report.assignment_no, _TaskProgress()).unsent = report
