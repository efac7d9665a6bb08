"""What a task's function did, as the value or the error that the task ends with: in a child, and where a task is called in place."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Protocol, cast

from horsies.model.codec import ResultTypeError
from horsies.model.error_codes import RESERVED_CODES, ContractCode, OperationalErrorCode
from horsies.model.errors import PayloadError, TaskCancelledError, TaskTimeoutError
from horsies.model.result import TaskError, TaskResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from horsies.model.codec import ResultCodec
    from horsies.model.error_codes import ErrorCodes

MAX_WORDS = 64 * 1024


class TaskDefinition(Protocol):
    """What is to be known of a task: its function, and what its endings are made by."""

    name: str
    function: Callable[..., Any]
    result: ResultCodec[Any]
    error_codes: ErrorCodes


def encode_result(task: TaskDefinition, returned: object) -> str | TaskError:
    """Return the good value as JSON, or the error: that which the function returned, or ours if it broke its contract."""
    if not isinstance(returned, TaskResult):
        return TaskError(
            error_code=ContractCode.RETURN_TYPE_MISMATCH,
            message=f"task {task.name} returned {type(returned).__name__}, not a TaskResult; "
            "return TaskResult(ok=...) or TaskResult(err=TaskError(...))",
        )
    result = cast("TaskResult[Any, TaskError]", returned)
    if result.is_err():
        return _checked_error(task, result.unwrap_err())
    try:
        return task.result.encode(result.unwrap())
    except ResultTypeError as error:
        return TaskError(error_code=ContractCode.RETURN_TYPE_MISMATCH, message=f"task {task.name}: {error}")
    except PayloadError as error:
        return TaskError(
            error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=f"task {task.name}: {error}"
        )
    except Exception as error:  # noqa: BLE001 - a serializer of the user's
        return codec_error(task, "writing the result", error)


def _checked_error(task: TaskDefinition, error: TaskError) -> TaskError:
    """Refuse the codes of the library: policies and workflows act on them, so a WORKER_CRASHED would be retried as a crash."""
    if error.error_code not in RESERVED_CODES:
        return error
    return TaskError(
        error_code=ContractCode.RESERVED_ERROR_CODE,
        message=f"task {task.name} returned the error code {error.error_code}, which is one of the library's own; "
        "return a code of your own, and put the error of another task into its data",
        data={"error_code": error.error_code, "message": error.message, "data": error.data},
    )


def codec_error(task: TaskDefinition, at: str, error: Exception) -> TaskError:
    return TaskError(
        error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR,
        message=f"task {task.name}: {at} raised {describe(error)}",
        data=exception_data(error),
    )


def unhandled_error(task: TaskDefinition, error: BaseException) -> TaskError:
    return TaskError(error_code=task.error_codes.code_for(error), message=describe(error), data=exception_data(error))


def exception_data(error: BaseException) -> dict[str, str]:
    kind = type(error)
    return {
        "exception": f"{kind.__module__}.{kind.__qualname__}",
        "traceback": _shortened("".join(traceback.format_exception(error))),
    }


def describe(error: BaseException) -> str:
    try:
        return _shortened(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - the user's own __str__
        return f"{type(error).__name__}, which cannot be printed"


def _shortened(text: str) -> str:
    """The beginning and the end: an exception may quote all that it choked on."""
    half = MAX_WORDS // 2
    return (
        text if len(text) <= MAX_WORDS else f"{text[:half]}\n... {len(text) - MAX_WORDS} characters ...\n{text[-half:]}"
    )


def exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    """It, and what it was raised in the course of: cleaning up can fail, too."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__ or error.__context__


# -- in place


def call_in_place(task: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TaskResult[Any, TaskError]:
    """Call the function here. The result is what a worker would store."""
    try:
        returned = task.function(*args, **kwargs)
    except Exception as error:
        if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise  # the arguments do not fit, so that nothing was called; a send would have been refused
        return _raised_in_place(task, error)
    return _returned_in_place(task, returned)


async def await_in_place(task: TaskDefinition, coroutine: Awaitable[Any]) -> TaskResult[Any, TaskError]:
    """Await a call of the function here. The result is what a worker would store."""
    try:
        returned = await coroutine
    except Exception as error:  # noqa: BLE001 - user code
        return _raised_in_place(task, error)
    return _returned_in_place(task, returned)


def _returned_in_place(task: TaskDefinition, returned: object) -> TaskResult[Any, TaskError]:
    found = encode_result(task, returned)
    return TaskResult(err=found) if isinstance(found, TaskError) else cast("TaskResult[Any, TaskError]", returned)


def _raised_in_place(task: TaskDefinition, error: Exception) -> TaskResult[Any, TaskError]:
    """Map an exception, unless it is the request to stop of the task that makes the call.

    What is not an Exception (KeyboardInterrupt, SystemExit, asyncio.CancelledError) concerns this process or this asyncio task, and passes.
    """
    if any(isinstance(each, TaskCancelledError | TaskTimeoutError) for each in exception_chain(error)):
        raise error
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        error.__traceback__ = trace.tb_next  # without our own frame
    return TaskResult(err=unhandled_error(task, error))
