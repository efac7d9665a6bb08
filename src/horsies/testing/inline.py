"""Run tasks inline: a send returns when its task has run.

The send is a real one, and so is the run: the row is committed, and drained by the same code as always, before the verb
returns. So arguments and results are encoded and decoded, keys, queues and policies apply, and handles read what is stored.
Only the delays of retries are skipped. What is sent in the caller's own transaction runs with the first verb after its COMMIT.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from horsies.app import Horsies
from horsies.db.broker import UnpooledBroker
from horsies.db.statement import Op
from horsies.tasks.handle import refuse_in_event_loop
from horsies.testing.drainer import Drain, EndlessDrainError, Ran
from horsies.testing.sandbox import Sandbox, sandbox_of

MAX_DEPTH = 20

T = TypeVar("T")
_depth: ContextVar[int] = ContextVar("horsies_inline_depth", default=0)


@contextmanager
def run_inline(app: Horsies | None = None) -> Generator[list[Ran]]:
    """Within this context, run whatever is due as soon as it is sent, in this process. The list of attempts grows."""
    sandbox, ran = sandbox_of(app), list[Ran]()
    with _InlineBroker(sandbox, ran) as broker, sandbox.app.using(broker):
        yield ran


class _InlineBroker(UnpooledBroker):
    """Drains before and after each verb: before it, because a transaction of the caller may have been committed."""

    def __init__(self, sandbox: Sandbox, ran: list[Ran]) -> None:
        super().__init__(sandbox.broker.config, resilience=sandbox.app.config.resilience)
        self._app = sandbox.app
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

    def _prepare_wait(self) -> None:
        self._drain()

    async def _prepare_wait_async(self) -> None:
        await self._drain_async()

    def _drain(self) -> None:
        with _nested():
            self._ran += Drain(self._app, self.config, None, "now").run(super().run)

    async def _drain_async(self) -> None:
        with _nested():
            self._ran += await Drain(self._app, self.config, None, "now").run_async(super().run_async)


@contextmanager
def _nested() -> Generator[None]:
    """Limit the depth: a task that sends runs the next one before it continues, so endless sending would fill the stack."""
    if _depth.get() >= MAX_DEPTH:
        raise EndlessDrainError(
            f"within run_inline(), {MAX_DEPTH} tasks have each sent the next; send the first one without it, and use drain(limit=...)"
        )
    token = _depth.set(_depth.get() + 1)
    try:
        yield
    finally:
        _depth.reset(token)
