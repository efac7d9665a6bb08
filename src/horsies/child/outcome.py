"""From a task's name and arguments to a call, and from what the call did to an ending. Whatever user code does, it is a value."""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from horsies.child.running import Outcome, Running
from horsies.child.wire import Done
from horsies.model.codec import encode_error
from horsies.model.codes import OperationalErrorCode, OutcomeCode
from horsies.model.errors import PayloadError, TaskCancelledError, TaskTimeoutError
from horsies.model.mapper import every_member
from horsies.model.result import TaskError, TaskResult
from horsies.model.retry import RetryPolicy
from horsies.model.sizes import DEFAULT_MAX_BYTES
from horsies.model.status import Misfit, TaskStatus
from horsies.tasks.ending import broken_codec as _codec_broke
from horsies.tasks.ending import chain_of, encoded, trace_of, unhandled
from horsies.tasks.task import Sendable
from horsies.watchers import emit, subscribers

if TYPE_CHECKING:
    from horsies.workflows.inputs import Inputs

_OUR_ROOM = __file__.removesuffix("outcome.py")

log = logging.getLogger("horsies.child")


class Call(NamedTuple):
    """A task with its arguments."""

    task: Sendable[..., Any]
    function: Callable[[], Any]


def prepare(tasks: Mapping[str, Sendable[..., Any]], running: Running) -> Call | TaskError:
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
        text = assignment.args if inputs is None else inputs.put_into(assignment.args)
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
        kwargs |= inputs.filled_in(task.arguments.wants, tasks)
    return Call(task, partial(task.function, *args, **kwargs))


def _inputs(text: str) -> "Inputs":
    from horsies.workflows.inputs import read  # noqa: PLC0415 - most tasks are no nodes of workflows

    return read(text)


def refused(running: Running, error: TaskError) -> Done:
    """It could not be called here."""
    if running.misfit is Misfit.NONE:
        _tell_failed(running, error)
    return failed(running, error)._replace(misfit=running.misfit)


def conclude(running: Running, task: Sendable[..., Any], outcome: Outcome) -> Done:
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
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_ROOM):
        trace = trace.tb_next
    if trace is not None:
        raised.__traceback__ = trace


def _concluded(running: Running, task: Sendable[..., Any], outcome: Outcome) -> Done:
    returned, raised = outcome
    if running.is_timed_out:
        wants_retry = task.retry_policy is not None and issubclass(TaskTimeoutError, task.retry_policy.exceptions)
        log.warning("task %s ran longer than its %s ms", task.name, running.assignment.timeout_ms, exc_info=raised)
        return failed(running, _timed_out(running, raised), wants_retry=wants_retry)
    if raised is None:
        return _returned(running, task, returned)
    if running.is_cancelled and any(map(_is_cancellation, chain_of(raised))):
        log.info("task %s has stopped, as it was asked to", task.name)
        return failed(running, _cancelled(raised), status=TaskStatus.CANCELLED)
    log.warning("task %s raised %s", task.name, type(raised).__name__, exc_info=raised)
    if subscribers:
        from horsies.events import TaskRaised  # noqa: PLC0415 - for nobody else

        given = running.assignment
        emit(TaskRaised(given.task_id, task.name, given.queue_name, given.attempt, raised))
    return failed(running, unhandled(task, raised), wants_retry=_lists(task.retry_policy, raised))


def _lists(policy: RetryPolicy | None, raised: BaseException) -> bool:
    return policy is not None and every_member(raised, lambda error: isinstance(error, policy.exceptions))


def failed(
    running: Running,
    error: TaskError,
    *,
    status: TaskStatus = TaskStatus.FAILED,
    wants_retry: bool = False,
    max_bytes: int = DEFAULT_MAX_BYTES,
    is_own: bool = True,
) -> Done:
    """`is_own`: the library made the error, and not the task."""
    return Done(
        ticket=running.assignment.ticket,
        status=status.value,
        duration_us=_duration_us(running),
        error_code=error.error_code,
        result=None,
        error=encode_error(error, max_bytes, running.assignment.task_id if is_own else None),
        wants_retry=wants_retry,
        retry_after_ms=_milliseconds(error.retry_after_seconds),
    )


def _returned(running: Running, task: Sendable[..., Any], returned: object) -> Done:
    result = encoded(task, returned)
    if isinstance(result, TaskError):
        _tell_failed(running, result)
        is_own = not isinstance(returned, TaskResult) or result is not cast("TaskResult[Any, TaskError]", returned).err
        return failed(running, result, max_bytes=task.result.max_bytes, is_own=is_own)
    duration_us = _duration_us(running)
    log.debug("task %s completed in %.1f ms", task.name, duration_us / 1000)
    return Done(running.assignment.ticket, TaskStatus.COMPLETED.value, duration_us, None, result, None)


def _tell_failed(running: Running, error: TaskError) -> None:
    """By its code only: messages may quote what it was called with."""
    log.warning("task %s failed: %s", running.assignment.task_name, error.error_code)


def _timed_out(running: Running, raised: BaseException | None) -> TaskError:
    return TaskError(
        error_code=OutcomeCode.TASK_TIMEOUT,
        message=f"it ran longer than its timeout_ms={running.assignment.timeout_ms}",
        data=trace_of(raised) if raised else None,  # where it was at the time
    )


def _is_cancellation(error: BaseException) -> bool:
    asyncio = sys.modules.get("asyncio")  # where it is not loaded, nobody can have raised its exception
    return isinstance(error, TaskCancelledError) or (asyncio is not None and isinstance(error, asyncio.CancelledError))


def _cancelled(raised: BaseException) -> TaskError:
    return TaskError(
        error_code=OutcomeCode.TASK_CANCELLED, message="it was cancelled while it ran", data=trace_of(raised)
    )


def _duration_us(running: Running) -> int:
    return (time.perf_counter_ns() - running.began_ns) // 1000


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(seconds * 1000))
