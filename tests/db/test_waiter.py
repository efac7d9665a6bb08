"""The waiter hub, step by step: each waiter is a generator that the test advances, so every race happens at a known point."""

import asyncio
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

import pytest

from horsies.db.channels import Channel, Subscriptions
from horsies.db.waiter import (
    BATCH,
    ReadKeys,
    ReadResult,
    Sleep,
    Waiter,
    WaiterHub,
    WaiterTimings,
    WaitSource,
    do_nothing,
)
from horsies.model.errors import BrokerError

LIVE: ReadResult[str] = ReadResult("live")
ENDED: ReadResult[str] = ReadResult("ended", is_final=True)


class FakeListener:
    """Subscriptions without a connection: the test notifies them."""

    def __init__(self) -> None:
        self.subscriptions = Subscriptions()
        self.subscribers = 0
        self.is_polling = False
        self.is_in_force = True

    def subscribe(self, channel: Channel, key: str | None, wake: Any) -> bool:
        self.subscriptions.add(channel, key, wake)
        self.subscribers += 1
        return self.is_in_force

    def unsubscribe(self, channel: Channel, key: str | None, wake: Any) -> None:
        self.subscriptions.remove(channel, key, wake)
        self.subscribers -= 1

    def notify(self, *keys: str) -> None:
        self.subscriptions.notify(Channel.DONE, " ".join(keys))


class FakeWaiter:
    """A waiter and its next step."""

    def __init__(
        self,
        hub: WaiterHub[str],
        keys: Iterable[str],
        deadline: float | None = None,
        until: Callable[[Waiter[str]], bool] = Waiter[str].is_complete,
        first_read_at: float = 0.0,
    ) -> None:
        self.waiter = Waiter[str](keys, first_read_at=first_read_at)
        self._entry = hub.register(self.waiter)
        self._entry.__enter__()
        self.wakes = 0
        self._op = hub.wait(self.waiter, self._wake, deadline, until)
        self.step: Sleep | ReadKeys[str] | None = None
        self._move(lambda: next(self._op))

    def _wake(self) -> None:
        self.wakes += 1

    def wake(self) -> None:
        assert isinstance(self.step, Sleep)
        self._move(lambda: self._op.send(None))

    def find(self, found: ReadResult[str] = LIVE, **others: ReadResult[str]) -> None:
        """The read has come back."""
        answer = {key: others.get(key, found) for key in self.reads}
        self._move(lambda: self._op.send(answer))

    def fail(self, error: BaseException) -> None:
        self._move(lambda: self._op.throw(error))

    @property
    def reads(self) -> list[str]:
        assert isinstance(self.step, ReadKeys), f"it does not read but {self.step}"
        return self.step.keys

    @property
    def sleeps(self) -> bool:
        return isinstance(self.step, Sleep)

    @property
    def is_gone(self) -> bool:
        return self.step is None

    def _move(self, move: Callable[[], Any]) -> None:
        try:
            self.step = move()
        except BaseException as end:
            self.step = None
            self._entry.__exit__(None, None, None)
            if not isinstance(end, StopIteration):
                raise


@pytest.fixture
def listener() -> FakeListener:
    return FakeListener()


@pytest.fixture
def hub(listener: FakeListener) -> Generator[WaiterHub[str]]:
    yield make_hub(lambda: listener)
    assert listener.subscribers == 0, "all waiters that left are unsubscribed"


def make_hub(listener: Callable[[], FakeListener], timings: WaiterTimings | None = None) -> WaiterHub[str]:
    def read(keys: list[str]) -> Any:
        raise NotImplementedError("the test answers for the database")

    return WaiterHub(WaitSource(Channel.DONE, read), cast("Any", listener), timings)


def test_the_first_read_of_a_new_key_waits_for_its_notification(hub: WaiterHub[str], listener: FakeListener) -> None:
    waiter = FakeWaiter(hub, "a", first_read_at=time.monotonic() + 60)
    assert isinstance(waiter.step, Sleep)
    assert waiter.step.timeout_s <= WaiterTimings().poll_s
    listener.notify("a")
    assert waiter.wakes
    waiter.wake()
    assert waiter.reads == ["a"]
    waiter.find(ENDED)
    assert waiter.is_gone


def test_the_first_read_of_a_new_key_happens_in_time_without_a_notification(hub: WaiterHub[str]) -> None:
    waiter = FakeWaiter(hub, "a", first_read_at=time.monotonic() + 0.01)
    assert isinstance(waiter.step, Sleep)
    time.sleep(waiter.step.timeout_s)
    waiter.wake()
    assert waiter.reads == ["a"]
    waiter.find(ENDED)


def test_a_lone_waiter_reads_and_leaves(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, ["a"])
    assert one.reads == ["a"]
    one.find(ENDED)
    assert one.is_gone
    assert one.waiter.answers == {"a": "ended"}


def test_a_notification_after_the_first_read_causes_a_second(hub: WaiterHub[str], listener: FakeListener) -> None:
    one = FakeWaiter(hub, ["a"])
    one.find(LIVE)
    assert one.sleeps
    listener.notify("x", "a")
    assert one.wakes == 1
    one.wake()
    assert one.reads == ["a"]
    one.find(ENDED)
    assert one.is_gone


def test_a_notification_before_the_first_read_needs_no_second_one(hub: WaiterHub[str], listener: FakeListener) -> None:
    listener.is_in_force = False
    one = FakeWaiter(hub, ["a"])
    assert one.sleeps, "LISTEN is not in force yet, and a read now could be too early"
    listener.notify("a")
    listener.subscriptions.wake_all(Channel.DONE)  # now it is
    assert one.wakes
    one.wake()
    assert one.reads == ["a"]
    one.find(ENDED)


def test_a_waiter_reads_at_once_if_listen_is_in_force_by_then(hub: WaiterHub[str], listener: FakeListener) -> None:
    listener.is_in_force = False
    hurried = FakeWaiter(hub, ["a"], deadline=0.0)
    assert hurried.reads == ["a"], "it has timed out, so it does not wait for LISTEN"
    hurried.find(LIVE)
    listener.is_in_force = True
    one = FakeWaiter(hub, ["a"])
    assert one.reads == ["a"]
    one.find(ENDED)


def test_a_notification_during_a_read_causes_another(hub: WaiterHub[str], listener: FakeListener) -> None:
    one = FakeWaiter(hub, ["a"])
    listener.notify("a")  # perhaps too late for the snapshot of that read
    one.find(LIVE)
    assert one.reads == ["a"]
    one.find(ENDED)
    assert one.is_gone


def test_one_reads_for_all(hub: WaiterHub[str], listener: FakeListener) -> None:
    one, two, three = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b", "c"]), FakeWaiter(hub, ["b"])
    assert two.sleeps
    assert three.sleeps
    one.find(LIVE)
    assert one.reads == ["b", "c"]
    one.find(LIVE)
    listener.notify("a", "b", "c")
    one.wake()
    assert one.reads == ["a", "b", "c"]
    one.find(ENDED, a=LIVE)
    assert (two.wakes, three.wakes) == (1, 1)
    two.wake()
    three.wake()
    assert two.is_gone
    assert three.is_gone
    assert one.sleeps
    listener.notify("a")
    one.wake()
    one.find(ENDED)
    assert one.is_gone


def test_a_sleeping_reader_reads_for_a_later_waiter(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, ["a"])
    one.find(LIVE)
    assert one.sleeps
    two = FakeWaiter(hub, ["b"])
    assert (two.sleeps, one.wakes) == (True, 1)
    one.wake()
    assert one.reads == ["b"]
    one.find(ENDED)
    two.wake()
    assert two.is_gone
    with pytest.raises(asyncio.CancelledError):
        one.fail(asyncio.CancelledError())


def test_a_reader_that_leaves_is_replaced(hub: WaiterHub[str], listener: FakeListener) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"])
    one.find(ENDED)
    assert one.is_gone
    assert two.wakes, "it must read b now"
    two.wake()
    assert two.reads == ["b"]
    two.find(ENDED)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_the_batch_of_a_cancelled_reader_is_read_by_the_next(
    hub: WaiterHub[str], listener: FakeListener, error: BaseException
) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"])
    one.find(LIVE)
    one.find(LIVE)
    listener.notify("a", "b")
    one.wake()
    assert one.reads == ["a", "b"]
    with pytest.raises(type(error)):
        one.fail(error)
    assert two.wakes
    two.wake()
    assert two.reads == ["b"], "a has no waiter any more"
    two.find(ENDED)


def test_results_for_a_cancelled_waiter_are_ignored(hub: WaiterHub[str]) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"])
    with pytest.raises(asyncio.CancelledError):
        two.fail(asyncio.CancelledError())
    one.find(LIVE)
    assert one.sleeps
    with pytest.raises(asyncio.CancelledError):
        one.fail(asyncio.CancelledError())


def test_a_failed_read_fails_for_all_waiters_with_requested_keys(hub: WaiterHub[str], listener: FakeListener) -> None:
    one, two, three = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"]), FakeWaiter(hub, ["c"])
    one.find(LIVE)
    one.find(LIVE)
    listener.notify("b", "c")
    one.wake()
    assert one.reads == ["b", "c"]
    away = BrokerError("away", retryable=True)
    one.fail(away)
    assert one.sleeps, "it was not concerned"
    for other in (two, three):
        assert other.wakes
        with pytest.raises(BrokerError, match="away"):
            other.wake()
    listener.notify("a")
    one.wake()
    one.find(ENDED)


def test_a_waiter_reads_once_more_at_its_deadline(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, ["a"], deadline=0.0)
    assert one.reads == ["a"]
    one.find(LIVE)
    assert one.is_gone, "that look was late enough"
    assert one.waiter.answers == {"a": "live"}


def test_a_sleeping_waiter_may_time_out_before_the_reader(hub: WaiterHub[str]) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"], deadline=0.0)
    assert two.sleeps
    one.find(LIVE)
    one.find(LIVE)
    assert two.wakes
    two.wake()
    assert two.is_gone
    with pytest.raises(asyncio.CancelledError):
        one.fail(asyncio.CancelledError())


def test_a_key_is_read_again_after_the_given_time(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, ["a"])
    one.find(ReadResult("live", read_again_s=0.5))
    assert isinstance(one.step, Sleep)
    assert one.step.timeout_s <= 0.5
    one.wake()  # too early
    assert one.sleeps
    with pytest.raises(asyncio.CancelledError):
        one.fail(asyncio.CancelledError())


@pytest.mark.parametrize("payload", [None, "*"])
def test_every_key_is_read_when_anything_may_have_happened(
    hub: WaiterHub[str], listener: FakeListener, payload: str | None
) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"])
    one.find(LIVE)
    one.find(LIVE)
    if payload is None:
        listener.subscriptions.wake_all()
    else:
        listener.notify(payload)
    one.wake()
    assert one.reads == ["a", "b"]
    one.find(ENDED)
    two.wake()
    assert two.is_gone


@pytest.mark.promise("D6")
def test_notifications_cannot_cause_many_reads_of_everything(
    listener: FakeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is notified by name is read at once all the same."""
    hub = make_hub(lambda: listener, WaiterTimings(read_all_interval_s=3_600.0))
    monkeypatch.setattr(hub, "_read_all_at", -3_600.0)  # the first read of everything was an hour ago
    one = FakeWaiter(hub, ["a"])
    one.find(LIVE)
    listener.notify("*")
    one.wake()
    one.find(LIVE)
    for _ in range(100):
        listener.notify("*")
    one.wake()
    assert one.sleeps
    listener.notify("a")
    one.wake()
    assert one.reads == ["a"]
    one.find(ENDED)
    assert one.is_gone


def test_many_keys_are_read_in_several_batches(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, [str(number) for number in range(2 * BATCH + 1)])
    sizes = list[int]()
    while not one.is_gone:
        sizes.append(len(one.reads))
        one.find(ENDED)
    assert sizes == [BATCH, BATCH, 1]


def test_with_many_waiters_notifications_are_collected(
    listener: FakeListener,
) -> None:
    hub = make_hub(lambda: listener, WaiterTimings(slack=1e9))  # practically infinite
    keys = [str(number) for number in range(BATCH + 1)]
    one = FakeWaiter(hub, keys)
    one.find(LIVE)
    one.find(LIVE)
    for key in keys[1:-1]:
        listener.notify(key)
        one.wake()
        assert one.sleeps
    listener.notify(keys[0])
    one.wake()
    assert sorted(one.reads) == sorted(keys[:-1]), "a full batch gains nothing by waiting"
    one.find(ENDED)
    listener.notify(keys[-1])
    one.wake()
    assert one.reads == [keys[-1]], "alone again, it is not kept waiting"
    one.find(ENDED)


def test_a_waiter_that_is_not_blocked_gets_its_results(hub: WaiterHub[str], listener: FakeListener) -> None:
    waiter = Waiter[str](["a"])
    with hub.register(waiter):
        one = FakeWaiter(hub, ["b"])
        assert one.reads == ["a", "b"]
        one.find(ENDED, a=LIVE)
        assert one.is_gone
        listener.notify("a")
        two = FakeWaiter(hub, ["c"])
        assert two.reads == ["a", "c"]
        two.find(ENDED)
        assert (waiter.answers, list(waiter.ready)) == ({"a": "ended"}, ["a"])


def test_a_waiter_that_is_not_blocked_does_not_get_the_error_of_a_read(hub: WaiterHub[str]) -> None:
    waiter = Waiter[str](["a"])
    with hub.register(waiter):
        one = FakeWaiter(hub, ["b"])
        assert one.reads == ["a", "b"]
        with pytest.raises(BrokerError):
            one.fail(BrokerError("away", retryable=True))
        two = FakeWaiter(hub, ["c"])
        assert two.reads == ["a", "c"], "a is still to be read"
        two.find(ENDED)


def test_a_waiter_that_blocks_again_after_an_error_reads_at_once(hub: WaiterHub[str]) -> None:
    waiter = Waiter[str](["a"])
    with hub.register(waiter):
        with pytest.raises(BrokerError):
            FakeWaiter(hub, ["b"]).fail(BrokerError("away", retryable=True))
        sitting = hub.wait(waiter, do_nothing, None, Waiter[str].is_complete)
        step = next(sitting)
        assert isinstance(step, ReadKeys)
        assert step.keys == ["a"]
        sitting.close()


def test_the_hub_subscribes_to_the_next_listener_of_a_closed_broker() -> None:
    listeners = [FakeListener()]
    hub = make_hub(lambda: listeners[-1])
    one = FakeWaiter(hub, ["a"])
    one.find(LIVE)
    listeners.append(FakeListener())
    one.wake()  # by its poll, or any other ring
    listeners[-1].notify("a")
    one.wake()
    assert one.reads == ["a"]
    one.find(ENDED)
    assert [listener.subscribers for listener in listeners] == [0, 0]
