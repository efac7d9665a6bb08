"""`Task`: a function that can be sent. `@app.task` validates the function and creates the task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import Any, ParamSpec, TypeVar

from horsies.events import Tracer
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.error_codes import ErrorCodes
from horsies.model.errors import ConfigError, QueueError
from horsies.model.graph import Join, NodeKind
from horsies.model.result import TaskError, TaskResult
from horsies.model.retry_policy import RetryPolicy
from horsies.model.send_options import OnConflict, SendOptions, TaskOptions
from horsies.model.signature import ok_type
from horsies.tasks.nodes import AnyNode, JoinWord, NodeMaker, TaskNode
from horsies.tasks.outcome import await_in_place, call_in_place
from horsies.tasks.sender import AppContext, Call, Sender

P = ParamSpec("P")
T = TypeVar("T")


class BaseTask(Sender[P, T]):
    """What tasks have in common, whether their functions are `def` or `async def`."""

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
    ) -> None:
        options = TaskOptions(name, queue_name, timeout_ms=timeout_ms, retry=retry_policy)
        super().__init__(options, arguments=arguments, result=result, app=app)
        self.function = function
        self.name = name
        self.queue_name = queue_name
        self.arguments = arguments
        self.result = result
        self.error_codes = error_codes
        self.retry_policy = retry_policy
        self.timeout_ms = timeout_ms
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self.__wrapped__ = function  # what `inspect.signature` and documentation tools look for

    @property
    def tracer(self) -> Tracer | None:
        """The tracer of the app, if there is one."""
        return self._app.tracer

    @property
    def is_async(self) -> bool:
        """Whether the function is an `async def`."""
        return isinstance(self, AsyncTask)

    @property
    def options(self) -> TaskOptions:
        """The options with which it is sent, unless `with_options` changes them."""
        return self._options

    @cached_property
    def value_type(self) -> Any:
        """The type of the value of a successful result, as annotated."""
        return ok_type(self.function)

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[P, T]:
        """Check and encode the arguments of one task for `send_many`."""
        return Call(task_name=self.name, args=self.arguments.encode(args, kwargs))

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
        connection: object | None = None,
    ) -> Sender[P, T]:
        """Return a sender of this task with other options. All problems with them are reported together, here."""
        options = SendOptions(
            good_until=good_until,
            priority=priority,
            queue_name=queue_name,
            eta=eta,
            key=key,
            on_conflict=on_conflict,
            key_window=key_window,
        )
        self._check(options)
        changes = {"queue_name": queue_name, "priority": priority, "due": eta, "good_until": good_until}
        return Sender(
            self._options._replace(**{name: value for name, value in changes.items() if value is not None}),
            arguments=self.arguments,
            result=self.result,
            app=self._app,
            key=options.to_key() if key is not None else None,
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

    def _check(self, options: SendOptions) -> None:
        problems, unknown_queue = list(options.problems()), None
        if options.queue_name is not None:
            try:
                self._app.config.queue_named(options.queue_name)
            except QueueError as error:
                unknown_queue = error
                problems.insert(0, f"queue_name: {error}")
        if problems:
            combined = ConfigError(f"the options of task {self.name!r}", problems)
            raise combined if unknown_queue is None else QueueError(str(combined)) from None

    def __repr__(self) -> str:
        return f"<task {self.name!r} on queue {self.queue_name!r}>"


class Task(BaseTask[P, T]):
    """A task written as `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        """Run the task here and now, without the queue. The result is what a worker would store: exceptions become errors."""
        return call_in_place(self, args, kwargs)


class AsyncTask(BaseTask[P, T]):
    """A task written as `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TaskResult[T, TaskError]]:
        """Run the task here and now, without the queue. The result is what a worker would store: exceptions become errors."""
        return await_in_place(self, self.function(*args, **kwargs))
