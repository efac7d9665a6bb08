import pytest

from horsies.db.channels import Channel, Subscriptions


def test_a_bell_rings_for_its_key_among_others() -> None:
    bells, heard = Subscriptions(), list[str | None]()
    bells.add(Channel.DONE, "b", heard.append)
    bells.ring(Channel.DONE, "a b c")
    bells.ring(Channel.DONE, "a c")
    bells.ring(Channel.NEW, "b")
    assert heard == ["a b c"]


def test_a_bell_without_a_key_rings_for_every_payload() -> None:
    bells, heard = Subscriptions(), list[str | None]()
    bells.add(Channel.NEW, None, heard.append)
    bells.ring(Channel.NEW, "100 1 default")
    assert heard == ["100 1 default"]


def test_too_many_to_name_rings_everyone_of_the_channel() -> None:
    bells, heard = Subscriptions(), list[str | None]()
    bells.add(Channel.DONE, "a", heard.append)
    bells.add(Channel.DONE, "b", heard.append)
    bells.add(Channel.NEW, None, heard.append)
    bells.ring(Channel.DONE, "*")
    assert heard == ["*", "*"]


def test_a_doubt_rings_everyone() -> None:
    bells, heard = Subscriptions(), list[str | None]()
    bells.add(Channel.DONE, "a", heard.append)
    bells.add(Channel.NEW, None, heard.append)
    bells.ring_all()
    assert heard == [None, None]


def test_two_waiters_for_one_key_leave_one_by_one() -> None:
    bells, first, second = Subscriptions(), list[str | None](), list[str | None]()
    bells.add(Channel.DONE, "a", first.append)
    bells.add(Channel.DONE, "a", second.append)
    bells.remove(Channel.DONE, "a", first.append)
    bells.ring(Channel.DONE, "a")
    bells.remove(Channel.DONE, "a", second.append)
    bells.ring(Channel.DONE, "a")
    assert (first, second) == ([], ["a"])


@pytest.mark.promise("D6")
def test_a_subscriber_that_fails_keeps_no_other_from_being_rung(caplog: pytest.LogCaptureFixture) -> None:
    bells, heard = Subscriptions(), list[str | None]()

    def fail(_payload: str | None) -> None:
        raise ZeroDivisionError

    bells.add(Channel.NEW, None, fail)
    bells.add(Channel.NEW, None, heard.append)
    bells.ring(Channel.NEW, "x")
    bells.ring_all()
    assert heard == ["x", None]
    assert caplog.messages == ["a subscriber failed on a notification"] * 2
