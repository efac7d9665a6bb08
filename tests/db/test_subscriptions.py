import pytest

from horsies.db.channels import Channel
from horsies.db.listener import Subscriptions, call_subscribers


def test_a_subscriber_is_called_for_its_key_among_others() -> None:
    subscriptions: Subscriptions = {}
    received: list[str | None] = []
    subscriptions[Channel.DONE, "b", received.append] = None
    call_subscribers(subscriptions, Channel.DONE, "a b c")
    call_subscribers(subscriptions, Channel.DONE, "a c")
    call_subscribers(subscriptions, Channel.NEW, "b")
    assert received == ["a b c"]


def test_a_subscriber_without_a_key_is_called_for_every_payload() -> None:
    subscriptions: Subscriptions = {}
    received: list[str | None] = []
    subscriptions[Channel.NEW, None, received.append] = None
    call_subscribers(subscriptions, Channel.NEW, "100 1 default")
    assert received == ["100 1 default"]


def test_an_asterisk_calls_every_subscriber_of_the_channel() -> None:
    subscriptions: Subscriptions = {}
    received: list[str | None] = []
    subscriptions[Channel.DONE, "a", received.append] = None
    subscriptions[Channel.DONE, "b", received.append] = None
    subscriptions[Channel.NEW, None, received.append] = None
    call_subscribers(subscriptions, Channel.DONE, "*")
    assert received == ["*", "*"]


def test_a_doubt_calls_every_subscriber() -> None:
    subscriptions: Subscriptions = {}
    received: list[str | None] = []
    subscriptions[Channel.DONE, "a", received.append] = None
    subscriptions[Channel.NEW, None, received.append] = None
    call_subscribers(subscriptions, None, None)
    assert received == [None, None]


def test_two_waiters_for_one_key_leave_one_by_one() -> None:
    subscriptions: Subscriptions = {}
    first: list[str | None] = []
    second: list[str | None] = []
    subscriptions[Channel.DONE, "a", first.append] = None
    subscriptions[Channel.DONE, "a", second.append] = None
    del subscriptions[Channel.DONE, "a", first.append]
    call_subscribers(subscriptions, Channel.DONE, "a")
    del subscriptions[Channel.DONE, "a", second.append]
    call_subscribers(subscriptions, Channel.DONE, "a")
    assert (first, second) == ([], ["a"])


@pytest.mark.promise("D6")
def test_a_failing_subscriber_does_not_prevent_the_calls_of_others(caplog: pytest.LogCaptureFixture) -> None:
    subscriptions: Subscriptions = {}
    received: list[str | None] = []

    def fail(_payload: str | None) -> None:
        raise ZeroDivisionError

    subscriptions[Channel.NEW, None, fail] = None
    subscriptions[Channel.NEW, None, received.append] = None
    call_subscribers(subscriptions, Channel.NEW, "x")
    call_subscribers(subscriptions, None, None)
    assert received == ["x", None]
    assert caplog.messages == ["a subscriber failed on a notification"] * 2
