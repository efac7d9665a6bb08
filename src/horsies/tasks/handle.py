"""`TaskHandle`: a ticket for one task that was sent."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from horsies.db.op import Op
from horsies.model.codec import ResultCodec, decode_error
from horsies.model.codes import OutcomeCode, RetrievalCode
from horsies.model.errors import BlockingCallError, SendSuppressed
from horsies.model.result import TaskError, TaskResult
from horsies.model.status import TaskStatus
from horsies.model.task import Ended, TaskId
from horsies.tasks.cancel import CancelOutcome, cancel
from horsies.tasks.inspect import TaskInfo, get_info
from horsies.tasks.wait import NotEnded, wait_until_ended

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker  # brings psycopg, which a process that only runs tasks can do without

T_co = TypeVar("T_co", covariant=True)


class TaskHandle(Generic[T_co]):
    """Waits for the result of one task. Cheap; any number may exist for the same task."""

    def __init__(self, task_id: TaskId, codec: ResultCodec[T_co], broker: "Callable[[], PostgresBroker]") -> None:
        self.task_id = task_id
        self._codec = codec
        self._broker = broker
        self._result: TaskResult[T_co, TaskError] | None = None

    def get(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """Wait for the result. A wait that runs out is `err(WAIT_TIMEOUT)`, and the task goes on."""
        if self._result is not None:
            return self._result
        _refuse_in_event_loop()
        verb = self._wait(timeout_ms)
        return self._receive(self._broker().run(verb, again=verb), timeout_ms)

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """The same for asyncio code."""
        if self._result is not None:
            return self._result
        verb = self._wait(timeout_ms)
        return self._receive(await self._broker().run_async(verb, again=verb), timeout_ms)

    def status(self) -> TaskStatus | None:
        """Where the task is now; None when no such task is known."""
        info = self.info()
        return info.status if info else None

    async def status_async(self) -> TaskStatus | None:
        info = await self.info_async()
        return info.status if info else None

    def info(self) -> TaskInfo | None:
        """Attempts, times, worker and progress; None when no such task is known."""
        verb = partial(get_info, self.task_id)
        return self._broker().run(verb, again=verb)

    async def info_async(self) -> TaskInfo | None:
        verb = partial(get_info, self.task_id)
        return await self._broker().run_async(verb, again=verb)

    def cancel(self) -> CancelOutcome:
        """What has not begun ends at once; what runs is asked to stop and, past a grace period, its child is killed."""
        verb = partial(cancel, self.task_id)
        return self._broker().run(verb, again=verb)

    async def cancel_async(self) -> CancelOutcome:
        verb = partial(cancel, self.task_id)
        return await self._broker().run_async(verb, again=verb)

    def _wait(self, timeout_ms: int | None) -> Callable[[], Op[Ended | NotEnded]]:
        if timeout_ms is not None and not timeout_ms >= 0:
            raise ValueError(f"timeout_ms is {timeout_ms!r}; give milliseconds from 0 on, or None to wait for ever")
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        return partial(wait_until_ended, self.task_id, deadline)

    def _receive(self, found: Ended | NotEnded, timeout_ms: int | None) -> TaskResult[T_co, TaskError]:
        match found:
            case Ended():
                self._result = self._decode(found)
                return self._result
            case NotEnded.LIVE:
                return TaskResult(
                    err=TaskError(
                        error_code=RetrievalCode.WAIT_TIMEOUT,
                        message=f"task {self.task_id} has not ended within {timeout_ms} ms; it goes on",
                    )
                )
            case NotEnded.UNKNOWN:
                return TaskResult(
                    err=TaskError(
                        error_code=RetrievalCode.TASK_NOT_FOUND,
                        message=f"no task {self.task_id} is known: never sent, not committed yet, or past its retention",
                    )
                )

    def _decode(self, ended: Ended) -> TaskResult[T_co, TaskError]:
        if ended.status is TaskStatus.COMPLETED:
            return TaskResult(ok=self._codec.decode(ended.result or "null"))
        if ended.error is not None:
            return TaskResult(err=decode_error(ended.error))
        return TaskResult(err=TaskError(error_code=_CODES[ended.status], message=f"the task is {ended.status}"))

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"


_CODES = {
    TaskStatus.CANCELLED: OutcomeCode.TASK_CANCELLED,
    TaskStatus.EXPIRED: OutcomeCode.TASK_EXPIRED,
}


class InertHandle(TaskHandle[T_co]):
    """What a suppressed send returns: there is no task behind it."""

    def get(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:  # noqa: ARG002 - as the real one
        raise SendSuppressed(
            "this send happened while a worker was importing modules, so nothing was enqueued; "
            "move the send out of the module's top level"
        )

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        return self.get(timeout_ms)

    def info(self) -> TaskInfo | None:
        return None

    async def info_async(self) -> TaskInfo | None:
        return None

    def cancel(self) -> CancelOutcome:
        return CancelOutcome.NOT_FOUND

    async def cancel_async(self) -> CancelOutcome:
        return CancelOutcome.NOT_FOUND


def _refuse_in_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCallError("get() would block the running event loop; use `await handle.get_async()`")
