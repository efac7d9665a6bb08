"""The waiting desk by hand: each waiter is a generator that is moved step by step, so that every race is at its one place."""

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

    def announce(self, *keys: str) -> None:
        self.subscriptions.notify(Channel.DONE, " ".join(keys))


class FakeWaiter:
    """One who waits, and what it does next."""

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
        self.rings = 0
        self._op = hub.wait(self.waiter, self._wake, deadline, until)
        self.step: Sleep | ReadKeys[str] | None = None
        self._move(lambda: next(self._op))

    def _wake(self) -> None:
        self.rings += 1

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
    def rests(self) -> bool:
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
    assert listener.subscribers == 0, "whoever has left hears nothing more"


def make_hub(listener: Callable[[], FakeListener], timings: WaiterTimings | None = None) -> WaiterHub[str]:
    def read(keys: list[str]) -> Any:
        raise NotImplementedError("the test answers for the database")

    return WaiterHub(WaitSource(Channel.DONE, read), cast("Any", listener), timings)


def test_what_is_new_is_read_when_it_is_announced_and_not_before(hub: WaiterHub[str], listener: FakeListener) -> None:
    waiter = FakeWaiter(hub, "a", first_read_at=time.monotonic() + 60)
    assert isinstance(waiter.step, Sleep)
    assert waiter.step.timeout_s <= WaiterTimings().poll_s
    listener.announce("a")
    assert waiter.rings
    waiter.wake()
    assert waiter.reads == ["a"]
    waiter.find(ENDED)
    assert waiter.is_gone


def test_what_is_new_is_read_in_time_without_an_announcement(hub: WaiterHub[str]) -> None:
    waiter = FakeWaiter(hub, "a", first_read_at=time.monotonic() + 0.01)
    assert isinstance(waiter.step, Sleep)
    time.sleep(waiter.step.timeout_s)
    waiter.wake()
    assert waiter.reads == ["a"]
    waiter.find(ENDED)


def test_a_lone_waiter_reads_and_goes(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, ["a"])
    assert one.reads == ["a"]
    one.find(ENDED)
    assert one.is_gone
    assert one.waiter.answers == {"a": "ended"}


def test_what_is_announced_after_the_first_read_leads_to_the_second(
    hub: WaiterHub[str], listener: FakeListener
) -> None:
    one = FakeWaiter(hub, ["a"])
    one.find(LIVE)
    assert one.rests
    listener.announce("x", "a")
    assert one.rings == 1
    one.wake()
    assert one.reads == ["a"]
    one.find(ENDED)
    assert one.is_gone


def test_an_announcement_between_entering_and_the_first_read_is_part_of_that_read(
    hub: WaiterHub[str], listener: FakeListener
) -> None:
    listener.is_in_force = False
    one = FakeWaiter(hub, ["a"])
    assert one.rests, "LISTEN is not in force yet, and a read now could be too early"
    listener.announce("a")
    listener.subscriptions.wake_all(Channel.DONE)  # now it is
    assert one.rings
    one.wake()
    assert one.reads == ["a"]
    one.find(ENDED)


def test_who_comes_when_listen_has_come_into_force_unnoticed_reads_at_once(
    hub: WaiterHub[str], listener: FakeListener
) -> None:
    listener.is_in_force = False
    hurried = FakeWaiter(hub, ["a"], deadline=0.0)
    assert hurried.reads == ["a"], "its time is over, so it need not hear anything"
    hurried.find(LIVE)
    listener.is_in_force = True
    one = FakeWaiter(hub, ["a"])
    assert one.reads == ["a"]
    one.find(ENDED)


def test_an_announcement_during_a_read_leads_to_another(hub: WaiterHub[str], listener: FakeListener) -> None:
    one = FakeWaiter(hub, ["a"])
    listener.announce("a")  # perhaps too late for the snapshot of that read
    one.find(LIVE)
    assert one.reads == ["a"]
    one.find(ENDED)
    assert one.is_gone


def test_one_reads_for_all(hub: WaiterHub[str], listener: FakeListener) -> None:
    one, two, three = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b", "c"]), FakeWaiter(hub, ["b"])
    assert two.rests
    assert three.rests
    one.find(LIVE)
    assert one.reads == ["b", "c"]
    one.find(LIVE)
    listener.announce("a", "b", "c")
    one.wake()
    assert one.reads == ["a", "b", "c"]
    one.find(ENDED, a=LIVE)
    assert (two.rings, three.rings) == (1, 1)
    two.wake()
    three.wake()
    assert two.is_gone
    assert three.is_gone
    assert one.rests
    listener.announce("a")
    one.wake()
    one.find(ENDED)
    assert one.is_gone


def test_who_comes_later_is_read_for_by_the_one_who_sleeps(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, ["a"])
    one.find(LIVE)
    assert one.rests
    two = FakeWaiter(hub, ["b"])
    assert (two.rests, one.rings) == (True, 1)
    one.wake()
    assert one.reads == ["b"]
    one.find(ENDED)
    two.wake()
    assert two.is_gone
    with pytest.raises(asyncio.CancelledError):
        one.fail(asyncio.CancelledError())


def test_who_is_answered_hands_the_duty_on(hub: WaiterHub[str], listener: FakeListener) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"])
    one.find(ENDED)
    assert one.is_gone
    assert two.rings, "somebody must read b"
    two.wake()
    assert two.reads == ["b"]
    two.find(ENDED)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_who_is_cancelled_in_the_middle_of_a_read_leaves_its_batch_to_the_next(
    hub: WaiterHub[str], listener: FakeListener, error: BaseException
) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"])
    one.find(LIVE)
    one.find(LIVE)
    listener.announce("a", "b")
    one.wake()
    assert one.reads == ["a", "b"]
    with pytest.raises(type(error)):
        one.fail(error)
    assert two.rings
    two.wake()
    assert two.reads == ["b"], "nobody waits for a any more"
    two.find(ENDED)


def test_who_is_cancelled_while_others_read_for_it_is_not_missed(hub: WaiterHub[str]) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"])
    with pytest.raises(asyncio.CancelledError):
        two.fail(asyncio.CancelledError())
    one.find(LIVE)
    assert one.rests
    with pytest.raises(asyncio.CancelledError):
        one.fail(asyncio.CancelledError())


def test_a_read_that_fails_fails_for_all_who_were_asked_for(hub: WaiterHub[str], listener: FakeListener) -> None:
    one, two, three = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"]), FakeWaiter(hub, ["c"])
    one.find(LIVE)
    one.find(LIVE)
    listener.announce("b", "c")
    one.wake()
    assert one.reads == ["b", "c"]
    away = BrokerError("away", retryable=True)
    one.fail(away)
    assert one.rests, "it was not concerned"
    for other in (two, three):
        assert other.rings
        with pytest.raises(BrokerError, match="away"):
            other.wake()
    listener.announce("a")
    one.wake()
    one.find(ENDED)


def test_at_the_end_of_its_time_a_waiter_looks_once_more(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, ["a"], deadline=0.0)
    assert one.reads == ["a"]
    one.find(LIVE)
    assert one.is_gone, "that look was late enough"
    assert one.waiter.answers == {"a": "live"}


def test_the_time_of_one_who_sleeps_may_end_first(hub: WaiterHub[str]) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"], deadline=0.0)
    assert two.rests
    one.find(LIVE)
    one.find(LIVE)
    assert two.rings
    two.wake()
    assert two.is_gone
    with pytest.raises(asyncio.CancelledError):
        one.fail(asyncio.CancelledError())


def test_what_expires_is_looked_at_in_time(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, ["a"])
    one.find(ReadResult("live", read_again_s=0.5))
    assert isinstance(one.step, Sleep)
    assert one.step.timeout_s <= 0.5
    one.wake()  # too early
    assert one.rests
    with pytest.raises(asyncio.CancelledError):
        one.fail(asyncio.CancelledError())


@pytest.mark.parametrize("payload", [None, "*"])
def test_a_doubt_is_a_look_at_everything(hub: WaiterHub[str], listener: FakeListener, payload: str | None) -> None:
    one, two = FakeWaiter(hub, ["a"]), FakeWaiter(hub, ["b"])
    one.find(LIVE)
    one.find(LIVE)
    if payload is None:
        listener.subscriptions.wake_all()
    else:
        listener.announce(payload)
    one.wake()
    assert one.reads == ["a", "b"]
    one.find(ENDED)
    two.wake()
    assert two.is_gone


@pytest.mark.promise("D6")
def test_notifications_cannot_ask_for_one_look_at_everything_after_the_other(
    listener: FakeListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is notified by name is read at once all the same."""
    hub = make_hub(lambda: listener, WaiterTimings(read_all_interval_s=3_600.0))
    monkeypatch.setattr(hub, "_read_all_at", -3_600.0)  # the first read of everything was an hour ago
    one = FakeWaiter(hub, ["a"])
    one.find(LIVE)
    listener.announce("*")
    one.wake()
    one.find(LIVE)
    for _ in range(100):
        listener.announce("*")
    one.wake()
    assert one.rests
    listener.announce("a")
    one.wake()
    assert one.reads == ["a"]
    one.find(ENDED)
    assert one.is_gone


def test_what_is_too_much_for_one_read_is_read_in_several(hub: WaiterHub[str]) -> None:
    one = FakeWaiter(hub, [str(number) for number in range(2 * BATCH + 1)])
    sizes = list[int]()
    while not one.is_gone:
        sizes.append(len(one.reads))
        one.find(ENDED)
    assert sizes == [BATCH, BATCH, 1]


def test_in_a_crowd_announcements_are_collected(
    listener: FakeListener,
) -> None:
    hub = make_hub(lambda: listener, WaiterTimings(slack=1e9))  # practically infinite
    keys = [str(number) for number in range(BATCH + 1)]
    one = FakeWaiter(hub, keys)
    one.find(LIVE)
    one.find(LIVE)
    for key in keys[1:-1]:
        listener.announce(key)
        one.wake()
        assert one.rests
    listener.announce(keys[0])
    one.wake()
    assert sorted(one.reads) == sorted(keys[:-1]), "a full batch gains nothing by waiting"
    one.find(ENDED)
    listener.announce(keys[-1])
    one.wake()
    assert one.reads == [keys[-1]], "alone again, it is not kept waiting"
    one.find(ENDED)


def test_a_waiter_that_does_something_else_is_kept_informed(hub: WaiterHub[str], listener: FakeListener) -> None:
    waiter = Waiter[str](["a"])
    with hub.register(waiter):
        one = FakeWaiter(hub, ["b"])
        assert one.reads == ["a", "b"]
        one.find(ENDED, a=LIVE)
        assert one.is_gone
        listener.announce("a")
        two = FakeWaiter(hub, ["c"])
        assert two.reads == ["a", "c"]
        two.find(ENDED)
        assert (waiter.answers, list(waiter.ready)) == ({"a": "ended"}, ["a"])


def test_an_error_is_not_kept_for_one_that_does_something_else(hub: WaiterHub[str]) -> None:
    waiter = Waiter[str](["a"])
    with hub.register(waiter):
        one = FakeWaiter(hub, ["b"])
        assert one.reads == ["a", "b"]
        with pytest.raises(BrokerError):
            one.fail(BrokerError("away", retryable=True))
        two = FakeWaiter(hub, ["c"])
        assert two.reads == ["a", "c"], "a is still to be read"
        two.find(ENDED)


def test_after_an_error_who_sits_down_again_reads_at_once(hub: WaiterHub[str]) -> None:
    waiter = Waiter[str](["a"])
    with hub.register(waiter):
        with pytest.raises(BrokerError):
            FakeWaiter(hub, ["b"]).fail(BrokerError("away", retryable=True))
        sitting = hub.wait(waiter, do_nothing, None, Waiter[str].is_complete)
        step = next(sitting)
        assert isinstance(step, ReadKeys)
        assert step.keys == ["a"]
        sitting.close()


def test_after_the_broker_was_closed_its_next_listener_is_heard() -> None:
    listeners = [FakeListener()]
    hub = make_hub(lambda: listeners[-1])
    one = FakeWaiter(hub, ["a"])
    one.find(LIVE)
    listeners.append(FakeListener())
    one.wake()  # by its poll, or any other ring
    listeners[-1].announce("a")
    one.wake()
    assert one.reads == ["a"]
    one.find(ENDED)
    assert [listener.subscribers for listener in listeners] == [0, 0]
