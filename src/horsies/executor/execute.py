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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias, cast

from horsies.events import Span, TaskRaised, TaskSpan, begin_span, emit, end_span, subscribers
from horsies.executor.around import Surrounded
from horsies.executor.attempt_logs import AttemptLines, set_current_lines
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
_OUR_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - compared with the names of files in tracebacks

CallOutcome: TypeAlias = tuple[Any, BaseException | None]
"""What the function returned, or what it raised."""

COMPLETED_LEVEL = logging.INFO if os.environ.get("HORSIES_LOG_COMPLETED") else logging.DEBUG
"""`horsies dev` sets the variable for its worker."""

log = logging.getLogger("horsies.executor")


@dataclass(slots=True, eq=False)
class RunningTask:
    """A task from its start to its end, with the requests to stop it. The soft stop is raised in it at most once.

    Once, because then the code around the task is correct without locks: a soft stop that is raised there, just before or
    after the task's own code, cannot be followed by a second one. A task that swallows it is left alone until it is killed.
    """

    assignment: Assignment
    began_ns: int = field(default_factory=time.perf_counter_ns)
    is_timed_out: bool = False
    is_cancelled: bool = False
    is_shutdown: bool = False
    is_interrupted: bool = False
    is_over: bool = False
    misfit: Misfit = Misfit.NONE
    span: Span | None = None
    lines: AttemptLines | None = None
    """What it logs, if it keeps logs."""
    surrounded: Surrounded | None = None
    """Its call, if there is middleware around it."""

    def request_stop(self, reason: StopReason) -> None:
        """Record the request. The caller must then make the thread or event loop of the task call `raise_once`."""
        if reason == "timeout":
            self.is_timed_out = True
        else:
            self.is_cancelled, self.is_shutdown = True, reason == "shutdown"

    @property
    def soft_stop(self) -> type[TaskTimeoutError] | type[TaskCancelledError]:
        return TaskTimeoutError if self.is_timed_out else TaskCancelledError

    def raise_once(self) -> None:
        """Raise the soft stop if it was requested and has not been raised yet."""
        if (self.is_timed_out or self.is_cancelled) and not self.is_interrupted:
            self.is_interrupted = True
            raise self.soft_stop(self.soft_stop.__doc__)


class PreparedCall(NamedTuple):
    """A task, and its function with the arguments, to be called in this context."""

    task: BaseTask[..., Any]
    function: Callable[[], Any]
    context: Context


def prepare(
    tasks: Mapping[str, BaseTask[..., Any]],
    running: RunningTask,
    report: Callable[[int, float | None, str | None], None],
    capture: Callable[[int], AttemptLines],
) -> PreparedCall | Done:
    """Return the call that was sent, or the report of why it cannot be made here.

    In its context `current_task()` is this task, spans are inside the span of the task, and what is logged is captured if it keeps logs. It includes
    what the start hooks have set.
    """
    given, bound, context = running.assignment, _bind(tasks, running), copy_context()
    timeout_s = None if given.timeout_ms is None else given.timeout_ms / 1000

    def report_while_running(fraction: float | None, message: str | None) -> None:
        if not running.is_over:  # else a thread that the task has left behind reports
            report(given.assignment_no, fraction, message)

    current = CurrentTask(
        task_id=given.id,
        task_name=given.task_name,
        queue_name=given.queue_name,
        attempt=given.attempt,
        root_id=given.root_id,
        deadline=None if timeout_s is None else datetime.now(UTC) + timedelta(seconds=timeout_s),
        until=None if timeout_s is None else time.monotonic() + timeout_s,
        is_cancelled=lambda: running.is_cancelled,
        report=report_while_running,
        call=None if isinstance(bound, TaskError) else bound[1],
    )
    context.run(set_current_task, current)
    if isinstance(bound, TaskError):
        return context.run(_fail_before_start, running, bound)
    task, function = bound
    if (tracer := task.app.tracer) is not None:
        work = TaskSpan(given.id, given.task_name, given.queue_name, given.attempt, given.trace)
        running.span = context.run(begin_span, tracer, work)
    if task.keeps_logs:
        running.lines = capture(given.assignment_no)
        context.run(set_current_lines, running.lines)
    all_ = task.app.middlewares
    if middlewares := all_ and [each for each in all_ if each.applies_to(is_async=task.is_async)]:
        running.surrounded = call = Surrounded(middlewares, current, task, function)
        return PreparedCall(task, call.call if task.is_async else call.call_now, context)
    return PreparedCall(task, function, context)


def _bind(
    tasks: Mapping[str, BaseTask[..., Any]], running: RunningTask
) -> "tuple[BaseTask[..., Any], partial[Any]] | TaskError":
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
        _ = task.result.adapter  # built before the call: no result is lost if that fails
        args, kwargs = task.arguments.decode(text)
    except PayloadError as error:
        running.misfit = Misfit.VALUES if task.arguments.has_these_parameters(text) else Misfit.PARAMETERS
        return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=str(error))
    except Exception as error:  # noqa: BLE001 - a validator of the user
        running.misfit = Misfit.VALUES
        return codec_error(task, "reading the arguments", error)
    if inputs is not None:
        kwargs |= inputs.context_arguments(task.arguments.wants, tasks)
    return task, partial(task.function, *args, **kwargs)


def _fail_before_start(running: RunningTask, error: TaskError) -> Done:
    if running.misfit is Misfit.NONE:
        _log_failure(running, error)
    return _failure(running, error)._replace(misfit=running.misfit)


def finish(running: RunningTask, task: BaseTask[..., Any], outcome: CallOutcome) -> Done:
    """Report how a call ended. After its timeout a task has failed, whatever it did then; a cancelled task may still succeed."""
    running.is_over = True
    (returned, raised), surrounded = outcome, running.surrounded
    if raised is not None or running.is_timed_out:
        done = _done_from_exception(running, task, raised)
    elif isinstance(result := (surrounded and surrounded.encoded) or encode_result(task, returned), str):
        duration_us = (time.perf_counter_ns() - running.began_ns) // 1000
        log.log(COMPLETED_LEVEL, "task %s: completed in %.1f ms", task.name, duration_us / 1000)
        done = Done(running.assignment.assignment_no, TaskStatus.COMPLETED.value, duration_us, None, result, None)
    else:
        _log_failure(running, result, task)
        is_own = not isinstance(returned, TaskResult) or result is not cast("TaskResult[Any, TaskError]", returned).err
        done = _failure(running, result, max_bytes=task.result.size_check.limits.max_bytes, is_own=is_own)
    if running.span is not None:
        end_span(running.span, done.error_code, raised)
    return done


def _done_from_exception(running: RunningTask, task: BaseTask[..., Any], raised: BaseException | None) -> Done:
    """Report a task that raised, or that ran too long."""
    trace = None if raised is None else raised.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        trace = trace.tb_next
    if raised is not None and trace is not None:
        raised.__traceback__ = trace  # it begins at the user's code, without our frames
    if running.is_timed_out or raised is None:
        timeout_ms = running.assignment.timeout_ms
        attempt = _describe_attempt(running, task)
        log.warning(
            "task %s: ran longer than its timeout of %s ms, failed, %s", task.name, timeout_ms, attempt, exc_info=raised
        )
        error = TaskError(
            error_code=OutcomeCode.TASK_TIMEOUT,
            message=f"it ran longer than its timeout_ms={timeout_ms}",
            data=None if raised is None else exception_data(raised),  # where it was at that time
        )
        return _failure(running, error, wants_retry=_is_retryable(task.retry_policy, TaskTimeoutError()))
    if running.is_cancelled and any(
        isinstance(each, TaskCancelledError | CancelledError) for each in exception_chain(raised)
    ):
        what = (
            "INTERRUPTED while running, because its worker is stopping"
            if running.is_shutdown
            else "cancelled while running"
        )
        log.info("task %s: %s", task.name, what)
        message, data = "it was cancelled while it ran", exception_data(raised)
        error = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message=message, data=data)
        return _failure(running, error, status=TaskStatus.CANCELLED)
    middleware = None if running.surrounded is None else running.surrounded.failed_middleware
    by = "" if middleware is None else f"middleware {middleware} "
    attempt = _describe_attempt(running, task)
    log.warning("task %s: %sraised %s, %s", task.name, by, type(raised).__name__, attempt, exc_info=raised)
    if subscribers:
        given = running.assignment
        emit(TaskRaised(given.id, task.name, given.queue_name, given.attempt, raised))
    error = unhandled_error(task, raised)
    if by:
        error = replace(error, message=f"{by}raised {error.message}")
    return _failure(running, error, wants_retry=_is_retryable(task.retry_policy, raised))


def _is_retryable(policy: RetryPolicy | None, raised: BaseException) -> bool:
    return policy is not None and holds_for_all(raised, lambda error: isinstance(error, policy.exceptions))


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
        duration_us=(time.perf_counter_ns() - running.began_ns) // 1000,
        error_code=error.error_code,
        result=None,
        error=encode_error(error, max_bytes, running.assignment.id if is_own else None),
        wants_retry=wants_retry,
        retry_after_ms=None if retry_after_s is None else max(0, round(retry_after_s * 1000)),
    )


def _log_failure(running: RunningTask, error: TaskError, task: BaseTask[..., Any] | None = None) -> None:
    # The code only: messages may quote the arguments, which are never logged.
    attempt = _describe_attempt(running, task)
    log.warning("task %s: failed with %s, %s", running.assignment.task_name, error.error_code, attempt)


def _describe_attempt(running: RunningTask, task: BaseTask[..., Any] | None) -> str:
    """Return which attempt it is. Whether a retry follows, and when, is decided by the database, and logged by the worker."""
    number = running.assignment.attempt
    retries = 0 if task is None or task.retry_policy is None else task.retry_policy.max_retries
    follows = "" if number <= retries else ", no retry follows"
    return f"attempt {number} of {max(number, retries + 1)}{follows}"


class ProgressReports:
    """Send the progress that tasks report to the worker: at most once a second per task, and always the newest.

    Any thread may report. Nothing is sent for an assignment after `take_last` has returned for it.

    A soft stop may be raised in a task while it reports. So `report` only puts values into sets and queues, each in one atomic
    step; a lock might stay locked, and a write might send half a frame. A thread does the rest.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self.reporting: set[int] = set()
        """The assignments that have reported something. `take_last` is needed for these only."""
        self._reports: SimpleQueue[Progress] = SimpleQueue()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._unsent: dict[int, Progress] = {}  # by assignment, the newest
        self._next_send_at: dict[int, float] = {}
        self._state = threading.Lock()  # guards these two, and reading from `_reports`
        threading.Thread(target=self._send_until_exit, name="horsies-progress", daemon=True).start()

    def report(self, assignment_no: int, fraction: float | None, message: str | None) -> None:
        self.reporting.add(assignment_no)
        self._reports.put(Progress(assignment_no, fraction, message))
        self._wakeups.put(None)

    def take_last(self, assignment_no: int) -> bytes:
        """Return the frame of the last report if it has not been sent, to be sent before the ending."""
        self.reporting.discard(assignment_no)
        with self._state:
            self._read_reports()
            self._next_send_at.pop(assignment_no, None)
            last = self._unsent.pop(assignment_no, None)
            return pack(last) if last else b""

    def _send_until_exit(self) -> None:
        due_in_s: float | None = None
        while True:
            with suppress(Empty):
                self._wakeups.get(timeout=due_in_s)
            with self._state:
                self._read_reports()
                now = time.monotonic()
                due = [one for one in self._unsent if self._next_send_at.get(one, 0.0) <= now]
                if due:
                    self._send(pack(*map(self._unsent.pop, due)))
                self._next_send_at |= dict.fromkeys(due, now + PROGRESS_INTERVAL_S)
                send_times = [self._next_send_at[one] for one in self._unsent]
            due_in_s = max(0.0, min(send_times) - now) if send_times else None

    def _read_reports(self) -> None:
        with suppress(Empty):
            while True:
                report = self._reports.get_nowait()
                self._unsent[report.assignment_no] = report
