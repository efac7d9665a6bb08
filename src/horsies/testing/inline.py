"""Run in line: a send returns when its task has run.

The send is a real one, and so is the run: the row is committed and drained, by the same code as ever, before the verb returns. So
arguments and results are encoded and decoded, keys, queues and policies are honoured, and handles read what was stored. Only the
delays of retries are skipped. What a caller's own transaction holds back runs with the first verb after its COMMIT.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from horsies.app import Horsies
from horsies.db.broker import UnpooledBroker
from horsies.db.statement import Op
from horsies.db.waiter import Waiter, WaiterHub
from horsies.tasks.handle import refuse_in_event_loop
from horsies.testing.drainer import Drain, EndlessDrainError, Ran, work, work_async
from horsies.testing.sandbox import Sandbox, sandbox_of

# --------
# The broker of `run_inline`: before and after each verb, what is due is run.

DEEPEST = 20

T = TypeVar("T")
A = TypeVar("A")
_depth: ContextVar[int] = ContextVar("horsies_inline_depth", default=0)
_is_waiting: ContextVar[bool] = ContextVar("horsies_inline_is_waiting", default=False)


class InlineBroker(UnpooledBroker):
    """Before, because a caller's transaction may have been committed meanwhile."""

    def __init__(self, sandbox: Sandbox, ran: list[Ran]) -> None:
        super().__init__(sandbox.broker.config, resilience=sandbox.app.config.resilience)
        self._sandbox = sandbox
        self._ran = ran

    def run(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        if _is_waiting.get():
            return super().run(verb, again=again)
        refuse_in_event_loop("a blocking call within run_inline()", "await task.send_async(...)")
        self._drain()
        answer = super().run(verb, again=again)
        self._drain()
        return answer

    async def run_async(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        if _is_waiting.get():
            return await super().run_async(verb, again=again)
        await self._drain_async()
        answer = await super().run_async(verb, again=again)
        await self._drain_async()
        return answer

    def wait(
        self,
        hub: WaiterHub[A],
        waiter: Waiter[A],
        deadline: float | None,
        until: Callable[[Waiter[A]], bool] = Waiter[Any].is_complete,
    ) -> None:
        self._drain()
        with _waiting():
            super().wait(hub, waiter, deadline, until)

    async def wait_async(
        self,
        hub: WaiterHub[A],
        waiter: Waiter[A],
        deadline: float | None,
        until: Callable[[Waiter[A]], bool] = Waiter[Any].is_complete,
    ) -> None:
        await self._drain_async()
        with _waiting():
            await super().wait_async(hub, waiter, deadline, until)

    def _drain(self) -> None:
        with _deeper():
            self._ran += work(self._new_drain(), super().run)

    async def _drain_async(self) -> None:
        with _deeper():
            self._ran += await work_async(self._new_drain(), super().run_async)

    def _new_drain(self) -> Drain:
        return Drain(self._sandbox.app, self.config, None, "now")


@contextmanager
def _deeper() -> Generator[None]:
    """A task that sends runs the next one before it goes on: tasks that send each other for ever would fill the stack."""
    if _depth.get() >= DEEPEST:
        raise EndlessDrainError(
            f"within run_inline(), {DEEPEST} tasks have each sent the next; send the first one without it, and use drain(limit=...)"
        )
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)


@contextmanager
def _waiting() -> Generator[None]:
    """Who waits may be reading for others who wait: a task that ran within such a read, and waited itself, would wait for its reader."""
    token = _is_waiting.set(True)
    try:
        yield
    finally:
        _is_waiting.reset(token)


@contextmanager
def run_inline(app: Horsies | None = None) -> Generator[list[Ran]]:
    """Within it, whatever is due runs as soon as it is sent, in this process. The list tells what has run, and grows."""

    sandbox, ran = sandbox_of(app), list[Ran]()
    with InlineBroker(sandbox, ran) as broker, sandbox.app.using(broker):
        yield ran
