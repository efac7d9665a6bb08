"""The first read of a waiter: at once, except for a task that was sent at this moment."""

import threading
from typing import Any

import psycopg
import pytest

from horsies import TaskResult
from horsies.db.broker import PostgresBroker
from horsies.tasks.finish import finish_tasks, notify_done
from horsies.tasks.handle import TaskHandle
from tests.fixtures.brokers import without_polling
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, claim, completed, do, row

LISTENING = (
    "select count(*) from pg_locks where locktype = 'advisory' and mode = 'ShareLock' and granted "
    "and database = (select oid from pg_database where datname = current_database())"
)
"""A process that waits holds the lock of the waiters."""


pytestmark = without_polling


def set_timings(monkeypatch: pytest.MonkeyPatch, *, is_new_s: float, first_read_s: float | None = None) -> None:
    monkeypatch.setattr(TaskHandle, "is_new_s", is_new_s)
    if first_read_s is not None:
        monkeypatch.setattr(TaskHandle, "first_read_s", first_read_s)


@pytest.fixture
def late_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task counts as new during the whole test, and is not read during the test unless a notification arrives."""
    set_timings(monkeypatch, is_new_s=60.0, first_read_s=60.0)


def end_without_notification(broker: PostgresBroker) -> list[str]:
    claims = claim(broker)
    do(broker, finish_tasks(ME, [completed(held, "3") for held in claims]))
    return [held.id for held in claims]


@pytest.mark.promise("A4")
def test_a_new_task_is_found_by_its_notification(
    basic: Any, broker: PostgresBroker, sql: psycopg.Connection, late_first_read: None
) -> None:
    found: list[TaskResult[int, Any]] = []
    handle = basic.add.send(1, right=2)
    waiting = threading.Thread(target=lambda: found.append(handle.get(20_000)))
    waiting.start()
    eventually(lambda: row(sql, LISTENING)[0])
    do(broker, notify_done(end_without_notification(broker)))
    waiting.join()
    assert found[0].unwrap() == 3


@pytest.mark.promise("A4")
def test_a_new_task_that_ended_without_notification_is_found_soon(
    basic: Any, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_timings(monkeypatch, is_new_s=60.0)
    handle = basic.add.send(1, right=2)
    end_without_notification(broker)
    assert handle.get(20_000).unwrap() == 3


@pytest.mark.promise("A4")
def test_a_short_wait_reads_before_it_ends(basic: Any, broker: PostgresBroker, late_first_read: None) -> None:
    first, second = basic.add.send(1, right=2), basic.add.send(1, right=2)
    end_without_notification(broker)
    assert first.get(0).unwrap() == 3
    assert second.get(50).unwrap() == 3


def test_a_task_that_may_be_old_is_read_at_once(basic: Any, broker: PostgresBroker, late_first_read: None) -> None:
    by_id = basic.app.handle(basic.add.send(1, right=2).task_id)
    keyed = basic.add.with_options(key="sum").send(1, right=2)
    end_without_notification(broker)
    assert by_id.get(20_000).unwrap() == 3
    assert keyed.get(20_000).unwrap() == 3


def test_a_later_wait_reads_at_once(basic: Any, broker: PostgresBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    set_timings(monkeypatch, is_new_s=0.0, first_read_s=60.0)  # never new, however fast the machine is
    handle = basic.add.send(1, right=2)
    end_without_notification(broker)
    assert handle.get(20_000).unwrap() == 3
