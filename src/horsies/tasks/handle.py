"""`TaskHandle` stands for one task that was sent. This module also waits for tasks to end and reads their results.

`db/waiter.py` reads the results for all waiters of a process or an event loop.
"""

import asyncio
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Never, Protocol, TypeAlias, TypeVar, cast

from horsies.db.driver import drive
from horsies.db.statement import Op, Request, load, rows
from horsies.db.waiter import ReadResult, ThreadFuture
from horsies.model.codec import ResultCodec, decode_error
from horsies.model.error_codes import OutcomeCode, RetrievalCode
from horsies.model.errors import BlockingCallError, SendSuppressed, WaitTimeoutError
from horsies.model.other_queues import GET_OPTIONS, HANDLE_NAMES, explain_missing, refuse_options
from horsies.model.result import Err, Ok, Result, TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Ended, TaskId
from horsies.tasks.control import CancelOutcome, Requeue, RetryOutcome, cancel_task
from horsies.tasks.current_task import warn_inside_task
from horsies.tasks.inspect import TaskInfo, get_info, get_status

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker
    from horsies.events import Tracer
    from horsies.model.config import AppConfig
    from horsies.tasks.middleware import Middleware

MAX_CLOCK_DIFFERENCE = timedelta(hours=1)
_MAX_MS = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp() * 1000)
MAX_NAMED = 3
_VERSION_POSITION = 14  # in the text of a UUID; version 7 contains a time, and sorts by it

SQL = load(__file__)


class NotEnded(Enum):
    """Why there is no result."""

    LIVE = auto()
    UNKNOWN = auto()


WaitAnswer: TypeAlias = Ended | NotEnded
AnyFuture: TypeAlias = ThreadFuture[WaitAnswer] | asyncio.Future[WaitAnswer]


def deadline_from_timeout(timeout_ms: float | None) -> float | None:
    """Return the deadline on the monotonic clock; None waits without a limit."""
    if timeout_ms is None:
        return None
    if not isinstance(timeout_ms, int | float) or not timeout_ms >= 0:  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
        raise ValueError(f"timeout_ms is {timeout_ms!r}; use milliseconds from 0 on, or None to wait without a limit")
    return time.monotonic() + timeout_ms / 1000


def get_results(task_ids: list[TaskId]) -> Op[Mapping[TaskId, ReadResult[WaitAnswer]]]:
    """Read how each of these tasks ended, or why it has no result. An unknown id is waited for, too: its send may commit later."""
    # Each partition of the range costs planning time. If the clocks differ by more than the allowed hour, or no id has a time, the second
    # statement, which reads all partitions, finds the task.
    since = until = datetime.now(UTC)
    oldest = min((task_id for task_id in task_ids if task_id[_VERSION_POSITION] == "7"), default=None)
    if oldest is not None and (milliseconds := int(oldest[:8] + oldest[9:13], 16)) <= _MAX_MS:
        since = datetime.fromtimestamp(milliseconds / 1000, UTC)
    since, until = since - MAX_CLOCK_DIFFERENCE, until + MAX_CLOCK_DIFFERENCE
    found = yield from rows(SQL["get_results"](ids=task_ids, since=since, until=until))
    if missing := {*task_ids}.difference([row[0] for row in found]):
        found = [*found, *(yield from rows(SQL["get_results_unpruned"](ids=list(missing))))]
    results: dict[TaskId, ReadResult[WaitAnswer]] = dict.fromkeys(task_ids, ReadResult(NotEnded.UNKNOWN))
    # Reversed, so that the row of `finished` wins if a task is in both tables: it has ended, and its other row is about to be deleted.
    for task_id, status, result, error, expires_s in reversed(found):
        if (task_status := TaskStatus(status)).is_final:
            results[task_id] = ReadResult(Ended(task_id, task_status, result, error), is_final=True)
        else:
            results[task_id] = ReadResult(NotEnded.LIVE, read_again_s=expires_s)
    return results


A = TypeVar("A")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_STATUS_CODES = {TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED, TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED}


class CallerTransactions(Protocol):
    """The transactions of the framework that the caller works in, such as Django. Sends take part in the one that is open."""

    def open_connection(self) -> object | None:
        """Return the connection on which this thread has opened a transaction; None if it has not."""
        ...

    async def call(self, function: Callable[[], T]) -> T:
        """Call a blocking function on the thread on which transactions of this asyncio code are opened."""
        ...


JOIN_OPEN: Final = object()
"""The default of `connection`: that of the transaction which `CallerTransactions` finds. None is a connection of horsies."""


class AppContext(Protocol):
    """What a task and its handles need from their app."""

    @property
    def config(self) -> "AppConfig": ...
    @property
    def broker(self) -> "PostgresBroker": ...
    @property
    def tracer(self) -> "Tracer | None": ...
    @property
    def suppresses_sends(self) -> bool: ...
    @property
    def known_tasks(self) -> "Mapping[str, Any]": ...
    @property
    def middlewares(self) -> "tuple[Middleware, ...]": ...
    @property
    def transactions(self) -> CallerTransactions | None: ...


class TaskHandle(Generic[T_co]):
    """Stands for one task, and waits for its result. Any number of handles can exist for the same task."""

    is_new_s: ClassVar[float] = 0.0005
    """How long after its send a task is new."""
    first_read_s: ClassVar[float] = 0.005
    """The first read for a new task, after its send; earlier if a notification arrives."""

    def __init__(self, task_id: TaskId, codec: ResultCodec[T_co], app: AppContext, *, sent_at: float = 0.0) -> None:
        """`sent_at`: when the task was sent, on the monotonic clock; 0 if it may have been sent earlier."""
        self.task_id = task_id
        self._sent_at = sent_at
        self._codec = codec
        self._app = app
        self.ended: Ended | None = None  # if it is known, `get()` returns at once, without a query
        self._result: Result[T_co] | None = None

    def __eq__(self, other: object) -> bool:
        """Handles of the same task are equal."""
        return self.task_id == other.task_id if isinstance(other, TaskHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.task_id)

    def get(self, timeout_ms: int | None = None, **unknown: Never) -> Result[T_co]:
        """Wait for the result. After `timeout_ms` it is `err(WAIT_TIMEOUT)`, and the task continues; 0 does not wait."""
        if unknown:
            refuse_options("get()", unknown, GET_OPTIONS)
        if self.ended is None:
            broker, deadline = self.broker, deadline_from_timeout(timeout_ms)
            refuse_in_event_loop("get()", "await handle.get_async()")
            if timeout_ms != 0:
                warn_inside_task(stacklevel=2)
            futures = broker.wait(get_results, [self.task_id], deadline, self._first_read_at())
            return self.to_result(futures[self.task_id].result(), timeout_ms)
        return self.to_result(self.ended, timeout_ms)

    async def get_async(self, timeout_ms: int | None = None, **unknown: Never) -> Result[T_co]:
        """Do what `get` does, for asyncio code."""
        if unknown:
            refuse_options("get_async()", unknown, GET_OPTIONS)
        if self.ended is None:
            broker, deadline = self.broker, deadline_from_timeout(timeout_ms)
            if timeout_ms != 0:
                warn_inside_task(stacklevel=2)
            futures = await broker.wait_async(get_results, [self.task_id], deadline, self._first_read_at())
            return self.to_result(futures[self.task_id].result(), timeout_ms)
        return self.to_result(self.ended, timeout_ms)

    def status(self) -> TaskStatus | None:
        """Read the current status; None if there is no such task."""
        return self._run(partial(get_status, self.task_id))

    async def status_async(self) -> TaskStatus | None:
        """Do what `status` does, for asyncio code."""
        return await self._run_async(partial(get_status, self.task_id))

    def info(self) -> TaskInfo | None:
        """Read attempts, times, worker and progress; None if there is no such task."""
        return self._run(partial(get_info, self.task_id))

    async def info_async(self) -> TaskInfo | None:
        """Do what `info` does, for asyncio code."""
        return await self._run_async(partial(get_info, self.task_id))

    def cancel(self) -> CancelOutcome:
        """Cancel the task. If it has not started, it ends at once. If it is running, it is requested to stop; after a grace period, its child is killed."""
        return self._run(partial(cancel_task, self.task_id))

    async def cancel_async(self) -> CancelOutcome:
        """Do what `cancel` does, for asyncio code."""
        return await self._run_async(partial(cancel_task, self.task_id))

    def retry(self, *, force: bool = False) -> RetryOutcome:
        """Return an ended task to its queue: it is due now, and `get()` waits for its new ending. `force` includes a task that has succeeded,
        whose `good_until` has passed, or whose key another task has taken since.
        """
        return self._forget_ending(self._run(Requeue([self.task_id], force=force))[self.task_id])

    async def retry_async(self, *, force: bool = False) -> RetryOutcome:
        """Do what `retry` does, for asyncio code."""
        return self._forget_ending((await self._run_async(Requeue([self.task_id], force=force)))[self.task_id])

    def _forget_ending(self, outcome: RetryOutcome) -> RetryOutcome:
        if outcome in (RetryOutcome.RETRIED, RetryOutcome.NOT_ENDED):
            self.ended = self._result = None
        return outcome

    # All of these operations can be repeated if the outcome of the first attempt is unknown.

    def _run(self, op: Callable[[], Op[A]]) -> A:
        return self.broker.run(op, again=op)

    async def _run_async(self, op: Callable[[], Op[A]]) -> A:
        return await self.broker.run_async(op, again=op)

    @property
    def broker(self) -> "PostgresBroker":
        """The broker of the app that sent the task."""
        return self._app.broker

    def to_result(self, answer: WaitAnswer, timeout_ms: int | None) -> Result[T_co]:
        """Convert the answer of a wait with this timeout to a result."""
        match answer:
            case Ended():
                self.ended = answer
                if self._result is not None:
                    return self._result
                if answer.status is TaskStatus.COMPLETED:
                    self._result = Ok(self._codec.decode(answer.result or "null"))
                elif answer.error is not None:
                    self._result = Err(decode_error(answer.error))
                else:
                    self._result = self._error(_STATUS_CODES[answer.status], f"the task is {answer.status}")
                return self._result
            case NotEnded.LIVE:
                code = RetrievalCode.WAIT_TIMEOUT
                message = f"task {self.task_id} has not ended within {timeout_ms} ms; it continues"
            case NotEnded.UNKNOWN:
                code = RetrievalCode.TASK_NOT_FOUND
                message = f"there is no task {self.task_id}: it was never sent, is not committed yet, or is past its retention"
        return self._error(code, message)

    def _first_read_at(self) -> float:
        """A task that was just sent has not ended yet. To read its result while it is being claimed would slow down the claim."""
        return self._sent_at + self.first_read_s if time.monotonic() < self._sent_at + self.is_new_s else 0.0

    def _error(self, code: OutcomeCode | RetrievalCode, message: str) -> Result[T_co]:
        return Err(TaskError(error_code=code, message=message, data={"task_id": self.task_id}))

    if not TYPE_CHECKING:
        __getattr__ = explain_missing(HANDLE_NAMES)

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"


class InertHandle(TaskHandle[T_co]):
    """The handle of a suppressed send. There is no task: every query finds nothing."""

    @property
    def broker(self) -> "PostgresBroker":
        raise SendSuppressed(
            "this send was suppressed, so nothing was enqueued. It happened while a worker was importing modules: move the send out of the "
            "module's top level. Or sends of the app are suppressed, by app.suppress_sends(True) or $HORSIES_SUPPRESS_SENDS"
        )

    def _run(self, op: Callable[[], Op[A]]) -> A:
        return drive(op(), lambda request: [[] for _ in cast("Request", request).queries])

    async def _run_async(self, op: Callable[[], Op[A]]) -> A:
        return self._run(op)


class Gathering(Generic[T]):
    """Handles that are waited for together, by `gather` or `as_completed`."""

    def __init__(self, handles: Iterable[TaskHandle[T]], app: AppContext, timeout_ms: int | None) -> None:
        self._handles = list(handles)
        self._by_id: dict[TaskId, dict[TaskHandle[T], None]] = {}  # the same handle may be given twice
        for handle in self._handles:
            if not isinstance(handle, TaskHandle):  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
                raise TypeError(
                    f"only handles can be waited for, not {handle!r}; pass what send() returned, or app.handle(task_id)"
                )
            if handle.broker is not app.broker:
                raise ValueError(f"{handle!r} belongs to another app; wait for it there")
            self._by_id.setdefault(handle.task_id, {})[handle] = None
        self._app = app
        self._timeout_ms = timeout_ms
        self._deadline = deadline_from_timeout(timeout_ms)
        if timeout_ms != 0 and any(handle.ended is None for handle in self._handles):
            warn_inside_task(stacklevel=4)  # the caller of the app's method

    def all(self) -> list[Result[T]]:
        refuse_in_event_loop("gather()", "await app.gather_async(handles)")
        missing = self._missing()
        return self._results(self._app.broker.wait(get_results, missing, self._deadline) if missing else {})

    async def all_async(self) -> list[Result[T]]:
        missing = self._missing()
        return self._results(await self._app.broker.wait_async(get_results, missing, self._deadline) if missing else {})

    def completed(self) -> Generator[TaskHandle[T]]:
        """Yield each handle once, first those whose ending is known."""
        missing = self._missing()
        yield from self._ended_handles()
        if missing:
            late: list[TaskId] = []
            for task_id, future in self._app.broker.as_completed(get_results, missing, self._deadline):
                ended = self._take(future)
                late += [] if ended else [task_id]
                yield from ended
            self._raise_if_late(late)

    async def completed_async(self) -> AsyncGenerator[TaskHandle[T]]:
        missing = self._missing()
        for handle in self._ended_handles():
            yield handle
        if missing:
            done: asyncio.Queue[asyncio.Future[WaitAnswer]] = asyncio.Queue()
            async with self._app.broker.waiting_async(get_results, missing, self._deadline) as futures:
                for future in futures.values():
                    future.add_done_callback(done.put_nowait)
                for _ in futures:
                    for handle in self._take(await done.get()):
                        yield handle
                self._raise_if_late([each for each, of in futures.items() if not isinstance(of.result(), Ended)])

    def _missing(self) -> dict[TaskId, None]:
        return {handle.task_id: None for handle in self._handles if handle.ended is None}

    def _ended_handles(self) -> list[TaskHandle[T]]:
        return [handle for handle in {id(each): each for each in self._handles}.values() if handle.ended is not None]

    def _take(self, future: AnyFuture) -> list[TaskHandle[T]]:
        """Store an ending and return the handles of the task; none if the time has run out."""
        answer = future.result()
        if not isinstance(answer, Ended):
            return []
        for handle in self._by_id[answer.id]:
            handle.ended = answer
        return list(self._by_id[answer.id])

    def _results(self, futures: Mapping[TaskId, AnyFuture]) -> list[Result[T]]:
        for future in futures.values():  # first what is known, so that it need not be read again
            if not future.exception():
                self._take(future)
        return [
            handle.to_result(handle.ended or futures[handle.task_id].result(), self._timeout_ms)
            for handle in self._handles
        ]

    def _raise_if_late(self, left: list[TaskId]) -> None:
        """Raise after all are complete: those that a last read finds at the deadline are yielded first."""
        if left:
            named = ", ".join(left[:MAX_NAMED]) + (", ..." if len(left) > MAX_NAMED else "")
            raise WaitTimeoutError(
                f"{len(left)} of {len(self._by_id)} tasks have not ended within {self._timeout_ms} ms ({named}); they continue"
            )


def caller_connection(app: AppContext, given: object | None) -> object | None:
    """Return the connection to use: the given one, or by default that of the caller's open transaction; None for one of horsies."""
    if given is JOIN_OPEN:
        return None if app.transactions is None else app.transactions.open_connection()
    return given


def refuse_in_event_loop(call: str, instead: str) -> None:
    """Raise BlockingCallError for a blocking call in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCallError(f"{call} would block the running event loop; use `{instead}`")


def warn_in_event_loop(instead: str, *, stacklevel: int) -> None:
    """Warn about a blocking call in an event loop. `stacklevel` is that of `warnings.warn` for the function that calls this."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    warnings.warn(
        f"this blocks the running event loop for a round trip to PostgreSQL; use `{instead}`", stacklevel=stacklevel + 1
    )
