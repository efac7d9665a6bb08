"""Sending many tasks, with a delay, and with options."""

import re
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from horsies import (
    Call,
    ConfigError,
    OutcomeCode,
    PayloadError,
    QueueError,
    SendSuppressed,
    TaskError,
    TaskResult,
    TaskStatus,
)
from horsies.tasks import enqueue
from horsies.tasks.enqueue import SLICE_ROWS
from horsies.tasks.sender import suppress_sends
from tests.fixtures.journey import claim, column, row
from tests.fixtures.shops import Shop

TOMORROW = datetime.now(UTC) + timedelta(days=1)
BEFORE_LONG = datetime(2001, 2, 3, tzinfo=UTC)
MANY = [1, SLICE_ROWS, SLICE_ROWS + 1]
"""By one statement, as many as fit into it, and by COPY."""


def sent(sql: psycopg.Connection) -> int:
    (count,) = row(sql, "select count(*) from horsies.tasks")
    return count


# -- many tasks


@pytest.mark.parametrize("count", MANY)
def test_send_many_returns_a_handle_for_each_task_in_order(shop: Shop, sql: psycopg.Connection, count: int) -> None:
    handles = shop.pack.send_many(shop.pack.call(number) for number in range(count))
    assert column(sql, "select id::text from horsies.tasks order by (args->>'number')::integer") == [
        handle.task_id for handle in handles
    ]


@pytest.mark.parametrize("eta", [None, BEFORE_LONG])
def test_tasks_of_send_many_are_claimed_in_the_order_of_the_list(shop: Shop, eta: datetime | None) -> None:
    handles = shop.pack.with_options(eta=eta).send_many(
        [shop.pack.call(number) for number in range(2 * SLICE_ROWS + 1)]
    )
    served: list[str] = []
    while len(served) < len(handles):
        served += [held.id for held in claim(shop.app.broker, 700, queues=["parcels"])]
    assert served == [handle.task_id for handle in handles]


@pytest.mark.parametrize("count", MANY)
@pytest.mark.parametrize("options", [{}, {"good_until": TOMORROW, "priority": 3, "queue_name": "letters"}])
def test_send_many_uses_the_same_options_as_send(
    shop: Shop, sql: psycopg.Connection, count: int, options: dict[str, Any]
) -> None:
    shop.pack.with_options(**options).send(0)
    shop.pack.with_options(**options).send_many([shop.pack.call(0)] * count)
    terms = (
        "select distinct task_name, queue_name, priority, status, ready, args::text, enqueued_at = sent_at, good_until, "
        "timeout_ms, retry_delays_ms, retry_jitter, retry_for, attempts, claim_no from horsies.tasks"
    )
    assert row(sql, terms)[8:12] == (7_000, [1_000, 5_000], 0.5, ["TASK_TIMEOUT", "OUT_OF_PAPER"])
    assert sent(sql) == count + 1


@pytest.mark.parametrize("count", MANY)
async def test_send_many_has_an_async_twin(shop: Shop, sql: psycopg.Connection, count: int) -> None:
    handles = await shop.pack.send_many_async([shop.pack.call(number) for number in range(count)])
    assert column(sql, "select id::text from horsies.tasks order by id") == [handle.task_id for handle in handles]
    await shop.app.close_async()


@pytest.mark.parametrize("count", MANY)
def test_send_many_sends_all_tasks_or_none(shop: Shop, sql: psycopg.Connection, count: int) -> None:
    """The database refuses the last row."""
    sql.execute("alter table horsies.tasks add constraint no_last check (args->>'number' <> '-1')")
    with pytest.raises(Exception, match="no_last"):
        shop.pack.send_many([shop.pack.call(number) for number in [*range(count), -1]])
    assert sent(sql) == 0


def test_a_generator_that_fails_sends_nothing(shop: Shop, sql: psycopg.Connection) -> None:
    def calls() -> Iterator[Call[[int], int]]:
        for number in range(2 * SLICE_ROWS):
            yield shop.pack.call(number)
        raise LookupError("no more paper")

    with pytest.raises(LookupError):
        shop.pack.send_many(calls())
    assert sent(sql) == 0


def test_without_a_writable_temporary_folder_very_many_tasks_stay_in_memory(
    shop: Shop, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_none() -> str:
        raise FileNotFoundError("no usable temporary directory found")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", find_none)
    monkeypatch.setattr(enqueue, "SPOOL_BYTES", 1_000)
    shop.pack.send_many(shop.pack.call(number) for number in range(SLICE_ROWS + 1))
    assert sent(sql) == SLICE_ROWS + 1


def test_a_temporary_folder_that_fails_is_named_and_nothing_is_sent(
    shop: Shop, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "removed"))
    monkeypatch.setattr(enqueue, "SPOOL_BYTES", 1_000)
    with pytest.raises(OSError, match="removed") as raised:
        shop.pack.send_many(shop.pack.call(number) for number in range(SLICE_ROWS + 1))
    assert "TMPDIR" in raised.value.__notes__[0]
    assert sent(sql) == 0


def test_the_handles_of_very_many_tasks_are_a_sequence(shop: Shop) -> None:
    handles = shop.pack.send_many(shop.pack.call(number) for number in range(SLICE_ROWS + 2))
    ids = [handle.task_id for handle in handles]
    assert ids == sorted(set(ids))
    assert [handle.task_id for handle in handles[-2:]] == ids[-2:]
    assert (handles[0].task_id, handles[-1].task_id) == (ids[0], ids[-1])
    with pytest.raises(IndexError):
        handles[len(ids)]


async def test_send_many_accepts_an_empty_list(shop: Shop) -> None:
    assert shop.pack.send_many([]) == []
    assert await shop.pack.send_many_async(iter(())) == []


def test_large_arguments_are_sent_in_small_slices(shop: Shop, sql: psycopg.Connection) -> None:
    shop.label.send_many([shop.label.call("x" * 1_500_000, {}) for _ in range(6)])
    assert row(sql, "select count(*), min(length(args->>'text')) from horsies.tasks") == (6, 1_500_000)


def test_an_invalid_argument_raises_at_the_call(shop: Shop) -> None:
    wrong: Any = "one"
    with pytest.raises(PayloadError, match="argument 'number'"):
        shop.pack.call(wrong)


def test_a_call_of_another_task_is_refused_with_its_name(shop: Shop, sql: psycopg.Connection) -> None:
    stray: Any = shop.label.call("a", {})
    with pytest.raises(TypeError, match=r"send_many\(\) of task 'pack': item 1 is a call of 'label'"):
        shop.pack.send_many([shop.pack.call(1), stray])
    assert sent(sql) == 0


def test_arguments_in_place_of_a_call_are_refused(shop: Shop) -> None:
    wrong: Any = [1, 2]
    with pytest.raises(TypeError, match=r"item 0 is not a Call; write \[task\.call\(1\), \.\.\.\]"):
        shop.pack.send_many(wrong)


async def test_send_many_during_an_import_sends_nothing(shop: Shop, sql: psycopg.Connection) -> None:
    with suppress_sends():
        handles = [*shop.pack.send_many([shop.pack.call(1)]), *await shop.pack.send_many_async([shop.pack.call(2)])]
    assert sent(sql) == 0
    for handle in handles:
        with pytest.raises(SendSuppressed):
            handle.get()


async def test_every_blocking_verb_warns_in_an_event_loop_at_the_call(shop: Shop) -> None:
    for act in (
        lambda: shop.pack.send_many([shop.pack.call(1)]),
        lambda: shop.pack.schedule(1, 1),
        lambda: shop.pack.with_options(priority=1).send(1),
    ):
        with pytest.warns(UserWarning, match="send_many_async") as caught:
            act()
        assert caught[0].filename == __file__


# -- delays


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_a_delayed_task_is_due_by_the_clock_of_the_database(
    shop: Shop, sql: psycopg.Connection, delay: float | timedelta
) -> None:
    shop.pack.schedule(delay, 1)
    assert row(
        sql, "select ready, enqueued_at - sent_at between interval '90 s' and interval '91 s' from horsies.tasks"
    ) == (False, True)
    assert claim(shop.app.broker, queues=["parcels"]) == []


async def test_a_delayed_send_has_an_async_twin(shop: Shop, sql: psycopg.Connection) -> None:
    handle = await shop.pack.schedule_async(90, 1)
    assert row(sql, "select id::text, ready from horsies.tasks") == (handle.task_id, False)
    await shop.app.close_async()


def test_a_delay_counts_from_the_call_and_not_from_the_start_of_the_transaction(
    shop: Shop, database: str, sql: psycopg.Connection
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("select pg_sleep(0.05)")
        shop.pack.with_options(connection=connection).schedule(0.001, 1)
    assert row(sql, "select enqueued_at - sent_at > interval '50 ms' from horsies.tasks") == (True,)


def test_a_delay_of_zero_is_due_now(shop: Shop, sql: psycopg.Connection) -> None:
    shop.pack.schedule(0, 1)
    shop.pack.schedule(timedelta(0), 2)
    assert column(sql, "select ready and enqueued_at = sent_at from horsies.tasks") == [True, True]


@pytest.mark.parametrize(
    ("delay", "message"),
    [
        (-1, "is -1, in the past; choose 0 or more"),
        (timedelta(seconds=-1), "in the past"),
        (float("nan"), "must be a number of seconds or a timedelta, not nan"),
        (float("inf"), "not inf"),
        (True, r"not True \(bool\)"),
        (None, r"not None \(NoneType\)"),
        ("5", r"not '5' \(str\)"),
        (1e12, "at most ten years"),
        (10**400, "at most ten years"),
        (timedelta(days=4_000), "at most ten years"),
    ],
)
def test_an_invalid_delay_is_refused(shop: Shop, delay: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"schedule\(\) of task 'pack':\n  - delay.*{message}"):
        shop.pack.schedule(delay, 1)


def test_an_argument_may_be_named_delay(basic: Any, sql: psycopg.Connection) -> None:
    @basic.app.task("wait")
    def wait(delay: int, self: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=delay + self)

    wait.schedule(60, delay=1, self=2)
    assert row(sql, "select args::text from horsies.tasks") == ('{"delay":1,"self":2}',)


# -- options


def test_options_are_stored_with_the_task(shop: Shop, sql: psycopg.Connection) -> None:
    eta = datetime.now(UTC) + timedelta(hours=1)
    shop.pack.with_options(queue_name="letters", priority=-5, eta=eta, good_until=TOMORROW).send(1)
    assert row(sql, "select queue_name, priority, ready, enqueued_at, good_until, timeout_ms from horsies.tasks") == (
        "letters", -5, False, eta, TOMORROW, 7_000,
    )  # fmt: skip


def test_with_options_does_not_change_the_task_itself(shop: Shop, sql: psycopg.Connection) -> None:
    shop.pack.with_options(queue_name="letters", priority=1)
    shop.pack.send(1)
    assert row(sql, "select queue_name, priority from horsies.tasks") == ("parcels", 100)


def test_a_lower_priority_number_is_claimed_first(shop: Shop) -> None:
    for priority in (5, -(2**31), 2**31 - 1):
        shop.pack.with_options(priority=priority).send(priority)
    served = [claim(shop.app.broker, 1, queues=["parcels"])[0].priority for _ in range(3)]
    assert served == [-(2**31), 5, 2**31 - 1]


def test_a_time_in_the_past_is_due_now(shop: Shop, sql: psycopg.Connection) -> None:
    shop.pack.with_options(eta=BEFORE_LONG).send(1)
    assert row(sql, "select ready, enqueued_at = sent_at from horsies.tasks") == (True, True)


def test_a_good_until_in_the_past_is_accepted_and_the_task_has_expired(shop: Shop) -> None:
    handle = shop.pack.with_options(good_until=BEFORE_LONG).send(1)
    assert handle.get(timeout_ms=1_000).unwrap_err().error_code == OutcomeCode.TASK_EXPIRED
    assert handle.status() is TaskStatus.EXPIRED  # even before the maintenance leader has stored it


def test_all_problems_of_options_are_reported_at_once(shop: Shop) -> None:
    with pytest.raises(ConfigError) as refused:
        shop.pack.with_options(
            good_until=datetime(2030, 1, 1),  # noqa: DTZ001 - that is what is wrong with it
            eta=cast("datetime", "tomorrow"),
            priority=True,
            on_conflict="raise",
            key_window=-1,
        )
    assert len(refused.value.problems) == 6
    assert str(refused.value).startswith("6 problems in the options of task 'pack':")
    for message in ("good_until 2030-01-01 00:00:00 has no time zone", "eta must be a datetime", "priority must be a whole",
                 "on_conflict requires key=...; add a key", "key_window is -1"):  # fmt: skip
        assert message in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 2**31}, "priority is 2147483648; choose a whole number from -2147483648"),
        ({"priority": 1.0}, "priority must be a whole number"),
        ({"eta": TOMORROW, "good_until": TOMORROW}, "is not after eta"),
        ({"key": ""}, "key must be a string of 1 to 255 characters"),
        ({"key": "k" * 256}, "key must be a string"),
        ({"key": "a\0b"}, "key must be a string"),
        ({"key": "\ud800"}, "key must be a string"),
        ({"key": 7}, "key must be a string"),
        ({"key": "k", "on_conflict": "ignore"}, 'on_conflict must be "return", "raise" or "replace", not \'ignore\''),
        ({"key": "k", "key_window": True}, "key_window must be a number of seconds"),
    ],
)
def test_an_invalid_option_is_refused(shop: Shop, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        shop.pack.with_options(**options)


def test_an_unknown_queue_is_reported_with_the_other_problems(shop: Shop, basic: Any) -> None:
    with pytest.raises(QueueError, match=r"there is no queue 'boxes'; this app has 'parcels', 'letters'"):
        shop.pack.with_options(queue_name="boxes")
    with pytest.raises(QueueError, match=r"(?s)2 problems.*no queue 'boxes'.*priority is"):
        basic.add.with_options(queue_name="boxes", priority=2**40)


def test_the_default_queue_may_be_named(basic: Any, sql: psycopg.Connection) -> None:
    basic.add.with_options(queue_name="default").send(1, 2)
    assert row(sql, "select queue_name from horsies.tasks") == ("default",)


def test_a_time_and_a_delay_together_are_refused(shop: Shop) -> None:
    with pytest.raises(ConfigError, match=r"eta and schedule\(\) both set the time"):
        shop.pack.with_options(eta=TOMORROW).schedule(1, 1)


def test_a_key_is_refused_for_many_tasks(shop: Shop, sql: psycopg.Connection) -> None:
    keyed = shop.pack.with_options(key="k")
    with pytest.raises(ConfigError, match="key 'k' stands for one task, not for 2"):
        keyed.send_many([shop.pack.call(1), shop.pack.call(1)])
    assert keyed.send_many([]) == []
    (handle,) = keyed.send_many([shop.pack.call(1)])
    assert column(sql, "select id::text from horsies.tasks") == [handle.task_id]


# -- on the caller's connection


@pytest.mark.parametrize("count", MANY)
def test_tasks_become_visible_with_the_callers_commit(
    shop: Shop, database: str, sql: psycopg.Connection, count: int
) -> None:
    with psycopg.connect(database) as connection:
        handles = shop.pack.with_options(connection=connection).send_many([shop.pack.call(1)] * count)
        assert sent(sql) == 0
    assert sent(sql) == len(handles) == count


def test_tasks_become_visible_at_once_on_an_autocommit_connection(
    shop: Shop, database: str, sql: psycopg.Connection
) -> None:
    sql.execute("alter table horsies.tasks add constraint no_last check (args->>'number' <> '-1')")
    with psycopg.connect(database, autocommit=True) as connection:
        sender = shop.pack.with_options(connection=connection)
        sender.send_many([shop.pack.call(1)] * (SLICE_ROWS + 1))
        assert sent(sql) == SLICE_ROWS + 1
        with pytest.raises(psycopg.errors.CheckViolation):
            sender.send_many([*[shop.pack.call(1)] * SLICE_ROWS, shop.pack.call(-1)])
    assert sent(sql) == SLICE_ROWS + 1


def test_tasks_are_not_sent_when_the_caller_rolls_back(shop: Shop, database: str, sql: psycopg.Connection) -> None:
    with psycopg.connect(database) as connection:
        shop.pack.with_options(connection=connection).send_many([shop.pack.call(1)] * (SLICE_ROWS + 1))
        connection.rollback()
    assert sent(sql) == 0
