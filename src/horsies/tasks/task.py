"""`Task`: a function that can be sent. Made by `@app.task`, which has checked it."""

import asyncio
import warnings
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.mapper import ErrorCodes
from horsies.model.result import TaskError, TaskResult
from horsies.model.retry import RetryPolicy
from horsies.model.task import DEFAULT_PRIORITY, NewTask
from horsies.tasks.enqueue import enqueue, enqueue_again
from horsies.tasks.handle import InertHandle, TaskHandle
from horsies.tasks.ids import new_task_id
from horsies.tasks.suppress import sends_are_suppressed

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

P = ParamSpec("P")
T = TypeVar("T")


class Outlet(Protocol):
    """Where a task's sends go: the app."""

    @property
    def broker(self) -> "PostgresBroker": ...


class Sendable(Generic[P, T]):
    """The producer's side of a task, the same for `def` and `async def` functions."""

    def __init__(  # noqa: PLR0913 - all that `@app.task` has found out
        self,
        function: Callable[..., Any],
        *,
        name: str,
        queue_name: str,
        arguments: ArgumentsCodec,
        result: ResultCodec[T],
        outlet: Outlet,
        error_codes: ErrorCodes,
        retry_policy: RetryPolicy | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.queue_name = queue_name
        self.arguments = arguments
        self.result = result
        self.error_codes = error_codes
        self.retry_policy = retry_policy
        self.timeout_ms = timeout_ms
        self._outlet = outlet
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__module__ = function.__module__
        self.__wrapped__ = function  # what `inspect.signature` and documentation tools look for

    @property
    def is_async(self) -> bool:
        return isinstance(self, AsyncTask)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue now. Returns when the task is committed; bad arguments are refused here."""
        new = self._new(args, kwargs)
        if sends_are_suppressed():
            return self._inert(new)
        _warn_in_event_loop()
        self._outlet.broker.run(partial(enqueue, [new]), again=partial(enqueue_again, [new]))
        return self._handle(new)

    async def send_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """The same for asyncio code."""
        new = self._new(args, kwargs)
        if sends_are_suppressed():
            return self._inert(new)
        await self._outlet.broker.run_async(partial(enqueue, [new]), again=partial(enqueue_again, [new]))
        return self._handle(new)

    def _new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewTask:
        payload = self.arguments.encode(args, kwargs)
        return NewTask(
            new_task_id(), self.name, self.queue_name, DEFAULT_PRIORITY, payload, self.timeout_ms, self.retry_policy
        )

    def _handle(self, new: NewTask) -> TaskHandle[T]:
        return TaskHandle(new.id, self.result, self._broker)

    def _inert(self, new: NewTask) -> TaskHandle[T]:
        return InertHandle(new.id, self.result, self._broker)

    def _broker(self) -> "PostgresBroker":
        return self._outlet.broker

    def __repr__(self) -> str:
        return f"<task {self.name!r} on queue {self.queue_name!r}>"


class Task(Sendable[P, T]):
    """A task written as `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        """Run it here and now; nothing is enqueued."""
        return self.function(*args, **kwargs)


class AsyncTask(Sendable[P, T]):
    """A task written as `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TaskResult[T, TaskError]]:
        """Run it here and now; nothing is enqueued."""
        return self.function(*args, **kwargs)


def _warn_in_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    warnings.warn(
        "send() blocks the running event loop for a round trip to PostgreSQL; use `await task.send_async(...)`",
        stacklevel=3,
    )
