"""When a full worker calls the others. Time is virtual: the event loop jumps to its next timer."""

import asyncio
import selectors
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from horsies.db.channels import Channel
from horsies.db.driver import drive
from horsies.db.statement import Op
from horsies.tasks.claim import EPOCH, NO_CAPS, Lane
from horsies.worker.wakeups import CALL_MAX_S, CALL_S, Notifications

MINUTE_S = 60
LANE = Lane("default", 100, EPOCH)


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
    """Keeps the subscription for new tasks, and answers and counts the statements that it is given."""

    is_listening = True
    is_task_waiting = True

    def __init__(self) -> None:
        self.on_new: Callable[[str | None], None] = lambda _: None
        self.calls = 0

    def subscribe(self, channel: Channel, _key: str | None, wake: Callable[[str | None], None]) -> None:
        if channel is Channel.NEW:
            self.on_new = wake

    def run_soon(self, make_op: Callable[[], Op[object]]) -> None:
        self.calls += 1
        drive(make_op(), lambda _request: [[("",)] if self.is_task_waiting else []])

    def unsubscribe(self, *_: object) -> None: ...

    def join(self, _group: object) -> None: ...

    def leave(self, _group: object) -> None: ...

    def read_on_this_loop(self) -> nullcontext[None]:
        return nullcontext()


def ignore(_payload: str | None) -> None: ...


def full_worker() -> Any:
    """The dispatcher of a worker that can take nothing, and listens as one of two."""
    return SimpleNamespace(
        queues=["default"], caps=NO_CAPS, worker="", is_full=True, notifications=0, on_notification=ignore
    )


def notifications(listener: RecordingListener, dispatcher: Any) -> Notifications:
    broker: Any = SimpleNamespace(config=SimpleNamespace(schema="horsies"), listener=lambda: listener)
    made = Notifications(broker, dispatcher, lambda: None)
    dispatcher.group.slot, dispatcher.group.occupied = 0, (0, 1)
    return made


async def calls_in_a_minute(notified_every_s: float | None) -> int:
    """Return how often a worker calls that has more tasks than it can take, and receives the calls of others."""
    listener, dispatcher = RecordingListener(), full_worker()
    with notifications(listener, dispatcher):
        dispatcher.on_surplus(LANE)
        until = asyncio.get_running_loop().time() + MINUTE_S
        while asyncio.get_running_loop().time() < until:
            await asyncio.sleep(notified_every_s or CALL_MAX_S)
            if notified_every_s is not None:
                listener.on_new("any 100 1 default")
    return listener.calls


async def call_again_after_help() -> None:
    listener, dispatcher = RecordingListener(), full_worker()
    with notifications(listener, dispatcher):
        dispatcher.on_surplus(LANE)
        await asyncio.sleep(MINUTE_S)  # the pauses have become long
        listener.is_task_waiting = False
        await asyncio.sleep(2 * CALL_MAX_S)
        calls = listener.calls
        await asyncio.sleep(MINUTE_S)
        dispatcher.on_surplus(LANE)  # as after any report of a child: it cannot look for itself
        await asyncio.sleep(MINUTE_S)
        assert listener.calls == calls, "nothing was announced since no task waits"
        dispatcher.notifications += 1
        dispatcher.on_surplus(LANE)
        await asyncio.sleep(2 * CALL_S)
        assert listener.calls == calls + 1


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


def test_a_worker_that_stays_full_calls_at_once_for_the_next_task_that_is_announced() -> None:
    """Others are idle beside it: half of the tasks would wait for them otherwise, until they act in its place."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(call_again_after_help())
