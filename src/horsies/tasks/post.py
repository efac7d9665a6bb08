"""How a `Sender` sends. Apart from it, because most children of a worker never send, and need not load what that takes."""

import asyncio
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from horsies.db.op import Op
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.options import Key, as_span, span_problems
from horsies.model.problems import refuse
from horsies.model.task import NewTask, TaskId, Terms
from horsies.tasks.call import Call, Outlet
from horsies.tasks.enqueue import enqueue, enqueue_again, enqueue_within
from horsies.tasks.handle import InertHandle, TaskHandle
from horsies.tasks.ids import new_task_id, new_task_ids
from horsies.tasks.suppress import sends_are_suppressed
from horsies.watchers import subscribers

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from horsies.db.broker import PostgresBroker
    from horsies.tasks.watch import Watched

T = TypeVar("T")


class Post(Generic[T]):
    """Of one sender: what is given to it, and how that goes on its way."""

    def __init__(
        self,
        terms: Terms,
        arguments: ArgumentsCodec,
        result: ResultCodec[T],
        outlet: Outlet,
        key: Key | None,
        connection: object | None,
    ) -> None:
        self._terms = terms
        self._arguments = arguments
        self._result = result
        self._outlet = outlet
        self._key = key
        self._connection = connection

    # -- what is sent

    def one(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[NewTask]:
        return [NewTask(new_task_id(), self._arguments.encode(args, kwargs), self._terms)]

    def later(self, delay: float | timedelta, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[NewTask]:
        problems = list(span_problems("delay", delay))
        if self._terms.due is not None:
            problems.append("eta and schedule() both say when; use send() with eta, or schedule() without")
        refuse(f"schedule() of task {self._terms.task_name!r}", problems)
        terms = self._terms._replace(due=as_span(delay)) if delay else self._terms
        return [NewTask(new_task_id(), self._arguments.encode(args, kwargs), terms)]

    def batch(self, calls: Iterable[object]) -> list[NewTask]:
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

    def send(self, tasks: Sequence[NewTask]) -> list[TaskHandle[T]]:
        if not tasks or sends_are_suppressed() or self._outlet.suppresses_sends:
            return self._inert(tasks)
        if self._connection is None:
            # A lent connection may be one that waits without blocking: SQLAlchemy's `run_sync`.
            warn_in_event_loop(_INSTEAD)
        if not self._is_watched:
            return self._handles(self._commit(tasks))
        with self._watched(tasks) as send:
            send.ids = self._commit(send.tasks)
        return self._handles(send.ids)

    def _commit(self, tasks: Sequence[NewTask]) -> list[TaskId]:
        broker = self._outlet.broker
        if self._connection is None:
            return broker.run(self._verb(enqueue, tasks), again=self._verb(enqueue_again, tasks))
        return broker.run_on(self._connection, self._verb(enqueue_within, tasks))

    async def send_async(self, tasks: Sequence[NewTask]) -> list[TaskHandle[T]]:
        if not tasks or sends_are_suppressed() or self._outlet.suppresses_sends:
            return self._inert(tasks)
        if not self._is_watched:
            return self._handles(await self._commit_async(tasks))
        with self._watched(tasks) as send:
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

    def _watched(self, tasks: Sequence[NewTask]) -> "AbstractContextManager[Watched]":
        from horsies.tasks.watch import watched  # noqa: PLC0415 - for nobody else

        return watched(self._outlet.tracer, tasks)

    def _verb(
        self, verb: Callable[[Sequence[NewTask], Key | None], Op[list[TaskId]]], tasks: Sequence[NewTask]
    ) -> Callable[[], Op[list[TaskId]]]:
        return partial(verb, tasks, self._key)

    def _handles(self, ids: Sequence[TaskId]) -> list[TaskHandle[T]]:
        result, broker = self._result, self._broker  # one bound method for all: there may be very many
        sent_at = 0.0 if self._key else time.monotonic()  # behind a key there may be an old task
        return [TaskHandle(task_id, result, broker, sent_at=sent_at) for task_id in ids]

    def _inert(self, tasks: Sequence[NewTask]) -> list[TaskHandle[T]]:
        return [InertHandle(task.id, self._result, self._broker) for task in tasks]

    def _broker(self) -> "PostgresBroker":
        return self._outlet.broker


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
