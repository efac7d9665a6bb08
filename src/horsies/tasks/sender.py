"""`Sender`: the verbs of sending one task, with or without options. A `Task` is one; `task.with_options(...)` makes another."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from horsies.model.codec import ArgumentsCodec, ResultCodec
    from horsies.model.send_options import Key
    from horsies.model.task import TaskOptions
    from horsies.tasks.call import AppContext, Call
    from horsies.tasks.enqueue import EnqueueContext
    from horsies.tasks.handle import TaskHandle

P = ParamSpec("P")
T = TypeVar("T")


class Sender(Generic[P, T]):
    """Sends one task, on the same options each time. Immutable, so it can be kept and shared."""

    def __init__(
        self,
        options: TaskOptions,
        *,
        arguments: ArgumentsCodec,
        result: ResultCodec[T],
        app: AppContext,
        key: Key | None = None,
        connection: object | None = None,
    ) -> None:
        self._options = options
        self._arguments = arguments
        self._result = result
        self._app = app
        self._key = key
        self._connection = connection

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue now. Returns when the task is committed; bad arguments are refused here."""
        return self._post.send(self._post.one(args, kwargs))[0]

    async def send_async(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """The same for asyncio code."""
        return (await self._post.send_async(self._post.one(args, kwargs)))[0]

    def schedule(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue for later: in so many seconds, by the database's clock."""
        return self._post.send(self._post.later(delay, args, kwargs))[0]

    async def schedule_async(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """The same for asyncio code."""
        return (await self._post.send_async(self._post.later(delay, args, kwargs)))[0]

    def send_many(self, calls: Iterable[Call[P, T]]) -> list[TaskHandle[T]]:
        """Enqueue all of them in one transaction, or none; they are served in this order, and so are the handles."""
        return self._post.send(self._post.batch(calls))

    async def send_many_async(self, calls: Iterable[Call[P, T]]) -> list[TaskHandle[T]]:
        """The same for asyncio code."""
        return await self._post.send_async(self._post.batch(calls))

    @cached_property
    def _post(self) -> EnqueueContext[T]:
        from horsies.tasks.enqueue import EnqueueContext  # noqa: PLC0415 - most children never send

        return EnqueueContext(self._options, self._arguments, self._result, self._app, self._key, self._connection)

    def __repr__(self) -> str:
        return f"<sender of task {self._options.task_name!r} to queue {self._options.queue_name!r}>"
