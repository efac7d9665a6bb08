"""`gather` and `as_completed`: wait for many tasks at once."""

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, cast

from horsies.db.waiter import ThreadFuture
from horsies.model.errors import WaitTimeoutError
from horsies.model.result import TaskError, TaskResult
from horsies.model.task import Ended, TaskId
from horsies.tasks.current_task import warn_inside_task
from horsies.tasks.handle import TaskHandle, WaitAnswer, deadline_from_timeout, get_results, refuse_in_event_loop

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

MAX_NAMED = 3

T = TypeVar("T")
AnyFuture: TypeAlias = ThreadFuture[WaitAnswer] | asyncio.Future[WaitAnswer]


class Gathering(Generic[T]):
    """Handles that are waited for together."""

    def __init__(
        self, handles: Iterable[TaskHandle[T]], broker: "Callable[[], PostgresBroker]", timeout_ms: int | None
    ) -> None:
        self._handles = list(handles)
        self._by_id: dict[TaskId, dict[TaskHandle[T], None]] = {}  # the same handle may be given twice
        for handle in self._handles:
            _check(handle, broker)
            self._by_id.setdefault(handle.task_id, {})[handle] = None
        self._broker = broker
        self._timeout_ms = timeout_ms
        self._deadline = deadline_from_timeout(timeout_ms)
        if timeout_ms != 0 and any(handle.ended is None for handle in self._handles):
            warn_inside_task(stacklevel=4)  # the caller of the app's method

    def all(self) -> list[TaskResult[T, TaskError]]:
        refuse_in_event_loop("gather()", "await app.gather_async(handles)")
        missing = self._missing()
        return self._results(self._broker().wait(get_results, missing, self._deadline) if missing else {})

    async def all_async(self) -> list[TaskResult[T, TaskError]]:
        missing = self._missing()
        return self._results(await self._broker().wait_async(get_results, missing, self._deadline) if missing else {})

    def completed(self) -> Generator[TaskHandle[T]]:
        """Yield each handle once, first those whose ending is known."""
        missing = self._missing()
        yield from self._ended_handles()
        if missing:
            done: queue.SimpleQueue[ThreadFuture[WaitAnswer]] = queue.SimpleQueue()
            with self._broker().waiting(get_results, missing, self._deadline) as futures:
                for future in futures.values():
                    future.add_done_callback(done.put)
                for _ in futures:
                    yield from self._take(done.get())
                self._raise_if_late(futures)

    async def completed_async(self) -> AsyncGenerator[TaskHandle[T]]:
        missing = self._missing()
        for handle in self._ended_handles():
            yield handle
        if missing:
            done: asyncio.Queue[asyncio.Future[WaitAnswer]] = asyncio.Queue()
            async with self._broker().waiting_async(get_results, missing, self._deadline) as futures:
                for future in futures.values():
                    future.add_done_callback(done.put_nowait)
                for _ in futures:
                    for handle in self._take(await done.get()):
                        yield handle
                self._raise_if_late(futures)

    def _missing(self) -> dict[TaskId, None]:
        return {handle.task_id: None for handle in self._handles if handle.ended is None}

    def _ended_handles(self) -> list[TaskHandle[T]]:
        return [handle for handle in dict.fromkeys(self._handles) if handle.ended is not None]

    def _take(self, future: AnyFuture) -> list[TaskHandle[T]]:
        """Store an ending and return the handles of the task; none if the time has run out."""
        answer = future.result()
        handles = list(self._by_id[answer.id]) if isinstance(answer, Ended) else []
        for handle in handles:
            handle.set_ended(cast("Ended", answer))
        return handles

    def _results(self, futures: Mapping[TaskId, AnyFuture]) -> list[TaskResult[T, TaskError]]:
        for future in futures.values():  # first what is known, so that it need not be read again
            if not future.exception():
                self._take(future)
        return [
            handle.to_result(handle.ended or futures[handle.task_id].result(), self._timeout_ms)
            for handle in self._handles
        ]

    def _raise_if_late(self, futures: Mapping[TaskId, AnyFuture]) -> None:
        """Raise after all are complete: those that a last read finds at the deadline are yielded first."""
        left = [task_id for task_id, future in futures.items() if not isinstance(future.result(), Ended)]
        if left:
            named = ", ".join(left[:MAX_NAMED]) + (", ..." if len(left) > MAX_NAMED else "")
            raise WaitTimeoutError(
                f"{len(left)} of {len(self._by_id)} tasks have not ended within {self._timeout_ms} ms ({named}); they continue"
            )


def _check(handle: object, broker: "Callable[[], PostgresBroker]") -> None:
    if not isinstance(handle, TaskHandle):
        raise TypeError(
            f"only handles can be waited for, not {handle!r}; pass what send() returned, or app.handle(task_id)"
        )
    if handle.broker is not broker():
        raise ValueError(f"{handle!r} belongs to another app; wait for it there")
