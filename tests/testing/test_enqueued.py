from datetime import UTC, date, datetime, timedelta

import psycopg
import pytest

from horsies import AppConfig, Horsies, PayloadError, TaskError, TaskResult
from horsies.testing import Sandbox, SandboxError, assert_enqueued, drain, enqueued, refute_enqueued
from tests.testing import shop
from tests.testing.shop import Parcel

pytestmark = pytest.mark.usefixtures("sandbox")


def failure(*args: object, **kwargs: object) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(*args, **kwargs)  # pyright: ignore[reportArgumentType] - passed on as they are
    return str(caught.value)


def test_a_task_is_enqueued_until_it_has_run() -> None:
    handle = shop.note.send("a")
    (found,) = assert_enqueued(shop.note)
    assert found.task_id == handle.task_id
    drain()
    refute_enqueued(shop.note)


def test_arguments_are_compared_as_they_are_stored() -> None:
    shop.ship.send(Parcel(1, date(2030, 1, 2)))
    assert_enqueued(shop.ship, {"parcel": Parcel(1.0, date(2030, 1, 2))})
    refute_enqueued(shop.ship, {"parcel": Parcel(1.0, date(2030, 1, 3))})


def test_some_of_the_arguments_are_enough_and_defaults_count() -> None:
    shop.ship.send(Parcel(1, date(2030, 1, 2)))
    assert_enqueued(shop.ship, {"express": False})
    refute_enqueued(shop.ship, {"express": True})


def test_an_argument_that_could_never_have_been_sent_is_refused() -> None:
    shop.note.send("a")
    with pytest.raises(PayloadError, match="text"):
        assert_enqueued(shop.note, {"text": 5})
    with pytest.raises(TypeError, match="has no argument txt; it takes text"):
        assert_enqueued(shop.note, {"txt": "a"})


def test_queue_priority_key_and_count_can_be_expected() -> None:
    shop.note.with_options(queue_name="urgent", priority=3, key="k").send("a")
    shop.note.send("b")
    assert_enqueued(shop.note, queue_name="urgent", priority=3, key="k", count=1)
    assert_enqueued(shop.note, count=2)
    refute_enqueued(shop.note, {"text": "b"}, queue_name="urgent")
    assert_enqueued(shop.alert, count=0)


def test_a_scheduled_task_is_enqueued_with_its_time() -> None:
    until = datetime.now(UTC) + timedelta(days=1)
    shop.note.with_options(good_until=until).schedule(3600, "later")
    (found,) = enqueued(shop.note)
    assert 3500 < found.due_in_s <= 3600
    assert found.good_until == until
    assert found.args == {"text": "later"}


def test_a_failure_lists_what_is_enqueued() -> None:
    assert failure(shop.note) == "task 'note' is not enqueued; nothing is"
    shop.alert.send("x")
    shop.note.with_options(key="k").send("y")
    message = failure(shop.note, {"text": "z"}, priority=7)
    assert message.startswith("task 'note' with text='z', priority=7 is not enqueued; enqueued are:\n  note ")
    assert """note {"text": "y"} on queue 'normal', priority 100, key 'k', due now\n""" in message
    assert """alert {"text": "x"} on queue 'urgent'""" in message
    assert "is enqueued 1 times, expected 2" in failure(shop.note, count=2)


def test_a_refutation_lists_what_was_found() -> None:
    shop.note.send("a")
    with pytest.raises(AssertionError, match=r"task 'note' with text='a' is enqueued; enqueued are:\n  note"):
        refute_enqueued(shop.note, {"text": "a"})


def test_only_the_transaction_itself_sees_what_it_has_sent(sandbox: Sandbox) -> None:
    with psycopg.connect(sandbox.database_url) as connection:
        shop.note.with_options(connection=connection).send("a")
        refute_enqueued(shop.note)
        assert_enqueued(shop.note, {"text": "a"}, connection=connection)
        connection.rollback()
        refute_enqueued(shop.note, connection=connection)


def test_a_task_of_an_app_without_a_sandbox_is_refused() -> None:
    app = Horsies(AppConfig())

    @app.task("note")
    def other() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    with pytest.raises(SandboxError, match="task 'note' belongs to no app in a sandbox"):
        assert_enqueued(other)
