"""`TaskHandle` stands for one task that was sent. This module also waits for tasks to end and reads their results.

`db/waiter.py` reads the results for all waiters of a process or an event loop.
"""

import asyncio
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeAlias, TypeVar

from horsies.db.statement import Op, Row, load, rows
from horsies.db.waiter import ReadResult
from horsies.model.codec import ResultCodec, decode_error
from horsies.model.error_codes import OutcomeCode, RetrievalCode
from horsies.model.errors import BlockingCallError, SendSuppressed
from horsies.model.result import TaskError, TaskResult
from horsies.model.status import TaskStatus
from horsies.model.task import Ended, TaskId
from horsies.tasks.control import CancelOutcome, Requeue, RetryOutcome, cancel_task
from horsies.tasks.current_task import warn_inside_task
from horsies.tasks.inspect import TaskInfo, get_info, get_status

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

MAX_CLOCK_DIFFERENCE = timedelta(hours=1)
_MAX_MS = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp() * 1000)
_VERSION_POSITION = 14  # in the text of a UUID; version 7 contains a time, and sorts by it

SQL = load(__file__)


class NotEnded(Enum):
    """Why there is no result."""

    LIVE = auto()
    UNKNOWN = auto()


WaitAnswer: TypeAlias = Ended | NotEnded


def deadline_from_timeout(timeout_ms: float | None) -> float | None:
    """Return the deadline on the monotonic clock; None waits without a limit."""
    if timeout_ms is None:
        return None
    if not isinstance(timeout_ms, int | float) or not timeout_ms >= 0:  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
        raise ValueError(f"timeout_ms is {timeout_ms!r}; use milliseconds from 0 on, or None to wait without a limit")
    return time.monotonic() + timeout_ms / 1000


def get_results(task_ids: list[TaskId]) -> Op[Mapping[TaskId, ReadResult[WaitAnswer]]]:
    """Read how each of these tasks ended, or why it has no result. An unknown id is waited for, too: its send may commit later."""
    # Each partition of the range costs planning time. If the clocks differ by more than the allowed hour, the second statement, which
    # reads all partitions, finds the task.
    since, until = _sent_since(task_ids) - MAX_CLOCK_DIFFERENCE, datetime.now(UTC) + MAX_CLOCK_DIFFERENCE
    known = _results_by_id((yield from rows(SQL["get_results"](ids=task_ids, since=since, until=until))))
    if missing := [task_id for task_id in task_ids if task_id not in known]:
        known |= _results_by_id((yield from rows(SQL["get_results_unpruned"](ids=missing))))
    unknown: ReadResult[WaitAnswer] = ReadResult(NotEnded.UNKNOWN)
    return {task_id: known.get(task_id, unknown) for task_id in task_ids}


def _sent_since(task_ids: list[TaskId]) -> datetime:
    """Return the time in the oldest version 7 id, or now if there is none: then the statement without a range finds the tasks."""
    oldest = min((task_id for task_id in task_ids if task_id[_VERSION_POSITION] == "7"), default=None)
    if oldest is None or (milliseconds := int(oldest[:8] + oldest[9:13], 16)) > _MAX_MS:
        return datetime.now(UTC)
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _results_by_id(found: list[Row]) -> dict[TaskId, ReadResult[WaitAnswer]]:
    # Reversed, so that the row of `finished` wins if a task is in both tables: it has ended, and its other row is about to be deleted.
    return {row[0]: _read_result(*row) for row in reversed(found)}


def _read_result(
    task_id: TaskId, status: str, result: str | None, error: str | None, expires_s: float | None
) -> ReadResult[WaitAnswer]:
    task_status = TaskStatus(status)
    if task_status.is_final:
        return ReadResult(Ended(task_id, task_status, result, error), is_final=True)
    return ReadResult(NotEnded.LIVE, read_again_s=expires_s)


A = TypeVar("A")
T_co = TypeVar("T_co", covariant=True)

_STATUS_CODES = {
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}


@dataclass(frozen=True, slots=True)
class HandleTimings:
    """When a waiter first reads the result of a task that was just sent."""

    is_new_s: float = 0.0005
    """How long after its send a task is new."""
    first_read_s: float = 0.005
    """The first read for a new task, after its send; earlier if a notification arrives."""


class TaskHandle(Generic[T_co]):
    """Stands for one task, and waits for its result. Any number of handles can exist for the same task."""

    timings: ClassVar[HandleTimings] = HandleTimings()

    def __init__(
        self,
        task_id: TaskId,
        codec: ResultCodec[T_co],
        broker: "Callable[[], PostgresBroker]",
        *,
        sent_at: float = 0.0,
    ) -> None:
        """`sent_at`: when the task was sent, on the monotonic clock; 0 if it may have been sent earlier."""
        self.task_id = task_id
        self._sent_at = sent_at
        self._codec = codec
        self._broker = broker
        self._ended: Ended | None = None
        self._result: TaskResult[T_co, TaskError] | None = None

    def get(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """Wait for the result. After `timeout_ms` it is `err(WAIT_TIMEOUT)`, and the task continues; 0 does not wait."""
        if self._ended is None:
            broker, deadline = self.broker, deadline_from_timeout(timeout_ms)
            refuse_in_event_loop("get()", "await handle.get_async()")
            if timeout_ms != 0:
                warn_inside_task(stacklevel=2)
            futures = broker.wait(get_results, [self.task_id], deadline, self._first_read_at())
            return self.to_result(futures[self.task_id].result(), timeout_ms)
        return self.to_result(self._ended, timeout_ms)

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """Do what `get` does, for asyncio code."""
        if self._ended is None:
            broker, deadline = self.broker, deadline_from_timeout(timeout_ms)
            if timeout_ms != 0:
                warn_inside_task(stacklevel=2)
            futures = await broker.wait_async(get_results, [self.task_id], deadline, self._first_read_at())
            return self.to_result(futures[self.task_id].result(), timeout_ms)
        return self.to_result(self._ended, timeout_ms)

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
            self._ended = self._result = None
        return outcome

    # All of these operations can be repeated if the outcome of the first attempt is unknown.

    def _run(self, op: Callable[[], Op[A]]) -> A:
        return self.broker.run(op, again=op)

    async def _run_async(self, op: Callable[[], Op[A]]) -> A:
        return await self.broker.run_async(op, again=op)

    # For waits for several tasks:

    @property
    def broker(self) -> "PostgresBroker":
        """The broker of the app that sent the task."""
        return self._broker()

    @property
    def ended(self) -> Ended | None:
        """How the task ended, if the handle knows it: then `get()` returns at once, without a query."""
        return self._ended

    def set_ended(self, ended: Ended) -> None:
        """Store how the task ended."""
        self._ended = ended

    def to_result(self, answer: WaitAnswer, timeout_ms: int | None) -> TaskResult[T_co, TaskError]:
        """Convert the answer of a wait with this timeout to a result."""
        match answer:
            case Ended():
                self._ended = answer
                if self._result is None:
                    self._result = self._decode(answer)
                return self._result
            case NotEnded.LIVE:
                return self._error(
                    RetrievalCode.WAIT_TIMEOUT,
                    f"task {self.task_id} has not ended within {timeout_ms} ms; it continues",
                )
            case NotEnded.UNKNOWN:
                return self._error(
                    RetrievalCode.TASK_NOT_FOUND,
                    f"there is no task {self.task_id}: it was never sent, is not committed yet, or is past its retention",
                )

    def _first_read_at(self) -> float:
        """A task that was just sent has not ended yet. To read its result while it is being claimed would slow down the claim."""
        is_new = time.monotonic() < self._sent_at + self.timings.is_new_s
        return self._sent_at + self.timings.first_read_s if is_new else 0.0

    def _decode(self, ended: Ended) -> TaskResult[T_co, TaskError]:
        if ended.status is TaskStatus.COMPLETED:
            return TaskResult(ok=self._codec.decode(ended.result or "null"))
        if ended.error is not None:
            return TaskResult(err=decode_error(ended.error))
        return self._error(_STATUS_CODES[ended.status], f"the task is {ended.status}")

    def _error(self, code: OutcomeCode | RetrievalCode, message: str) -> TaskResult[T_co, TaskError]:
        return TaskResult(err=TaskError(error_code=code, message=message, data={"task_id": self.task_id}))

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"


class InertHandle(TaskHandle[T_co]):
    """The handle of a suppressed send. There is no task."""

    @property
    def broker(self) -> "PostgresBroker":
        raise SendSuppressed(
            "this send was suppressed, so nothing was enqueued. It happened while a worker was importing modules: move the send out of the "
            "module's top level. Or sends of the app are suppressed, by app.suppress_sends(True) or $HORSIES_SUPPRESS_SENDS"
        )

    def status(self) -> TaskStatus | None:
        return None

    async def status_async(self) -> TaskStatus | None:
        return None

    def info(self) -> TaskInfo | None:
        return None

    async def info_async(self) -> TaskInfo | None:
        return None

    def cancel(self) -> CancelOutcome:
        return CancelOutcome.NOT_FOUND

    async def cancel_async(self) -> CancelOutcome:
        return CancelOutcome.NOT_FOUND

    def retry(self, *, force: bool = False) -> RetryOutcome:  # noqa: ARG002 - there is nothing to force
        return RetryOutcome.NOT_FOUND

    async def retry_async(self, *, force: bool = False) -> RetryOutcome:  # noqa: ARG002
        return RetryOutcome.NOT_FOUND


def refuse_in_event_loop(call: str, instead: str) -> None:
    """Raise BlockingCallError for a blocking call in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCallError(f"{call} would block the running event loop; use `{instead}`")


def warn_in_event_loop(instead: str) -> None:
    """Warn about a blocking call in an event loop. To be called by a helper of a public method: `stacklevel` names that method's caller."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    warnings.warn(
        f"this blocks the running event loop for a round trip to PostgreSQL; use `{instead}`",
        stacklevel=4,
    )
