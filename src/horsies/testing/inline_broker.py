"""The broker of `run_inline`: before and after each verb, what is due is run."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from horsies.db.fleeting import FleetingBroker
from horsies.db.op import Op
from horsies.testing.drains import Drain, EndlessDrainError, Ran, refuse_in_event_loop, work, work_async
from horsies.testing.sandbox import Sandbox

DEEPEST = 20

T = TypeVar("T")
_depth: ContextVar[int] = ContextVar("horsies_inline_depth", default=0)


class InlineBroker(FleetingBroker):
    """Before, because a caller's transaction may have been committed meanwhile."""

    def __init__(self, sandbox: Sandbox, ran: list[Ran]) -> None:
        super().__init__(sandbox.broker.config, resilience=sandbox.app.config.resilience)
        self._sandbox = sandbox
        self._ran = ran

    def run(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        refuse_in_event_loop("a blocking call within run_inline()", "await task.send_async(...)")
        self._drain()
        answer = super().run(verb, again=again)
        self._drain()
        return answer

    async def run_async(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        await self._drain_async()
        answer = await super().run_async(verb, again=again)
        await self._drain_async()
        return answer

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
