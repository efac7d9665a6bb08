"""Gather, and as completed: wait for many tasks at once."""

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from horsies.db.waiter import Waiter
from horsies.model.errors import WaitTimeoutError
from horsies.model.result import TaskError, TaskResult
from horsies.model.task import Ended, TaskId
from horsies.tasks.current_task import warn_inside_task
from horsies.tasks.handle import TaskHandle, refuse_in_event_loop
from horsies.tasks.wait import ENDINGS, WaitAnswer, deadline_from_timeout, wait_until_ended, wait_until_ended_async

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

T = TypeVar("T")

NAMED_AT_MOST = 3


class Gathering(Generic[T]):
    """Handles that are waited for together: at the desk of one broker, on one ticket."""

    def __init__(
        self, handles: Iterable[TaskHandle[T]], broker: "Callable[[], PostgresBroker]", timeout_ms: int | None
    ) -> None:
        self._handles = [_checked(handle, broker) for handle in handles]
        self._broker = broker
        self._timeout_ms = timeout_ms
        self._deadline = deadline_from_timeout(timeout_ms)
        self._by_id: dict[TaskId, dict[TaskHandle[T], None]] = {}  # the same one may be given twice
        for handle in self._handles:
            self._by_id.setdefault(handle.task_id, {})[handle] = None
        if timeout_ms != 0 and any(handle.ended is None for handle in self._handles):
            warn_inside_task(stacklevel=4)  # the call of the app's method

    def all(self) -> list[TaskResult[T, TaskError]]:
        refuse_in_event_loop("gather()", "await app.gather_async(handles)")
        waiter = self._waiter()
        if waiter.pending:
            try:
                wait_until_ended(self._broker(), waiter, self._deadline)
            finally:
                self._keep_all(waiter)
        return self._results(waiter)

    async def all_async(self) -> list[TaskResult[T, TaskError]]:
        waiter = self._waiter()
        if waiter.pending:
            try:
                await wait_until_ended_async(self._broker(), waiter, self._deadline)
            finally:
                self._keep_all(waiter)
        return self._results(waiter)

    def completed(self) -> Generator[TaskHandle[T]]:
        """Each handle once, those first that are known to have ended."""
        waiter = self._waiter()
        yield from self._known()
        if waiter.pending:
            broker = self._broker()
            hub = broker.hub(ENDINGS)
            with hub.register(waiter):
                while waiter.pending or waiter.ready:
                    broker.wait(hub, waiter, self._deadline, Waiter[WaitAnswer].has_ready)
                    yield from self._take_ready(waiter)

    async def completed_async(self) -> AsyncGenerator[TaskHandle[T]]:
        waiter = self._waiter()
        for handle in self._known():
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

    def _known(self) -> list[TaskHandle[T]]:
        return [handle for handle in dict.fromkeys(self._handles) if handle.ended is not None]

    def _take_ready(self, waiter: Waiter[WaitAnswer]) -> Generator[TaskHandle[T]]:
        if not waiter.ready:
            raise self._too_late(waiter)
        while waiter.ready:
            task_id = waiter.ready.popleft()
            self._keep(task_id, waiter.answers[task_id])
            yield from self._by_id[task_id]

    def _keep(self, task_id: TaskId, answer: WaitAnswer) -> None:
        if isinstance(answer, Ended):
            for handle in self._by_id[task_id]:
                handle.keep(answer)

    def _keep_all(self, waiter: Waiter[WaitAnswer]) -> None:
        """Also when the waiting failed: what is known need not be asked for again."""
        for task_id, answer in waiter.answers.items():
            self._keep(task_id, answer)

    def _results(self, waiter: Waiter[WaitAnswer]) -> list[TaskResult[T, TaskError]]:
        return [
            handle.receive(handle.ended or waiter.answers[handle.task_id], self._timeout_ms) for handle in self._handles
        ]

    def _too_late(self, waiter: Waiter[WaitAnswer]) -> WaitTimeoutError:
        left = [task_id for task_id in self._by_id if task_id in waiter.pending]
        named = ", ".join(left[:NAMED_AT_MOST]) + (", ..." if len(left) > NAMED_AT_MOST else "")
        return WaitTimeoutError(
            f"{len(left)} of {len(self._by_id)} tasks have not ended within {self._timeout_ms} ms ({named}); they go on"
        )


def _checked(handle: TaskHandle[T], broker: "Callable[[], PostgresBroker]") -> TaskHandle[T]:
    if not isinstance(handle, TaskHandle):  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
        raise TypeError(
            f"only handles can be waited for, not {handle!r}; pass what send() returned, or app.handle(task_id)"
        )
    if handle.broker is not broker():
        raise ValueError(f"{handle!r} was made by another app; wait for it there")
    return handle
