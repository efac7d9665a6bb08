"""Enqueue: PENDING rows, all or none of them, in the order they were given.

A statement carries the ids and arguments of many tasks and their options once. What is too much for one statement goes by COPY, or
in slices if it is for later or on a caller's connection, inside one transaction. Within a transaction all rows have the same `enqueued_at`, and the ids, which only grow, keep the order.

A send whose outcome is unknown (the connection was lost, perhaps at COMMIT) is repeated with the same ids. Because all of it was
committed or nothing, the first id stands for all: the probe waits for a first attempt that is still under way, and tells whether
there is anything left to send, even if it has been run and finished meanwhile.

Workers are told of an ordinary send when it is committed, not in it: a NOTIFY holds a lock of the whole cluster until its transaction is
durable, so eight producers would wait for one another's disk. Both travel together, so only a server that dies between the two can
leave a task untold, and then workers find it when they look by themselves. Whatever else inserts rows is told of by a trigger.
"""

import asyncio
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from horsies.db.pipeline import copy_field
from horsies.db.statement import Op, Query, copy, execute, execute_then_notify, load, one, rows, to_array
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.errors import KeyConflictError
from horsies.model.send_options import Key, span_problems, to_timedelta
from horsies.model.task import NewTask, TaskId, TaskOptions
from horsies.model.validation import raise_problems
from horsies.subscribers import subscribers
from horsies.tasks.call import AppContext, Call
from horsies.tasks.handle import InertHandle, TaskHandle
from horsies.tasks.ids import new_task_id, new_task_ids
from horsies.tasks.import_guard import sends_are_suppressed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from horsies.db.broker import PostgresBroker
    from horsies.tasks.instrument import TracedSend

# --------
# The options of a send as parameters of a statement.


def option_params(options: TaskOptions) -> dict[str, object]:
    due, retry = options.due, options.retry
    return {
        "task_name": options.task_name,
        "queue_name": options.queue_name,
        "priority": options.priority,
        "eta": due if isinstance(due, datetime) else None,
        "delay_s": due.total_seconds() if isinstance(due, timedelta) else None,
        "good_until": options.good_until,
        "timeout_ms": options.timeout_ms,
        "retry_delays_ms": list(retry.delays_ms) if retry else None,
        "retry_jitter": retry.jitter if retry else 0.0,
        "retry_for": list(retry.codes) if retry else None,
        "trace": options.trace,
    }


# --------
# Idempotency keys: at most one live task for each key of a task name.
#
# A key is a row that names its task. Nobody touches it when the task ends; whoever sends under the same key finds out. A holder is
# *live*, or ended less than its window ago: then it keeps the key. Else the key is taken over, if nobody else has done so since
# we looked (`keys.task_id` must still be the one that was seen). A send that comes while another's is not committed waits in the INSERT: after
# a rollback the key is free, after a commit it looks again with a younger snapshot, as does the loser of two that take over.
#
# Each row also carries the id of the send that wrote it last. A send whose answer was lost, and which had replaced the arguments of
# a waiting task, finds its own id there. One gap is left: if, before the repetition, that task has run and ended *and* another send has taken
# the key over and ended too, nothing remembers it, and it is sent again.

SQL = load(__file__)


def take_key(task: NewTask, key: Key) -> Op[TaskId | None]:
    """None: the key is this task's, which is to be enqueued in the same transaction. Else the id of the task that has the key."""
    params = {
        "id": task.id,
        "task_name": task.options.task_name,
        "key": key.name,
        "args_hash": _hash(task.args),
        "window_s": key.window.total_seconds(),
    }
    begun: TaskId | None = None
    while True:
        row = yield from one(SQL["take_key"](**params))
        if row is None:
            continue  # somebody was quicker; what they did can be seen now
        holder, taken, sent_by_us, same_args = row
        if taken:
            return None
        if sent_by_us:
            return holder
        if key.on_conflict == "replace" and holder != begun:
            if (
                yield from one(
                    SQL["replace_pending_task"](holder=holder, args=task.args, **option_params(task.options) | params)
                )
            ):
                return holder
            begun = holder  # or ended: look again
        elif key.on_conflict == "raise" or not same_args:
            raise _conflict(task, key, holder, same_args=same_args)
        else:
            return holder


def _hash(args: str) -> str:
    """The same for equal arguments, in whatever order a dict of them was filled."""
    canonical = json.dumps(json.loads(args), sort_keys=True)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def _conflict(task: NewTask, key: Key, holder: TaskId, *, same_args: bool) -> KeyConflictError:
    what = f"key {key.name!r} of task {task.options.task_name!r} is held by {holder}"
    if same_args:
        message = f'{what}, and on_conflict is "raise"; use on_conflict="return" to get a handle to it'
    else:
        message = f"{what}, which was sent with other arguments; use another key for another call"
    return KeyConflictError(message, key=key.name, task_id=holder)


SLICE_ROWS = 1_000
SLICE_CHARACTERS = 4_000_000


def enqueue(tasks: Sequence[NewTask], key: Key | None = None) -> Op[list[TaskId]]:
    """Their ids; with a key, the id of the task that has it, which may be another."""
    if key is None and len(first := next(_slices(tasks))) == len(tasks):
        ids = [task.id for task in tasks]
        yield from execute_then_notify(_insert(first, "after_commit"), after_commit=SQL["notify_enqueued"](ids=ids))
        return ids
    yield from rows(SQL["begin_send"]())
    if _can_be_copied(tasks):
        yield from copy(SQL["copy_tasks"], _lines(tasks))
        ids = [task.id for task in tasks]
    else:
        ids = yield from enqueue_within(tasks, key)
    yield from rows(SQL["commit_send"]())
    return ids


def enqueue_again(tasks: Sequence[NewTask], key: Key | None = None) -> Op[list[TaskId]]:
    """The same send once more, after one whose outcome is unknown: never lost, never twice, even if it has already run."""
    first = tasks[0].id
    _, _, probe = yield from execute(SQL["begin_send"](), SQL["insert_probe"](id=first), SQL["delete_probe"](id=first))
    is_new = probe == [(False,)]
    ids = (yield from enqueue_within(tasks, key)) if is_new else [task.id for task in tasks]
    # The first attempt may have been cut off before it told anybody.
    yield from execute_then_notify(SQL["commit_send"](), after_commit=SQL["notify_enqueued"](ids=ids[:SLICE_ROWS]))
    return ids


def enqueue_within(tasks: Sequence[NewTask], key: Key | None = None) -> Op[list[TaskId]]:
    """The same inside a transaction that somebody else begins and ends."""
    if key is not None:
        (task,) = tasks
        holder = yield from take_key(task, key)
        if holder is not None:
            return [holder]
    for some in _slices(tasks):
        yield from rows(_insert(some))
    return [task.id for task in tasks]


def _slices(tasks: Sequence[NewTask]) -> Iterator[Sequence[NewTask]]:
    """Neighbours on the same options, not too many for one statement."""
    start = characters = 0
    for position, task in enumerate(tasks):
        first, count = tasks[start], position - start
        characters += len(task.args)
        alike = task.options is first.options or task.options == first.options
        if count and (not alike or count == SLICE_ROWS or characters > SLICE_CHARACTERS):
            yield tasks[start:position]
            start, characters = position, len(task.args)
    if tasks:
        yield tasks[start:]


def _can_be_copied(tasks: Sequence[NewTask]) -> bool:
    """COPY cannot ask the database's clock whether a moment has passed."""
    options = tasks[0].options
    return len(tasks) > SLICE_ROWS and options.due is None and all(task.options is options for task in tasks)


def _lines(tasks: Sequence[NewTask]) -> Iterator[str]:
    options, retry = tasks[0].options, tasks[0].options.retry
    policy = (to_array(retry.delays_ms), retry.jitter, to_array(retry.codes)) if retry else (None, 0.0, None)
    same = (
        options.task_name,
        options.queue_name,
        options.priority,
        options.good_until,
        options.timeout_ms,
        *policy,
        options.trace,
    )
    rest = "\t".join(map(copy_field, same)) + "\n"
    for task in tasks:
        yield f"{task.id}\t{copy_field(task.args)}\t{rest}"


def _insert(tasks: Sequence[NewTask], notify: Literal["", "after_commit"] = "") -> Query:
    """The trigger notifies at the commit, unless workers are told afterwards."""
    ids, args = [task.id for task in tasks], [task.args for task in tasks]
    return SQL["enqueue_tasks"](ids=ids, args=args, notify=notify, **option_params(tasks[0].options))


# --------
# How a `Sender` sends. Apart from it, because most children of a worker never send, and need not load what that takes.

T = TypeVar("T")


class EnqueueContext(Generic[T]):
    """Of one sender: what is given to it, and how that goes on its way."""

    def __init__(
        self,
        options: TaskOptions,
        arguments: ArgumentsCodec,
        result: ResultCodec[T],
        app: AppContext,
        key: Key | None,
        connection: object | None,
    ) -> None:
        self._options = options
        self._arguments = arguments
        self._result = result
        self._app = app
        self._key = key
        self._connection = connection

    # -- what is sent

    def one(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[NewTask]:
        return [NewTask(new_task_id(), self._arguments.encode(args, kwargs), self._options)]

    def later(self, delay: float | timedelta, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[NewTask]:
        problems = list(span_problems("delay", delay))
        if self._options.due is not None:
            problems.append("eta and schedule() both say when; use send() with eta, or schedule() without")
        raise_problems(f"schedule() of task {self._options.task_name!r}", problems)
        options = self._options._replace(due=to_timedelta(delay)) if delay else self._options
        return [NewTask(new_task_id(), self._arguments.encode(args, kwargs), options)]

    def batch(self, calls: Iterable[object]) -> list[NewTask]:
        payloads = [self._payload(position, call) for position, call in enumerate(calls)]
        if self._key is not None and len(payloads) > 1:
            raise_problems(
                f"send_many() of task {self._options.task_name!r}",
                [f"key {self._key.name!r} stands for one task, not for {len(payloads)}; send them one by one"],
            )
        ids = new_task_ids(len(payloads))
        return [NewTask(task_id, args, self._options) for task_id, args in zip(ids, payloads, strict=True)]

    def _payload(self, position: int, call: object) -> str:
        name = self._options.task_name
        if not isinstance(call, Call):
            raise TypeError(f"send_many() of task {name!r}: item {position} is no Call; write [task.call(1), ...]")
        if call.task_name != name:
            raise TypeError(
                f"send_many() of task {name!r}: item {position} is a call of {call.task_name!r}; send it by that task"
            )
        return call.args

    # -- on its way

    def send(self, tasks: Sequence[NewTask]) -> list[TaskHandle[T]]:
        if not tasks or sends_are_suppressed() or self._app.suppresses_sends:
            return self._inert(tasks)
        if self._connection is None:
            # A lent connection may be one that waits without blocking: SQLAlchemy's `run_sync`.
            warn_in_event_loop(_ASYNC_VERBS)
        if not self._is_watched:
            return self._handles(self._commit(tasks))
        with self._watched(tasks) as send:
            send.ids = self._commit(send.tasks)
        return self._handles(send.ids)

    def _commit(self, tasks: Sequence[NewTask]) -> list[TaskId]:
        broker = self._app.broker
        if self._connection is None:
            return broker.run(self._verb(enqueue, tasks), again=self._verb(enqueue_again, tasks))
        return broker.run_on(self._connection, self._verb(enqueue_within, tasks))

    async def send_async(self, tasks: Sequence[NewTask]) -> list[TaskHandle[T]]:
        if not tasks or sends_are_suppressed() or self._app.suppresses_sends:
            return self._inert(tasks)
        if not self._is_watched:
            return self._handles(await self._commit_async(tasks))
        with self._watched(tasks) as send:
            send.ids = await self._commit_async(send.tasks)
        return self._handles(send.ids)

    async def _commit_async(self, tasks: Sequence[NewTask]) -> list[TaskId]:
        broker = self._app.broker
        if self._connection is None:
            return await broker.run_async(self._verb(enqueue, tasks), again=self._verb(enqueue_again, tasks))
        return await broker.run_on_async(self._connection, self._verb(enqueue_within, tasks))

    @property
    def _is_watched(self) -> bool:
        return bool(subscribers) or self._app.tracer is not None

    def _watched(self, tasks: Sequence[NewTask]) -> "AbstractContextManager[TracedSend]":
        from horsies.tasks.instrument import observe  # noqa: PLC0415 - for nobody else

        return observe(self._app.tracer, tasks)

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
        return self._app.broker


_ASYNC_VERBS = "await task.send_async(...)`, `schedule_async` or `send_many_async"


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
