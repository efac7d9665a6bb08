"""`Sender`: the methods that send one task. A `Task` is a sender; `task.with_options(...)` returns another one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from horsies.db.broker import PostgresBroker
from horsies.events import Tracer, subscribers
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.config import AppConfig
from horsies.model.errors import ConfigError
from horsies.model.send_options import Key
from horsies.model.task import TaskId, TaskOptions
from horsies.model.validation import raise_problems
from horsies.tasks.enqueue import Tasks, add_delay, enqueue, enqueue_again, enqueue_within, new_tasks
from horsies.tasks.handle import InertHandle, TaskHandle, warn_in_event_loop
from horsies.tasks.instrument import observe_send

# -- suppressed sends: importing a module again, in a worker or a child, must not repeat its sends

VARIABLE = "HORSIES_SUPPRESS_SENDS"
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_suppress_depth = 0


def sends_are_suppressed() -> bool:
    """Return whether a worker is importing modules in this process."""
    return _suppress_depth > 0


def environment_suppresses_sends() -> bool:
    """Read $HORSIES_SUPPRESS_SENDS. Raises ConfigError if it means neither yes nor no."""
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word not in (*_YES, *_NO):
        raise ConfigError("the environment", [f"${VARIABLE} is {word!r}; set it to 1 or 0, or leave it unset"])
    return word in _YES


@contextmanager
def suppress_sends() -> Generator[None]:
    """Suppress sends of the whole process, because an import may start threads that send."""
    global _suppress_depth  # noqa: PLW0603 - the state is per process
    _suppress_depth += 1
    try:
        yield
    finally:
        _suppress_depth -= 1


P = ParamSpec("P")
T = TypeVar("T")


class AppContext(Protocol):
    """What a task needs from its app."""

    @property
    def config(self) -> AppConfig: ...
    @property
    def broker(self) -> PostgresBroker: ...
    @property
    def tracer(self) -> Tracer | None: ...
    @property
    def suppresses_sends(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Call(Generic[P, T]):
    """The arguments of one task, checked and encoded. `task.call(...)` creates one, for `send_many`."""

    task_name: str
    args: str


class LazyHandles(Sequence["TaskHandle[T]"]):
    """The handles of very many tasks. Each is created when it is used."""

    def __init__(self, ids: Sequence[TaskId], handle: Callable[[TaskId], TaskHandle[T]]) -> None:
        self._ids = ids
        self._handle = handle

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> TaskHandle[T]: ...
    @overload
    def __getitem__(self, index: slice) -> list[TaskHandle[T]]: ...
    def __getitem__(self, index: int | slice) -> TaskHandle[T] | list[TaskHandle[T]]:
        return [*map(self._handle, self._ids[index])] if isinstance(index, slice) else self._handle(self._ids[index])


class Sender(Generic[P, T]):
    """Sends one task, with the same options each time. Immutable, so it can be kept and shared."""

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
        """Enqueue the task now. Returns when it is committed; invalid arguments are refused before."""
        return self._send(self._new_task(args, kwargs))[0]

    async def send_async(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Do what `send` does, for asyncio code."""
        return (await self._send_async(self._new_task(args, kwargs)))[0]

    def schedule(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue the task for later. `delay` is in seconds, measured by the clock of the database."""
        return self._send(self._new_task(args, kwargs, delay))[0]

    async def schedule_async(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Do what `schedule` does, for asyncio code."""
        return (await self._send_async(self._new_task(args, kwargs, delay)))[0]

    def send_many(self, calls: Iterable[Call[P, T]]) -> Sequence[TaskHandle[T]]:
        """Enqueue all of these tasks in one transaction, or none. They are served in this order, which is also that of the handles.

        `calls` may be a generator of millions: beyond a thousand they are written to a temporary file, and a handle is created when it is used.
        """
        return self._send(self._new_tasks(calls))

    async def send_many_async(self, calls: Iterable[Call[P, T]]) -> Sequence[TaskHandle[T]]:
        """Do what `send_many` does, for asyncio code."""
        return await self._send_async(self._new_tasks(calls))

    def _new_task(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *delay: float | timedelta) -> Tasks:
        """`delay` has the argument of `schedule()`, whatever it is: None is refused like any other invalid delay."""
        options = add_delay(self._options, *delay) if delay else self._options
        return new_tasks([self._arguments.encode(args, kwargs)], options)

    def _new_tasks(self, calls: Iterable[object]) -> Tasks:
        name, key = self._options.task_name, self._key
        tasks = new_tasks(self._payloads(calls), self._options)
        if key is not None and len(tasks) > 1:
            raise_problems(
                f"send_many() of task {name!r}",
                [f"key {key.name!r} stands for one task, not for {len(tasks)}; send them one by one"],
            )
        return tasks

    def _payloads(self, calls: Iterable[object]) -> Iterator[str]:
        name = self._options.task_name
        for position, call in enumerate(calls):
            if not isinstance(call, Call):
                raise TypeError(
                    f"send_many() of task {name!r}: item {position} is not a Call; write [task.call(1), ...]"
                )
            if call.task_name != name:
                raise TypeError(
                    f"send_many() of task {name!r}: item {position} is a call of {call.task_name!r}; send it by that task"
                )
            yield call.args

    def _send(self, tasks: Tasks) -> Sequence[TaskHandle[T]]:
        if self._is_suppressed(tasks):
            return self._handles([task.id for task in tasks], is_suppressed=True)
        if self._connection is None:
            # Not with a caller's connection: SQLAlchemy's `run_sync` waits for one without blocking the loop.
            warn_in_event_loop(_ASYNC_METHODS)
        if not self._is_observed:
            return self._handles(self._commit(tasks))
        with observe_send(self._app.tracer, tasks) as send:
            send.ids = self._commit(send.tasks)
        return self._handles(send.ids)

    async def _send_async(self, tasks: Tasks) -> Sequence[TaskHandle[T]]:
        if self._is_suppressed(tasks):
            return self._handles([task.id for task in tasks], is_suppressed=True)
        if not self._is_observed:
            return self._handles(await self._commit_async(tasks))
        with observe_send(self._app.tracer, tasks) as send:
            send.ids = await self._commit_async(send.tasks)
        return self._handles(send.ids)

    def _commit(self, tasks: Tasks) -> Sequence[TaskId]:
        broker, key = self._app.broker, self._key
        if self._connection is None:
            return broker.run(partial(enqueue, tasks, key), again=partial(enqueue_again, tasks, key))
        return broker.run_on(self._connection, partial(enqueue_within, tasks, key))

    async def _commit_async(self, tasks: Tasks) -> Sequence[TaskId]:
        broker, key = self._app.broker, self._key
        if self._connection is None:
            return await broker.run_async(partial(enqueue, tasks, key), again=partial(enqueue_again, tasks, key))
        return await broker.run_on_async(self._connection, partial(enqueue_within, tasks, key))

    def _is_suppressed(self, tasks: Tasks) -> bool:
        return not tasks or sends_are_suppressed() or self._app.suppresses_sends

    @property
    def _is_observed(self) -> bool:
        return bool(subscribers) or self._app.tracer is not None

    def _handles(self, ids: Sequence[TaskId], *, is_suppressed: bool = False) -> Sequence[TaskHandle[T]]:
        result, broker = self._result, self._broker  # one bound method for all handles, of which there may be very many
        sent_at = 0.0 if self._key else time.monotonic()  # a key may stand for a task that was sent long ago

        def handle(task_id: TaskId) -> TaskHandle[T]:
            if is_suppressed:
                return InertHandle(task_id, result, broker)
            return TaskHandle(task_id, result, broker, sent_at=sent_at)

        return [*map(handle, ids)] if isinstance(ids, list) else LazyHandles(ids, handle)

    def _broker(self) -> PostgresBroker:
        return self._app.broker

    def __repr__(self) -> str:
        return f"<sender of task {self._options.task_name!r} to queue {self._options.queue_name!r}>"


_ASYNC_METHODS = "await task.send_async(...)`, `schedule_async` or `send_many_async"
