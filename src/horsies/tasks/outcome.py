"""What the function of a task did, as the value or the error with which the task ends: in a child, and for a direct call of a task."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, cast

from horsies.model.codec import ResultCodec
from horsies.model.error_codes import RESERVED_CODES, ContractCode, ErrorCodes, OperationalErrorCode
from horsies.model.errors import PayloadError, ResultTypeError, TaskCancelledError, TaskTimeoutError
from horsies.model.result import TaskError, TaskResult

MAX_TEXT = 64 * 1024


class TaskDefinition(Protocol):
    """The parts of a task that running it needs."""

    name: str
    function: Callable[..., Any]
    result: ResultCodec[Any]
    error_codes: ErrorCodes


def encode_result(task: TaskDefinition, returned: object) -> str | TaskError:
    """Return the value as JSON, or an error: the one that the function returned, or ours if the function broke its contract."""
    if not isinstance(returned, TaskResult):
        return TaskError(
            error_code=ContractCode.RETURN_TYPE_MISMATCH,
            message=f"task {task.name} returned {type(returned).__name__}, not a TaskResult; "
            "return TaskResult(ok=...) or TaskResult(err=TaskError(...))",
        )
    result = cast("TaskResult[Any, TaskError]", returned)
    if result.is_err():
        return _replace_reserved_code(task, result.unwrap_err())
    try:
        return task.result.encode(result.unwrap())
    except ResultTypeError as error:
        return TaskError(error_code=ContractCode.RETURN_TYPE_MISMATCH, message=f"task {task.name}: {error}")
    except PayloadError as error:
        return TaskError(
            error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=f"task {task.name}: {error}"
        )
    except Exception as error:  # noqa: BLE001 - a user's serializer
        return codec_error(task, "writing the result", error)


def _replace_reserved_code(task: TaskDefinition, error: TaskError) -> TaskError:
    """Refuse the codes of the library. Policies and workflows act on them: a WORKER_CRASHED would be retried as a crash."""
    if error.error_code not in RESERVED_CODES:
        return error
    return TaskError(
        error_code=ContractCode.RESERVED_ERROR_CODE,
        message=f"task {task.name} returned the error code {error.error_code}, which is one of the library's own; "
        "return a code of your own, and put the error of another task into its data",
        data={"error_code": error.error_code, "message": error.message, "data": error.data},
    )


def codec_error(task: TaskDefinition, step: str, error: Exception) -> TaskError:
    return TaskError(
        error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR,
        message=f"task {task.name}: {step} raised {_describe(error)}",
        data=exception_data(error),
    )


def unhandled_error(task: TaskDefinition, error: BaseException) -> TaskError:
    return TaskError(error_code=task.error_codes.code_for(error), message=_describe(error), data=exception_data(error))


def exception_data(error: BaseException) -> dict[str, str]:
    kind = type(error)
    return {
        "exception": f"{kind.__module__}.{kind.__qualname__}",
        "traceback": _shorten("".join(traceback.format_exception(error))),
    }


def _describe(error: BaseException) -> str:
    try:
        return _shorten(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - a user's __str__
        return f"{type(error).__name__}, which cannot be printed"


def _shorten(text: str) -> str:
    """Keep the beginning and the end: an exception may quote a large input."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n... {len(text) - MAX_TEXT} characters ...\n{text[-half:]}"


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those during which it was raised: code that cleans up after an exception can fail, too."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def call_in_place(task: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskResult[Any, TaskError]:
    """Call the function of a task here. The result is what a worker would store."""
    try:
        returned = task.function(*args, **kwargs)
    except Exception as error:
        if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise  # the arguments do not match the parameters, so the function was not entered; a send would raise, too
        return _result_of_exception(task, error)
    return _result_of_return(task, returned)


async def await_in_place(task: TaskDefinition, coroutine: Awaitable[Any]) -> TaskResult[Any, TaskError]:
    """Await a call of an `async def` task here. The result is what a worker would store."""
    try:
        returned = await coroutine
    except Exception as error:  # noqa: BLE001 - user code
        return _result_of_exception(task, error)
    return _result_of_return(task, returned)


def _result_of_return(task: TaskDefinition, returned: object) -> TaskResult[Any, TaskError]:
    encoded = encode_result(task, returned)
    return TaskResult(err=encoded) if isinstance(encoded, TaskError) else cast("TaskResult[Any, TaskError]", returned)


def _result_of_exception(task: TaskDefinition, error: Exception) -> TaskResult[Any, TaskError]:
    """Map an exception to an error, unless it is the soft stop of the task that makes the call.

    Exceptions that do not derive from Exception (KeyboardInterrupt, SystemExit, asyncio.CancelledError) are meant for this process or asyncio task, and
    propagate.
    """
    if any(isinstance(each, TaskCancelledError | TaskTimeoutError) for each in exception_chain(error)):
        raise error
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        error.__traceback__ = trace.tb_next  # omit the frame of this module
    return TaskResult(err=unhandled_error(task, error))
