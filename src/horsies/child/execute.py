"""Run one task: resolve, decode, call, encode. Whatever user code does, the outcome is a value."""

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from horsies.child.wire import Assignment, Done
from horsies.model.codec import ResultTypeError, encode_error
from horsies.model.codes import ContractCode, OperationalErrorCode
from horsies.model.errors import PayloadError
from horsies.model.result import TaskError, TaskResult
from horsies.model.status import TaskStatus
from horsies.tasks.task import Sendable

log = logging.getLogger("horsies.child")


class Executor:
    """Runs assignments one after another on the main thread of a child.

    Coroutines run on an event loop that lives as long as the child but runs only while one of them does, so that sync
    tasks never find themselves on a thread with a running loop: `asyncio.run()` in them works.
    """

    def __init__(self, tasks: Mapping[str, Sendable[..., Any]]) -> None:
        self._tasks = tasks
        self._runner: asyncio.Runner | None = None

    def execute(self, assignment: Assignment) -> Done:
        began = time.perf_counter_ns()
        result = self._outcome(assignment)
        duration_us = (time.perf_counter_ns() - began) // 1000
        if isinstance(result, str):
            return Done(assignment.ticket, TaskStatus.COMPLETED.value, duration_us, None, result, None)
        error = encode_error(result)
        return Done(assignment.ticket, TaskStatus.FAILED.value, duration_us, result.error_code, None, error)

    def _outcome(self, assignment: Assignment) -> str | TaskError:
        """The result as JSON, or the error."""
        task = self._tasks.get(assignment.task_name)
        if task is None:
            return TaskError(
                error_code=OperationalErrorCode.WORKER_RESOLUTION_ERROR,
                message=f"this worker has no task named {assignment.task_name!r}; "
                "is its module in app.discover_tasks([...]), and is this worker up to date?",
            )
        try:
            args, kwargs = task.arguments.decode(assignment.args)
        except PayloadError as error:
            return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=str(error))
        return self._call(task, lambda: task.function(*args, **kwargs))

    def _call(self, task: Sendable[..., Any], call: Callable[[], Any]) -> str | TaskError:
        try:
            returned = call()
            if task.is_async:
                returned = self._await(returned)
        except BaseException as error:
            log.warning("task %s raised %s", task.name, type(error).__name__, exc_info=error)
            return _unhandled(error)
        return _encoded(task, returned)

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine)

    def close(self) -> None:
        if self._runner:
            self._runner.close()


def _unhandled(error: BaseException) -> TaskError:
    trace = "".join(traceback.format_exception(error))
    return TaskError(
        error_code=OperationalErrorCode.UNHANDLED_ERROR,
        message=_words(error),
        data={"exception": f"{type(error).__module__}.{type(error).__qualname__}", "traceback": trace},
    )


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the user's own __str__
        return f"{type(error).__name__}, which cannot be printed"


def _encoded(task: Sendable[..., Any], returned: object) -> str | TaskError:
    if not isinstance(returned, TaskResult):
        return TaskError(
            error_code=ContractCode.RETURN_TYPE_MISMATCH,
            message=f"task {task.name} returned {type(returned).__name__}, not a TaskResult; "
            "return TaskResult(ok=...) or TaskResult(err=TaskError(...))",
        )
    result = cast("TaskResult[Any, TaskError]", returned)
    if result.is_err():
        return result.unwrap_err()
    try:
        return task.result.encode(result.unwrap())
    except ResultTypeError as error:
        return TaskError(error_code=ContractCode.RETURN_TYPE_MISMATCH, message=f"task {task.name}: {error}")
    except PayloadError as error:
        return TaskError(
            error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=f"task {task.name}: {error}"
        )
