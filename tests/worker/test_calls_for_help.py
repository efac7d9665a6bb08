"""When a full worker calls the others. Time is virtual: the event loop jumps to its next timer."""

import asyncio
import selectors
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from horsies.db.channels import Channel
from horsies.tasks.claim import EPOCH, NO_CAPS, Lane
from horsies.worker.wakeups import CALL_MAX_S, Notifications

MINUTE_S = 60


class JumpingSelector(selectors.DefaultSelector):
    """Does not wait, but moves the clock by as long as it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class RecordingListener:
    """Keeps the subscription for new tasks, and counts the statements that it is given."""

    is_listening = True

    def __init__(self) -> None:
        self.on_new: Callable[[str | None], None] = lambda _: None
        self.calls = 0

    def subscribe(self, channel: Channel, _key: str | None, wake: Callable[[str | None], None]) -> None:
        if channel is Channel.NEW:
            self.on_new = wake

    def run_soon(self, _op: object) -> None:
        self.calls += 1

    def unsubscribe(self, *_: object) -> None: ...

    def join(self, _group: object) -> None: ...

    def leave(self, _group: object) -> None: ...

    def read_on_this_loop(self) -> nullcontext[None]:
        return nullcontext()


def ignore(_payload: str | None) -> None: ...


async def calls_in_a_minute(notified_every_s: float | None) -> int:
    """Return how often a worker calls that has more tasks than it can take, and receives the calls of others."""
    listener = RecordingListener()
    broker: Any = SimpleNamespace(config=SimpleNamespace(schema="horsies"), listener=lambda: listener)
    dispatcher: Any = SimpleNamespace(queues=["default"], caps=NO_CAPS, worker="", is_full=True, on_notification=ignore)
    with Notifications(broker, dispatcher, lambda: None):
        dispatcher.group.slot, dispatcher.group.occupied = 0, (0, 1)
        dispatcher.on_surplus(Lane("default", 100, EPOCH))
        until = asyncio.get_running_loop().time() + MINUTE_S
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(notified_every_s or CALL_MAX_S)
            if notified_every_s is not None:
                listener.on_new("any 100 1 default")
    return listener.calls


@pytest.mark.promise("D6")
@pytest.mark.parametrize("every_s", [0.01, 0.9])
def test_forged_calls_do_not_keep_a_worker_from_calling(every_s: float) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        calls = runner.run(calls_in_a_minute(every_s))
    assert calls >= MINUTE_S / (2 * CALL_MAX_S)


def test_workers_that_hear_each_other_call_less_often() -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        alone, together = runner.run(calls_in_a_minute(None)), runner.run(calls_in_a_minute(0.9))
    assert together < 0.7 * alone
