import pytest

from horsies.db.channels import Channel, Subscriptions


def test_a_bell_rings_for_its_key_among_others() -> None:
    subscriptions, heard = Subscriptions(), list[str | None]()
    subscriptions.add(Channel.DONE, "b", heard.append)
    subscriptions.notify(Channel.DONE, "a b c")
    subscriptions.notify(Channel.DONE, "a c")
    subscriptions.notify(Channel.NEW, "b")
    assert heard == ["a b c"]


def test_a_bell_without_a_key_rings_for_every_payload() -> None:
    subscriptions, heard = Subscriptions(), list[str | None]()
    subscriptions.add(Channel.NEW, None, heard.append)
    subscriptions.notify(Channel.NEW, "100 1 default")
    assert heard == ["100 1 default"]


def test_too_many_to_name_rings_everyone_of_the_channel() -> None:
    subscriptions, heard = Subscriptions(), list[str | None]()
    subscriptions.add(Channel.DONE, "a", heard.append)
    subscriptions.add(Channel.DONE, "b", heard.append)
    subscriptions.add(Channel.NEW, None, heard.append)
    subscriptions.notify(Channel.DONE, "*")
    assert heard == ["*", "*"]


def test_a_doubt_rings_everyone() -> None:
    subscriptions, heard = Subscriptions(), list[str | None]()
    subscriptions.add(Channel.DONE, "a", heard.append)
    subscriptions.add(Channel.NEW, None, heard.append)
    subscriptions.wake_all()
    assert heard == [None, None]


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
def test_a_subscriber_that_fails_keeps_no_other_from_being_rung(caplog: pytest.LogCaptureFixture) -> None:
    subscriptions, heard = Subscriptions(), list[str | None]()

    def fail(_payload: str | None) -> None:
        raise ZeroDivisionError

    subscriptions.add(Channel.NEW, None, fail)
    subscriptions.add(Channel.NEW, None, heard.append)
    subscriptions.notify(Channel.NEW, "x")
    subscriptions.wake_all()
    assert heard == ["x", None]
    assert caplog.messages == ["a subscriber failed on a notification"] * 2
