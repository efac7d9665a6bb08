"""`TaskHandle`: a ticket for one task that was sent."""

import asyncio
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from horsies.db.waiter import Waiter
from horsies.model.codec import ResultCodec, decode_error
from horsies.model.error_codes import OutcomeCode, RetrievalCode
from horsies.model.errors import BlockingCallError, SendSuppressed
from horsies.model.result import TaskError, TaskResult
from horsies.model.status import TaskStatus
from horsies.model.task import Ended, TaskId
from horsies.tasks.control import CancelOutcome, Requeue, RetryOutcome, cancel_task
from horsies.tasks.current_task import warn_inside_task
from horsies.tasks.inspect import TaskInfo, get_info, get_status
from horsies.tasks.wait import NotEnded, WaitAnswer, deadline_from_timeout, wait_until_ended, wait_until_ended_async

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker  # brings psycopg, which a process that only runs tasks can do without

AT_ONCE_S, SOON_S = 0.0005, 0.005
"""Whoever waits at once for what was sent looks for its ending soon, or when it is announced."""

T_co = TypeVar("T_co", covariant=True)


class TaskHandle(Generic[T_co]):
    """Waits for the result of one task. Cheap; any number may exist for the same task."""

    def __init__(
        self,
        task_id: TaskId,
        codec: ResultCodec[T_co],
        broker: "Callable[[], PostgresBroker]",
        *,
        sent_at: float = 0.0,
    ) -> None:
        """`sent_at`: on the monotonic clock, if it was sent for this handle."""
        self.task_id = task_id
        self._sent_at = sent_at
        self._codec = codec
        self._broker = broker
        self._ended: Ended | None = None
        self._result: TaskResult[T_co, TaskError] | None = None

    def get(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """Wait for the result. A wait that runs out is `err(WAIT_TIMEOUT)`, and the task goes on; 0 only looks."""
        if self._ended is None:
            broker, deadline, waiter = self.broker, deadline_from_timeout(timeout_ms), self._waiter()
            refuse_in_event_loop("get()", "await handle.get_async()")
            if timeout_ms != 0:
                warn_inside_task(stacklevel=2)
            wait_until_ended(broker, waiter, deadline)
            return self.receive(waiter.answers[self.task_id], timeout_ms)
        return self.receive(self._ended, timeout_ms)

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """The same for asyncio code."""
        if self._ended is None:
            broker, deadline, waiter = self.broker, deadline_from_timeout(timeout_ms), self._waiter()
            if timeout_ms != 0:
                warn_inside_task(stacklevel=2)
            await wait_until_ended_async(broker, waiter, deadline)
            return self.receive(waiter.answers[self.task_id], timeout_ms)
        return self.receive(self._ended, timeout_ms)

    def status(self) -> TaskStatus | None:
        """Where the task is now; None when no such task is known."""
        verb = partial(get_status, self.task_id)
        return self.broker.run(verb, again=verb)

    async def status_async(self) -> TaskStatus | None:
        """The same for asyncio code."""
        verb = partial(get_status, self.task_id)
        return await self.broker.run_async(verb, again=verb)

    def info(self) -> TaskInfo | None:
        """Attempts, times, worker and progress; None when no such task is known."""
        verb = partial(get_info, self.task_id)
        return self.broker.run(verb, again=verb)

    async def info_async(self) -> TaskInfo | None:
        """The same for asyncio code."""
        verb = partial(get_info, self.task_id)
        return await self.broker.run_async(verb, again=verb)

    def cancel(self) -> CancelOutcome:
        """What has not begun ends at once; what runs is asked to stop and, past a grace period, its child is killed."""
        verb = partial(cancel_task, self.task_id)
        return self.broker.run(verb, again=verb)

    async def cancel_async(self) -> CancelOutcome:
        """The same for asyncio code."""
        verb = partial(cancel_task, self.task_id)
        return await self.broker.run_async(verb, again=verb)

    def retry(self, *, force: bool = False) -> RetryOutcome:
        """Bring a task back that has ended: it is due now, and `get()` waits for its new ending. `force` takes also one that has succeeded,
        whose `good_until` has passed, or whose key was given to another task since.
        """
        verb = Requeue([self.task_id], force=force)
        return self._retried(self.broker.run(verb, again=verb)[self.task_id])

    async def retry_async(self, *, force: bool = False) -> RetryOutcome:
        """The same for asyncio code."""
        verb = Requeue([self.task_id], force=force)
        return self._retried((await self.broker.run_async(verb, again=verb))[self.task_id])

    def _retried(self, outcome: RetryOutcome) -> RetryOutcome:
        if outcome in (RetryOutcome.RETRIED, RetryOutcome.NOT_ENDED):
            self._ended = self._result = None  # what is known of it here is over
        return outcome

    # -- for those who wait for several

    @property
    def broker(self) -> "PostgresBroker":
        """Where the task is."""
        return self._broker()

    @property
    def ended(self) -> Ended | None:
        """How the task ended, if that is known here: `get()` returns at once then, and asks nobody."""
        return self._ended

    def keep(self, ended: Ended) -> None:
        """How the task ended, found by somebody who waited for it on behalf of this handle."""
        self._ended = ended

    def receive(self, found: WaitAnswer, timeout_ms: int | None) -> TaskResult[T_co, TaskError]:
        """The result that such an answer means to a wait of this length."""
        match found:
            case Ended():
                self._ended = found
                if self._result is None:
                    self._result = self._decode(found)
                return self._result
            case NotEnded.LIVE:
                return TaskResult(
                    err=TaskError(
                        error_code=RetrievalCode.WAIT_TIMEOUT,
                        message=f"task {self.task_id} has not ended within {timeout_ms} ms; it goes on",
                        data={"task_id": self.task_id},
                    )
                )
            case NotEnded.UNKNOWN:
                return TaskResult(
                    err=TaskError(
                        error_code=RetrievalCode.TASK_NOT_FOUND,
                        message=f"no task {self.task_id} is known: never sent, not committed yet, or past its retention",
                        data={"task_id": self.task_id},
                    )
                )

    def _waiter(self) -> Waiter[WaitAnswer]:
        """A task has not ended in the moment after its send. To look for that while it is being claimed would be in its way."""
        is_new = time.monotonic() < self._sent_at + AT_ONCE_S
        return Waiter([self.task_id], first_read_at=self._sent_at + SOON_S if is_new else 0.0)

    def _decode(self, ended: Ended) -> TaskResult[T_co, TaskError]:
        if ended.status is TaskStatus.COMPLETED:
            return TaskResult(ok=self._codec.decode(ended.result or "null"))
        if ended.error is not None:
            return TaskResult(err=decode_error(ended.error))
        own = TaskError(
            error_code=_CODES[ended.status], message=f"the task is {ended.status}", data={"task_id": self.task_id}
        )
        return TaskResult(err=own)

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"


_CODES = {
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}


class InertHandle(TaskHandle[T_co]):
    """What a suppressed send returns: there is no task behind it."""

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
