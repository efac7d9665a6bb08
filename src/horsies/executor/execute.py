"""From a task's name and arguments to a call, and from what the call did to an ending. Whatever user code does, it is a value."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from horsies.executor.protocol import Assignment, Done, Progress, Reason, pack
from horsies.model.codec import encode_error
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode, holds_for_all
from horsies.model.errors import PayloadError, TaskCancelledError, TaskTimeoutError
from horsies.model.payload_errors import DEFAULT_MAX_BYTES
from horsies.model.result import TaskError, TaskResult
from horsies.model.retry_policy import RetryPolicy
from horsies.model.status import Misfit, TaskStatus
from horsies.subscribers import emit, subscribers
from horsies.tasks.current_task import CurrentTask, set_current_task
from horsies.tasks.outcome import codec_error as _codec_broke
from horsies.tasks.outcome import encode_result, exception_chain, exception_data, unhandled_error
from horsies.tasks.task import BaseTask

if TYPE_CHECKING:
    from horsies.events import Span, Tracer
    from horsies.workflows.inputs import Inputs

# --------
# A task between its beginning and its end: who it is, and what has been asked of it meanwhile.


class RunningTask:
    """One task. Asked to stop by one thread and struck by it, or by another, at most once.

    Once, because the code around the task stays right then without any locks: an exception that strikes there, just before or
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

    def __init__(self, assignment: Assignment, began_ns: int) -> None:
        self.assignment = assignment
        self.began_ns = began_ns
        self.is_timed_out = self.is_cancelled = self.is_interrupted = self.is_over = False
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
        if self.is_asked and not self.is_interrupted:
            self.is_interrupted = True
            raise self.soft_stop(self.soft_stop.__doc__)


def begin(assignment: Assignment) -> RunningTask:
    return RunningTask(assignment, time.perf_counter_ns())


def context_of(running: RunningTask, report: Callable[[int, float | None, str | None], None]) -> Context:
    """A context of its own, in which `current_task()` is this one. What the start hooks have set is seen in it."""
    assignment, context = running.assignment, copy_context()
    timeout_s = None if assignment.timeout_ms is None else assignment.timeout_ms / 1000

    def report_own(fraction: float | None, message: str | None) -> None:
        if not running.is_over:  # a thread that it has left behind
            report(assignment.assignment_no, fraction, message)

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


def trace(running: RunningTask, context: Context, tracer: "Tracer | None") -> None:
    """Begin its span, if somebody traces it; spans that are made in its context are within."""
    if tracer is not None:
        from horsies.events import TaskSpan, begin_span  # noqa: PLC0415 - for nobody else

        given = running.assignment
        run = TaskSpan(given.task_id, given.task_name, given.queue_name, given.attempt, given.trace)
        running.span = context.run(begin_span, tracer, run)


Attempt = tuple[Any, BaseException | None]
"""What the function returned, or what it raised."""


_OUR_FOLDER = __file__.removesuffix("outcome.py")

log = logging.getLogger("horsies.executor")


class PreparedCall(NamedTuple):
    """A task with its arguments."""

    task: BaseTask[..., Any]
    function: Callable[[], Any]


def prepare(tasks: Mapping[str, BaseTask[..., Any]], running: RunningTask) -> PreparedCall | TaskError:
    """The call that was sent, or why it cannot be made here."""
    assignment = running.assignment
    task = tasks.get(assignment.task_name)
    if task is None:
        running.misfit = Misfit.UNKNOWN
        return TaskError(
            error_code=OperationalErrorCode.WORKER_RESOLUTION_ERROR,
            message=f"this worker has no task named {assignment.task_name!r}; "
            "is its module in app.discover_tasks([...]), and is this worker up to date?",
        )
    try:
        inputs = None if assignment.inputs is None else _inputs(assignment.inputs)
        text = assignment.args if inputs is None else inputs.insert_into(assignment.args)
    except Exception as error:  # noqa: BLE001 - of a node that somebody wrote by hand; the child must not die of it
        words = f"what its node refers to cannot be read: {type(error).__name__}"
        return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=words)
    if isinstance(text, TaskError):
        return text
    try:
        args, kwargs = task.arguments.decode(text)
    except PayloadError as error:
        running.misfit = Misfit.VALUES if task.arguments.has_these_parameters(text) else Misfit.PARAMETERS
        return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=str(error))
    except Exception as error:  # noqa: BLE001 - a validator of the user's
        running.misfit = Misfit.VALUES
        return _codec_broke(task, "reading the arguments", error)
    if inputs is not None:
        kwargs |= inputs.context_arguments(task.arguments.wants, tasks)
    return PreparedCall(task, partial(task.function, *args, **kwargs))


def _inputs(text: str) -> "Inputs":
    from horsies.workflows.inputs import inputs_from_json  # noqa: PLC0415 - most tasks are no nodes of workflows

    return inputs_from_json(text)


def refused_before_start(running: RunningTask, error: TaskError) -> Done:
    """It could not be called here."""
    if running.misfit is Misfit.NONE:
        _tell_failed(running, error)
    return failed(running, error)._replace(misfit=running.misfit)


def finish(running: RunningTask, task: BaseTask[..., Any], outcome: Attempt) -> Done:
    """How it ended. A task that was over its time has failed whatever it did then; a cancelled one may still succeed."""
    running.is_over = True
    if outcome[1] is not None:
        _begin_at_user_code(outcome[1])
    done = _concluded(running, task, outcome)
    if running.span is not None:
        from horsies.events import end_span  # noqa: PLC0415 - for nobody else

        end_span(running.span, done.error_code, outcome[1])
    return done


def _begin_at_user_code(raised: BaseException) -> None:
    """How we came to call the task tells nobody anything."""
    trace = raised.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        trace = trace.tb_next
    if trace is not None:
        raised.__traceback__ = trace


def _concluded(running: RunningTask, task: BaseTask[..., Any], outcome: Attempt) -> Done:
    returned, raised = outcome
    if running.is_timed_out:
        wants_retry = task.retry_policy is not None and issubclass(TaskTimeoutError, task.retry_policy.exceptions)
        log.warning("task %s ran longer than its %s ms", task.name, running.assignment.timeout_ms, exc_info=raised)
        return failed(running, _timed_out(running, raised), wants_retry=wants_retry)
    if raised is None:
        return _returned(running, task, returned)
    if running.is_cancelled and any(map(_is_cancellation, exception_chain(raised))):
        log.info("task %s has stopped, as it was asked to", task.name)
        return failed(running, _cancelled(raised), status=TaskStatus.CANCELLED)
    log.warning("task %s raised %s", task.name, type(raised).__name__, exc_info=raised)
    if subscribers:
        from horsies.events import TaskRaised  # noqa: PLC0415 - for nobody else

        given = running.assignment
        emit(TaskRaised(given.task_id, task.name, given.queue_name, given.attempt, raised))
    return failed(running, unhandled_error(task, raised), wants_retry=_is_retryable(task.retry_policy, raised))


def _is_retryable(policy: RetryPolicy | None, raised: BaseException) -> bool:
    return policy is not None and holds_for_all(raised, lambda error: isinstance(error, policy.exceptions))


def failed(
    running: RunningTask,
    error: TaskError,
    *,
    status: TaskStatus = TaskStatus.FAILED,
    wants_retry: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    is_own: bool = True,
) -> Done:
    """`is_own`: the library made the error, and not the task."""
    return Done(
        assignment_no=running.assignment.assignment_no,
        status=status.value,
        duration_us=_duration_us(running),
        error_code=error.error_code,
        result=None,
        error=encode_error(error, max_bytes, running.assignment.task_id if is_own else None),
        wants_retry=wants_retry,
        retry_after_ms=_milliseconds(error.retry_after_seconds),
    )


def _returned(running: RunningTask, task: BaseTask[..., Any], returned: object) -> Done:
    result = encode_result(task, returned)
    if isinstance(result, TaskError):
        _tell_failed(running, result)
        is_own = not isinstance(returned, TaskResult) or result is not cast("TaskResult[Any, TaskError]", returned).err
        return failed(running, result, max_bytes=task.result.max_bytes, is_own=is_own)
    duration_us = _duration_us(running)
    log.debug("task %s completed in %.1f ms", task.name, duration_us / 1000)
    return Done(running.assignment.assignment_no, TaskStatus.COMPLETED.value, duration_us, None, result, None)


def _tell_failed(running: RunningTask, error: TaskError) -> None:
    """By its code only: messages may quote what it was called with."""
    log.warning("task %s failed: %s", running.assignment.task_name, error.error_code)


def _timed_out(running: RunningTask, raised: BaseException | None) -> TaskError:
    return TaskError(
        error_code=OutcomeCode.TASK_TIMEOUT,
        message=f"it ran longer than its timeout_ms={running.assignment.timeout_ms}",
        data=exception_data(raised) if raised else None,  # where it was at the time
    )


def _is_cancellation(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")  # where it is not loaded, nobody can have raised its exception
    return isinstance(error, TaskCancelledError) or (asyncio is not None and isinstance(error, asyncio.CancelledError))


def _cancelled(raised: BaseException) -> TaskError:
    return TaskError(
        error_code=OutcomeCode.TASK_CANCELLED, message="it was cancelled while it ran", data=exception_data(raised)
    )


def _duration_us(running: RunningTask) -> int:
    return (time.perf_counter_ns() - running.began_ns) // 1000


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(seconds * 1000))


# --------
# Progress reports on their way to the parent: at most one a second per task, and never less than the last one.
#
# A soft stop may strike a task while it reports. So reporting is nothing but putting something into a queue, which is one indivisible
# step; a lock might be left locked, and a write might leave half a frame behind. A thread of its own does the rest. What comes too
# early waits for its second to pass, and only the newest of it is kept.

INTERVAL_S = 1.0


class _Reported:
    """Of one ticket."""

    def __init__(self) -> None:
        self.due_at = 0.0  # when something may be sent again
        self.waiting: Progress | None = None


class ProgressReports:
    """Used by any thread. No report of a ticket goes out after `ended` has returned for it."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._talkers: set[int] = set()
        self._inbox: SimpleQueue[Progress] = SimpleQueue()
        self._wakeup: SimpleQueue[None] = SimpleQueue()
        self._told: dict[int, _Reported] = {}
        self._state = threading.Lock()  # for `_told`, and for taking from the inbox
        threading.Thread(target=self._deliver, name="horsies-progress", daemon=True).start()

    def report(self, assignment_no: int, fraction: float | None, message: str | None) -> None:
        self._talkers.add(assignment_no)
        self._inbox.put(Progress(assignment_no, fraction, message))
        self._wakeup.put(None)

    def ended(self, assignment_no: int) -> bytes:
        """The last report, if it still waits, to be sent ahead of the ending."""
        if assignment_no not in self._talkers:  # the usual case, at the cost of one look
            return b""
        self._talkers.discard(assignment_no)
        with self._state:
            self._take_in()
            told = self._told.pop(assignment_no, None)
            return pack(told.waiting) if told and told.waiting else b""

    def _deliver(self) -> None:
        due_in_s: float | None = None
        while True:
            with suppress(Empty):
                self._wakeup.get(timeout=due_in_s)
            with self._state:
                self._take_in()
                now = time.monotonic()
                self._send_due(now)
                dues = [told.due_at for told in self._told.values() if told.waiting]
            due_in_s = max(0.0, min(dues) - now) if dues else None

    def _take_in(self) -> None:
        with suppress(Empty):
            while True:
                progress = self._inbox.get_nowait()
                self._told.setdefault(progress.assignment_no, _Reported()).waiting = progress

    def _send_due(self, now: float) -> None:
        due = [told for told in self._told.values() if told.waiting and told.due_at <= now]
        if due:
            self._send(pack(*(told.waiting for told in due if told.waiting)))
        for told in due:
            told.due_at, told.waiting = now + INTERVAL_S, None
