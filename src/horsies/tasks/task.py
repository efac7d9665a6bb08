"""`Task`: a function that can be sent. `@app.task` validates the function and creates the task."""

from __future__ import annotations

import json
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.error_codes import RESERVED_CODES, ContractCode, ErrorCodes, OperationalErrorCode
from horsies.model.errors import (
    ConfigError,
    PayloadError,
    QueueError,
    ResultTypeError,
    TaskCancelledError,
    TaskDefinitionError,
    TaskTimeoutError,
)
from horsies.model.graph import Join, NodeKind
from horsies.model.other_queues import SEND_OPTIONS, explain_options
from horsies.model.result import Err, Ok, Result, TaskError, TaskFailure, TaskResult
from horsies.model.retry_policy import RetryPolicy
from horsies.model.send_options import OnConflict, SendOptions, TaskOptions, sent_values
from horsies.model.signature import ok_type
from horsies.tasks.handle import JOIN_OPEN, AppContext
from horsies.tasks.nodes import AnyNode, JoinWord, NodeMaker, TaskNode
from horsies.tasks.sender import Call, Sender

MAX_TEXT = 64 * 1024

P = ParamSpec("P")
T = TypeVar("T")


class BaseTask(Sender[P, T]):
    """What tasks have in common, whether their functions are `def` or `async def`."""

    is_async: ClassVar[bool] = False
    """Whether the function is an `async def`."""

    def __init__(  # noqa: PLR0913 - what `@app.task` has found in the function and its options
        self,
        function: Callable[..., Any],
        *,
        name: str,
        queue_name: str,
        arguments: ArgumentsCodec,
        result: ResultCodec[T],
        app: AppContext,
        error_codes: ErrorCodes,
        retry_policy: RetryPolicy | None = None,
        timeout_ms: int | None = None,
        sensitive: bool = False,
        keep_logs: bool = False,
        on_failure: str | BaseTask[..., Any] | None = None,
    ) -> None:
        options = TaskOptions(name, queue_name, timeout_ms=timeout_ms, retry=retry_policy, is_sensitive=sensitive)
        super().__init__(options, arguments=arguments, result=result, app=app)
        self.function = function
        self.name = name
        self.queue_name = queue_name
        self.error_codes = error_codes
        self.retry_policy = retry_policy
        self.timeout_ms = timeout_ms
        self.is_sensitive = sensitive
        self.keeps_logs = keep_logs
        self.on_failure = on_failure
        if isinstance(on_failure, BaseTask):
            self._options = options._replace(on_failure=self._failure_target(on_failure))
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self.__wrapped__ = function  # what `inspect.signature` and documentation tools look for

    @cached_property
    def options(self) -> TaskOptions:
        """The options of the tasks that this sends. Raises TaskDefinitionError if `on_failure` names a task that cannot be found or used."""
        if self.on_failure is None or self._options.on_failure is not None:
            return self._options
        target = self.app.known_tasks.get(str(self.on_failure))
        if target is None:
            raise TaskDefinitionError(
                f"task {self.name!r}: on_failure names {self.on_failure!r}, which is not defined here; "
                "give the task instead of its name, or import its module before the send"
            )
        return self._options._replace(on_failure=self._failure_target(target))

    def _failure_target(self, target: BaseTask[..., Any]) -> str:
        """Return the task to be enqueued on failure, and its options, as JSON text for the database."""
        prefix = f"task {self.name!r}: on_failure names {target.name!r}, which"
        if target.on_failure is not None or target.name == self.name:
            raise TaskDefinitionError(
                f"{prefix} has an on_failure itself; remove one of them, so that failures end somewhere"
            )
        if target.app is not self.app:
            raise TaskDefinitionError(f"{prefix} is a task of another app; give one of this app")
        parameters = target.arguments.signature.parameters.values()
        takes = next((each.name for each in parameters if each.annotation is TaskFailure), None)
        others = [
            each.name
            for each in parameters
            if each.default is each.empty and each.name != takes and not each.kind.name.startswith("VAR")
        ]
        if takes is None or others or target.arguments.needs:
            raise TaskDefinitionError(
                f"{prefix} is not called with one TaskFailure; write it as `def {target.__name__}(failure: TaskFailure)`"
            )
        values = sent_values(target.options)
        del values["trace"], values["on_failure"]
        return json.dumps({name: value for name, value in values.items() if value is not None} | {"parameter": takes})

    @cached_property
    def value_type(self) -> Any:
        """The type of the value of a successful result, as annotated."""
        return ok_type(self.function)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[P, T]:
        """Check and encode the arguments of one task for `send_many`."""
        return Call(task_name=self.name, args=self.arguments.encode(args, kwargs))

    @explain_options("with_options()", SEND_OPTIONS, TypeError)
    def with_options(
        self,
        *,
        good_until: datetime | None = None,
        priority: int | None = None,
        queue_name: str | None = None,
        eta: datetime | None = None,
        key: str | None = None,
        on_conflict: OnConflict | None = None,
        key_window: float | timedelta | None = None,
        connection: object | None = JOIN_OPEN,
    ) -> Sender[P, T]:
        """Return a sender of this task with other options. All problems with them are reported together, here.

        `connection` is the caller's own, whose transaction the task is a part of. None: none, even if an app of Django would find one.
        """
        options = SendOptions(**{name: value for name, value in locals().items() if name not in {"self", "connection"}})
        problems, unknown_queue = list(options.problems()), None
        if queue_name is not None:
            try:
                self.app.config.queue_named(queue_name)
            except QueueError as error:
                unknown_queue = error
                problems.insert(0, f"queue_name: {error}")
        if problems:
            combined = ConfigError(f"the options of task {self.name!r}", problems)
            raise combined if unknown_queue is None else QueueError(str(combined)) from None
        changes = {"queue_name": queue_name, "priority": priority, "due": eta, "good_until": good_until}
        return Sender(
            self.options._replace(**{name: value for name, value in changes.items() if value is not None}),
            arguments=self.arguments,
            result=self.result,
            app=self.app,
            key=options.to_key(),
            connection=connection,
        )

    def node(  # noqa: PLR0913 - the options of a node
        self,
        *,
        node_id: str | None = None,
        waits_for: Sequence[AnyNode[Any] | str] = (),
        join: Join | JoinWord = "all",
        min_success: int | None = None,
        allow_failed_deps: bool = False,
        workflow_ctx_from: Sequence[AnyNode[Any] | str] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        good_until: datetime | None = None,
    ) -> NodeMaker[P, T]:
        """Return a maker of nodes with these options: call it with the arguments of the task, as in `task.node(join="any")(1, 2)`."""
        options = {name: value for name, value in locals().items() if name != "self"}
        return NodeMaker(partial(TaskNode, self, **options))

    def map_node(
        self,
        *,
        node_id: str | None = None,
        max_parallel: int | None = None,
        max_failures: int | None = None,
        min_success: int | None = None,
        waits_for: Sequence[AnyNode[Any] | str] = (),
        queue: str | None = None,
        priority: int | None = None,
        good_until: datetime | None = None,
    ) -> NodeMaker[P, list[T]]:
        """Return a maker of nodes that run this task once for each item of a list. The value of the node is the list of results.

        One argument must be `each(node)` or `each([...])`. At most `max_parallel` items run at once. The map fails if any item fails;
        with `max_failures` if more items fail, and with `min_success` if fewer succeed. `results_from(map)` passes the results of all items to
        another node.
        """
        options = {name: value for name, value in locals().items() if name not in {"self", "min_success"}}
        options["min_item_success"] = min_success
        return NodeMaker(partial(TaskNode, self, kind=NodeKind.MAP, **options))

    def __repr__(self) -> str:
        return f"<task {self.name!r} on queue {self.queue_name!r}>"


class Task(BaseTask[P, T]):
    """A task written as `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result[T]:
        """Run the task here and now, without the queue. The result is what a worker would store: exceptions become errors."""
        try:
            returned = self.function(*args, **kwargs)
        except Exception as error:
            if isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise  # the arguments do not match the parameters, so the function was not entered; a send would raise, too
            return _result_of_exception(self, error)
        return _result_of_return(self, returned)


class AsyncTask(BaseTask[P, T]):
    """A task written as `async def`."""

    is_async = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Result[T]]:
        """Run the task here and now, without the queue. The result is what a worker would store: exceptions become errors."""
        return self._await(self.function(*args, **kwargs))

    async def _await(self, coroutine: Awaitable[Any]) -> Result[T]:
        try:
            returned = await coroutine
        except Exception as error:  # noqa: BLE001 - user code
            return _result_of_exception(self, error)
        return _result_of_return(self, returned)


# -- what the function of a task did, as the value or the error with which the task ends: in a child, and for a direct call


def encode_result(task: BaseTask[..., Any], returned: object) -> str | TaskError:
    """Return the value as JSON, or an error: the one that the function returned, or ours if the function broke its contract."""
    if not isinstance(returned, TaskResult):
        return TaskError(
            error_code=ContractCode.RETURN_TYPE_MISMATCH,
            message=f"task {task.name} returned {type(returned).__name__}, not a TaskResult; "
            "return TaskResult(ok=...) or TaskResult(err=TaskError(...))",
        )
    if isinstance(returned, Err):
        error = cast("Err[TaskError]", returned).error
        if error.error_code in RESERVED_CODES:
            # Policies and workflows act on the codes of the library: a WORKER_CRASHED would be retried as a crash.
            error = TaskError(
                error_code=ContractCode.RESERVED_ERROR_CODE,
                message=f"task {task.name} returned the error code {error.error_code}, which is one of the library's own; "
                "return a code of your own, and put the error of another task into its data",
                data={"error_code": error.error_code, "message": error.message, "data": error.data},
            )
        return error
    try:
        return task.result.encode(cast("Ok[Any]", returned).value)
    except ResultTypeError as error:
        return TaskError(error_code=ContractCode.RETURN_TYPE_MISMATCH, message=f"task {task.name}: {error}")
    except PayloadError as error:
        return TaskError(
            error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=f"task {task.name}: {error}"
        )
    except Exception as error:  # noqa: BLE001 - a user's serializer
        return codec_error(task, "writing the result", error)


def codec_error(task: BaseTask[..., Any], step: str, error: Exception) -> TaskError:
    return TaskError(
        error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR,
        message=f"task {task.name}: {step} raised {_describe(error)}",
        data=exception_data(error),
    )


def unhandled_error(task: BaseTask[..., Any], error: BaseException) -> TaskError:
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


def _result_of_return(task: BaseTask[..., Any], returned: object) -> Result[Any]:
    encoded = encode_result(task, returned)
    return Err(encoded) if isinstance(encoded, TaskError) else cast("Ok[Any]", returned)


def _result_of_exception(task: BaseTask[..., Any], error: Exception) -> Result[Any]:
    """Map an exception to an error, unless it is the soft stop of the task that makes the call.

    Exceptions that do not derive from Exception (KeyboardInterrupt, SystemExit, asyncio.CancelledError) are meant for this process or asyncio task, and
    propagate.
    """
    if any(isinstance(each, TaskCancelledError | TaskTimeoutError) for each in exception_chain(error)):
        raise error
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        error.__traceback__ = trace.tb_next  # omit the frame of this module
    return Err(unhandled_error(task, error))
