"""`Sender`: the methods that send one task. A `Task` is a sender; `task.with_options(...)` returns another one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from operator import eq
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar, overload

from horsies.events import SendSpan, TasksSent, TracedWork, Tracer, begin_span, emit, end_span, subscribers
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.errors import ConfigError
from horsies.model.other_queues import TASK_NAMES, explain_missing
from horsies.model.send_options import Key
from horsies.model.task import TaskId, TaskOptions
from horsies.model.validation import raise_problems
from horsies.tasks.enqueue import (
    SpooledTasks,
    Tasks,
    add_delay,
    enqueue,
    enqueue_again,
    enqueue_within,
    ids_of,
    new_tasks,
)
from horsies.tasks.handle import JOIN_OPEN, AppContext, InertHandle, TaskHandle, caller_connection, warn_in_event_loop

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
        connection: object | None = JOIN_OPEN,
    ) -> None:
        self._options = options
        self.arguments = arguments
        self.result = result
        self.app = app
        self._key = key
        self._connection = connection

    @cached_property
    def options(self) -> TaskOptions:
        """The options of the tasks that this sends."""
        return self._options

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue the task now. Returns when it is committed; invalid arguments are refused before."""
        return self._send(new_tasks([self.arguments.encode(args, kwargs)], self.options))[0]

    async def send_async(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Do what `send` does, for asyncio code."""
        return (await self._send_async(new_tasks([self.arguments.encode(args, kwargs)], self.options)))[0]

    def schedule(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue the task for later. `delay` is in seconds, measured by the clock of the database."""
        options = add_delay(self.options, delay)
        return self._send(new_tasks([self.arguments.encode(args, kwargs)], options))[0]

    async def schedule_async(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Do what `schedule` does, for asyncio code."""
        options = add_delay(self.options, delay)
        return (await self._send_async(new_tasks([self.arguments.encode(args, kwargs)], options)))[0]

    def send_many(self, calls: Iterable[Call[P, T]]) -> Sequence[TaskHandle[T]]:
        """Enqueue all of these tasks in one transaction, or none. They are served in this order, which is also that of the handles.

        `calls` may be a generator of millions: beyond a thousand they are written to a temporary file, and a handle is created when it is used.
        """
        return self._send(self._new_tasks(calls))

    async def send_many_async(self, calls: Iterable[Call[P, T]]) -> Sequence[TaskHandle[T]]:
        """Do what `send_many` does, for asyncio code."""
        return await self._send_async(self._new_tasks(calls))

    def _new_tasks(self, calls: Iterable[object]) -> Tasks:
        what, key = f"send_many() of task {self.options.task_name!r}", self._key

        def payloads() -> Iterator[str]:
            for position, call in enumerate(calls):
                if not isinstance(call, Call):
                    raise TypeError(f"{what}: item {position} is not a Call; write [task.call(1), ...]")
                if call.task_name != self.options.task_name:
                    raise TypeError(f"{what}: item {position} is a call of {call.task_name!r}; send it by that task")
                yield call.args

        tasks = new_tasks(payloads(), self.options)
        if key is not None and len(tasks) > 1:
            raise_problems(what, [f"key {key.name!r} stands for one task, not for {len(tasks)}; send them one by one"])
        return tasks

    def _send(self, tasks: Tasks) -> Sequence[TaskHandle[T]]:
        if not tasks or _suppress_depth or self.app.suppresses_sends:
            return self._handles([task.id for task in tasks], InertHandle)
        connection = caller_connection(self.app, self._connection)
        if connection is None:
            # Not with a caller's connection: SQLAlchemy's `run_sync` waits for one without blocking the loop.
            warn_in_event_loop(_ASYNC_METHODS, stacklevel=3)
        broker, key = self.app.broker, self._key
        is_observed = subscribers or self.app.tracer is not None
        with observe_send(self.app.tracer, tasks) if is_observed else nullcontext(TracedSend(tasks)) as send:
            tasks = send.tasks
            if connection is None:
                send.ids = broker.run(partial(enqueue, tasks, key), again=partial(enqueue_again, tasks, key))
            else:
                send.ids = broker.run_on(connection, partial(enqueue_within, tasks, key))
        return self._handles(send.ids)

    async def _send_async(self, tasks: Tasks) -> Sequence[TaskHandle[T]]:
        if not tasks or _suppress_depth or self.app.suppresses_sends:
            return self._handles([task.id for task in tasks], InertHandle)
        connection, transactions = self._connection, self.app.transactions
        if connection is JOIN_OPEN and transactions is not None:
            joined = await transactions.call(partial(self._send_if_open, tasks))
            if joined is not None:
                return joined
        broker, key = self.app.broker, self._key
        is_observed = subscribers or self.app.tracer is not None
        with observe_send(self.app.tracer, tasks) if is_observed else nullcontext(TracedSend(tasks)) as send:
            tasks = send.tasks
            if connection is None or connection is JOIN_OPEN:
                verb, again = partial(enqueue, tasks, key), partial(enqueue_again, tasks, key)
                send.ids = await broker.run_async(verb, again=again)
            else:
                send.ids = await broker.run_on_async(connection, partial(enqueue_within, tasks, key))
        return self._handles(send.ids)

    def _send_if_open(self, tasks: Tasks) -> Sequence[TaskHandle[T]] | None:
        """Send within the transaction that this thread has opened; None without one."""
        return None if caller_connection(self.app, JOIN_OPEN) is None else self._send(tasks)

    def _handles(self, ids: Sequence[TaskId], kind: type[TaskHandle[T]] = TaskHandle) -> Sequence[TaskHandle[T]]:
        sent_at = 0.0 if self._key else time.monotonic()  # a key may stand for a task that was sent long ago
        handle = partial(kind, codec=self.result, app=self.app, sent_at=sent_at)
        return [*map(handle, ids)] if isinstance(ids, list) else LazyHandles(ids, handle)

    if not TYPE_CHECKING:
        __getattr__ = explain_missing(TASK_NAMES)

    def __repr__(self) -> str:
        return f"<sender of task {self.options.task_name!r} to queue {self.options.queue_name!r}>"


_ASYNC_METHODS = "await task.send_async(...)`, `schedule_async` or `send_many_async"


# -- sends that are observed: subscribers receive an event, and the tasks carry the trace in which they are sent


@dataclass(slots=True)
class TracedSend:
    """The tasks to send; the caller sets the ids that the send returned."""

    tasks: Tasks
    ids: Sequence[TaskId] = ()


@contextmanager
def observe_send(tracer: Tracer | None, tasks: Tasks) -> Generator[TracedSend]:
    """Trace a send, and emit `TasksSent` after it."""
    options, ids = next(iter(tasks)).options, ids_of(tasks)
    work = SendSpan(options.task_name, options.queue_name, ids)
    with trace_send(tracer, work) as trace:
        if trace is not None:
            traced = options._replace(trace=trace)  # one object for all: they still go by one statement, or by COPY
            if isinstance(tasks, SpooledTasks):
                tasks.options = traced
            else:
                tasks = [task._replace(options=traced) for task in tasks]
        send, started = TracedSend(tasks), time.perf_counter()
        yield send
    if subscribers:
        # An id that differs is that of the holder of a key: a task that was sent earlier.
        new = sum(map(eq, ids, send.ids))
        emit(TasksSent(options.task_name, options.queue_name, new, time.perf_counter() - started))


@contextmanager
def trace_send(tracer: Tracer | None, work: TracedWork) -> Generator[str | None]:
    """Open a span for a send. Yields the trace that the tasks are to carry, if there is one."""
    span = None if tracer is None else begin_span(tracer, work)
    if span is None:
        yield None
        return
    try:
        yield span.trace
    except BaseException as error:
        end_span(span, raised=error)
        raise
    end_span(span)
