"""`gather` and `as_completed`: wait for many tasks at once."""

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from horsies.db.waiter import Waiter
from horsies.model.errors import WaitTimeoutError
from horsies.model.result import TaskError, TaskResult
from horsies.model.task import Ended, TaskId
from horsies.tasks.current_task import warn_inside_task
from horsies.tasks.handle import (
    ENDINGS,
    TaskHandle,
    WaitAnswer,
    deadline_from_timeout,
    refuse_in_event_loop,
    wait_until_ended,
    wait_until_ended_async,
)

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

MAX_NAMED = 3

T = TypeVar("T")


class Gathering(Generic[T]):
    """Handles that are waited for together, with one waiter."""

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
        waiter = self._waiter()
        if waiter.pending:
            try:
                wait_until_ended(self._broker(), waiter, self._deadline)
            finally:
                self._store_endings(waiter)
        return self._results(waiter)

    async def all_async(self) -> list[TaskResult[T, TaskError]]:
        waiter = self._waiter()
        if waiter.pending:
            try:
                await wait_until_ended_async(self._broker(), waiter, self._deadline)
            finally:
                self._store_endings(waiter)
        return self._results(waiter)

    def completed(self) -> Generator[TaskHandle[T]]:
        """Yield each handle once, first those whose ending is known."""
        waiter = self._waiter()
        yield from self._ended_handles()
        if waiter.pending:
            broker = self._broker()
            hub = broker.hub(ENDINGS)
            with hub.register(waiter):
                while waiter.pending or waiter.ready:
                    broker.wait(hub, waiter, self._deadline, Waiter[WaitAnswer].has_ready)
                    yield from self._take_ready(waiter)

    async def completed_async(self) -> AsyncGenerator[TaskHandle[T]]:
        waiter = self._waiter()
        for handle in self._ended_handles():
            yield handle
        if waiter.pending:
            broker = self._broker()
            hub = broker.hub(ENDINGS)
            with hub.register(waiter):
                while waiter.pending or waiter.ready:
                    await broker.wait_async(hub, waiter, self._deadline, Waiter[WaitAnswer].has_ready)
                    for handle in self._take_ready(waiter):
                        yield handle

    def _waiter(self) -> Waiter[WaitAnswer]:
        return Waiter(handle.task_id for handle in self._handles if handle.ended is None)

    def _ended_handles(self) -> list[TaskHandle[T]]:
        return [handle for handle in dict.fromkeys(self._handles) if handle.ended is not None]

    def _take_ready(self, waiter: Waiter[WaitAnswer]) -> Generator[TaskHandle[T]]:
        if not waiter.ready:
            raise self._timeout_error(waiter)
        while waiter.ready:
            task_id = waiter.ready.popleft()
            self._store_ending(task_id, waiter.answers[task_id])
            yield from self._by_id[task_id]

    def _store_endings(self, waiter: Waiter[WaitAnswer]) -> None:
        """Store what is known, also if the wait failed: it need not be read again."""
        for task_id, answer in waiter.answers.items():
            self._store_ending(task_id, answer)

    def _store_ending(self, task_id: TaskId, answer: WaitAnswer) -> None:
        if isinstance(answer, Ended):
            for handle in self._by_id[task_id]:
                handle.set_ended(answer)

    def _results(self, waiter: Waiter[WaitAnswer]) -> list[TaskResult[T, TaskError]]:
        return [
            handle.to_result(handle.ended or waiter.answers[handle.task_id], self._timeout_ms)
            for handle in self._handles
        ]

    def _timeout_error(self, waiter: Waiter[WaitAnswer]) -> WaitTimeoutError:
        left = [task_id for task_id in self._by_id if task_id in waiter.pending]
        named = ", ".join(left[:MAX_NAMED]) + (", ..." if len(left) > MAX_NAMED else "")
        return WaitTimeoutError(
            f"{len(left)} of {len(self._by_id)} tasks have not ended within {self._timeout_ms} ms ({named}); they continue"
        )


def _check(handle: object, broker: "Callable[[], PostgresBroker]") -> None:
    if not isinstance(handle, TaskHandle):
        raise TypeError(
            f"only handles can be waited for, not {handle!r}; pass what send() returned, or app.handle(task_id)"
        )
    if handle.broker is not broker():
        raise ValueError(f"{handle!r} belongs to another app; wait for it there")
