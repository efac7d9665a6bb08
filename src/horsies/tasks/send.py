"""`Sender`: the verbs of sending one task, with or without options. A `Task` is one; `task.with_options(...)` makes another."""

import asyncio
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar

from horsies.db.op import Op
from horsies.events import Tracer, subscribers
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.config import AppConfig
from horsies.model.options import Key, as_span, span_problems
from horsies.model.problems import refuse
from horsies.model.task import NewTask, TaskId, Terms
from horsies.tasks.enqueue import enqueue, enqueue_again, enqueue_within
from horsies.tasks.handle import InertHandle, TaskHandle
from horsies.tasks.ids import new_task_id, new_task_ids
from horsies.tasks.suppress import sends_are_suppressed
from horsies.tasks.watch import watched

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

P = ParamSpec("P")
T = TypeVar("T")


class Outlet(Protocol):
    """Where a task's sends go: the app."""

    @property
    def config(self) -> AppConfig: ...
    @property
    def broker(self) -> "PostgresBroker": ...
    @property
    def tracer(self) -> Tracer | None: ...


@dataclass(frozen=True, slots=True)
class Call(Generic[P, T]):
    """What a task is to be called with, checked and encoded. Made by `task.call(...)`, for `send_many`."""

    task_name: str
    args: str


class Sender(Generic[P, T]):
    """Sends one task, on the same terms each time. Immutable, so it can be kept and shared."""

    def __init__(
        self,
        terms: Terms,
        *,
        arguments: ArgumentsCodec,
        result: ResultCodec[T],
        outlet: Outlet,
        key: Key | None = None,
        connection: object | None = None,
    ) -> None:
        self._terms = terms
        self._arguments = arguments
        self._result = result
        self._outlet = outlet
        self._key = key
        self._connection = connection

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue now. Returns when the task is committed; bad arguments are refused here."""
        return self._send([self._new(self._terms, args, kwargs)])[0]

    async def send_async(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """The same for asyncio code."""
        return (await self._send_async([self._new(self._terms, args, kwargs)]))[0]

    def schedule(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue for later: in so many seconds, by the database's clock."""
        return self._send([self._new(self._later(delay), args, kwargs)])[0]

    async def schedule_async(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """The same for asyncio code."""
        return (await self._send_async([self._new(self._later(delay), args, kwargs)]))[0]

    def send_many(self, calls: Iterable[Call[P, T]]) -> list[TaskHandle[T]]:
        """Enqueue all of them in one transaction, or none; they are served in this order, and so are the handles."""
        return self._send(self._batch(calls))

    async def send_many_async(self, calls: Iterable[Call[P, T]]) -> list[TaskHandle[T]]:
        """The same for asyncio code."""
        return await self._send_async(self._batch(calls))

    # -- what is sent

    def _new(self, terms: Terms, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewTask:
        return NewTask(new_task_id(), self._arguments.encode(args, kwargs), terms)

    def _later(self, delay: float | timedelta) -> Terms:
        problems = list(span_problems("delay", delay))
        if self._terms.due is not None:
            problems.append("eta and schedule() both say when; use send() with eta, or schedule() without")
        refuse(f"schedule() of task {self._terms.task_name!r}", problems)
        return replace(self._terms, due=as_span(delay)) if delay else self._terms

    def _batch(self, calls: Iterable[Call[P, T]]) -> list[NewTask]:
        payloads = [self._payload(position, call) for position, call in enumerate(calls)]
        if self._key is not None and len(payloads) > 1:
            refuse(
                f"send_many() of task {self._terms.task_name!r}",
                [f"key {self._key.name!r} stands for one task, not for {len(payloads)}; send them one by one"],
            )
        ids = new_task_ids(len(payloads))
        return [NewTask(task_id, args, self._terms) for task_id, args in zip(ids, payloads, strict=True)]

    def _payload(self, position: int, call: object) -> str:
        name = self._terms.task_name
        if not isinstance(call, Call):
            raise TypeError(f"send_many() of task {name!r}: item {position} is no Call; write [task.call(1), ...]")
        if call.task_name != name:
            raise TypeError(
                f"send_many() of task {name!r}: item {position} is a call of {call.task_name!r}; send it by that task"
            )
        return call.args

    # -- on its way

    def _send(self, tasks: Sequence[NewTask]) -> list[TaskHandle[T]]:
        if not tasks or sends_are_suppressed():
            return self._inert(tasks)
        if self._connection is None:
            # A lent connection may be one that waits without blocking: SQLAlchemy's `run_sync`.
            warn_in_event_loop(_INSTEAD)
        if not self._is_watched:
            return self._handles(self._commit(tasks))
        with watched(self._outlet.tracer, tasks) as send:
            send.ids = self._commit(send.tasks)
        return self._handles(send.ids)

    def _commit(self, tasks: Sequence[NewTask]) -> list[TaskId]:
        broker = self._outlet.broker
        if self._connection is None:
            return broker.run(self._verb(enqueue, tasks), again=self._verb(enqueue_again, tasks))
        return broker.run_on(self._connection, self._verb(enqueue_within, tasks))

    async def _send_async(self, tasks: Sequence[NewTask]) -> list[TaskHandle[T]]:
        if not tasks or sends_are_suppressed():
            return self._inert(tasks)
        if not self._is_watched:
            return self._handles(await self._commit_async(tasks))
        with watched(self._outlet.tracer, tasks) as send:
            send.ids = await self._commit_async(send.tasks)
        return self._handles(send.ids)

    async def _commit_async(self, tasks: Sequence[NewTask]) -> list[TaskId]:
        broker = self._outlet.broker
        if self._connection is None:
            return await broker.run_async(self._verb(enqueue, tasks), again=self._verb(enqueue_again, tasks))
        return await broker.run_on_async(self._connection, self._verb(enqueue_within, tasks))

    @property
    def _is_watched(self) -> bool:
        return bool(subscribers) or self._outlet.tracer is not None

    def _verb(
        self, verb: Callable[[Sequence[NewTask], Key | None], Op[list[TaskId]]], tasks: Sequence[NewTask]
    ) -> Callable[[], Op[list[TaskId]]]:
        return partial(verb, tasks, self._key)

    def _handles(self, ids: Sequence[TaskId]) -> list[TaskHandle[T]]:
        result, broker = self._result, self._broker  # one bound method for all: there may be very many
        return [TaskHandle(task_id, result, broker) for task_id in ids]

    def _inert(self, tasks: Sequence[NewTask]) -> list[TaskHandle[T]]:
        return [InertHandle(task.id, self._result, self._broker) for task in tasks]

    def _broker(self) -> "PostgresBroker":
        return self._outlet.broker

    def __repr__(self) -> str:
        return f"<sender of task {self._terms.task_name!r} to queue {self._terms.queue_name!r}>"


_INSTEAD = "await task.send_async(...)`, `schedule_async` or `send_many_async"


def warn_in_event_loop(instead: str) -> None:
    """For a verb that a public one has called, or that one's own helper."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    warnings.warn(
        f"this blocks the running event loop for a round trip to PostgreSQL; use `{instead}`",
        stacklevel=4,
    )
