import pytest

from horsies.db.channels import Channel, Subscriptions


def test_a_subscriber_is_called_for_its_key_among_others() -> None:
    subscriptions, received = Subscriptions(), list[str | None]()
    subscriptions.add(Channel.DONE, "b", received.append)
    subscriptions.notify(Channel.DONE, "a b c")
    subscriptions.notify(Channel.DONE, "a c")
    subscriptions.notify(Channel.NEW, "b")
    assert received == ["a b c"]


def test_a_subscriber_without_a_key_is_called_for_every_payload() -> None:
    subscriptions, received = Subscriptions(), list[str | None]()
    subscriptions.add(Channel.NEW, None, received.append)
    subscriptions.notify(Channel.NEW, "100 1 default")
    assert received == ["100 1 default"]


def test_an_asterisk_calls_every_subscriber_of_the_channel() -> None:
    subscriptions, received = Subscriptions(), list[str | None]()
    subscriptions.add(Channel.DONE, "a", received.append)
    subscriptions.add(Channel.DONE, "b", received.append)
    subscriptions.add(Channel.NEW, None, received.append)
    subscriptions.notify(Channel.DONE, "*")
    assert received == ["*", "*"]


def test_wake_all_calls_every_subscriber() -> None:
    subscriptions, received = Subscriptions(), list[str | None]()
    subscriptions.add(Channel.DONE, "a", received.append)
    subscriptions.add(Channel.NEW, None, received.append)
    subscriptions.wake_all()
    assert received == [None, None]


def test_two_waiters_for_one_key_leave_one_by_one() -> None:
    subscriptions, first, second = Subscriptions(), list[str | None](), list[str | None]()
    subscriptions.add(Channel.DONE, "a", first.append)
    subscriptions.add(Channel.DONE, "a", second.append)
    subscriptions.remove(Channel.DONE, "a", first.append)
    subscriptions.notify(Channel.DONE, "a")
    subscriptions.remove(Channel.DONE, "a", second.append)
    subscriptions.notify(Channel.DONE, "a")
    assert (first, second) == ([], ["a"])


@pytest.mark.promise("D6")
def test_a_failing_subscriber_does_not_prevent_the_calls_of_others(caplog: pytest.LogCaptureFixture) -> None:
    subscriptions, received = Subscriptions(), list[str | None]()

    def fail(_payload: str | None) -> None:
        raise ZeroDivisionError

    subscriptions.add(Channel.NEW, None, fail)
    subscriptions.add(Channel.NEW, None, received.append)
    subscriptions.notify(Channel.NEW, "x")
    subscriptions.wake_all()
    assert received == ["x", None]
    assert caplog.messages == ["a subscriber failed on a notification"] * 2
