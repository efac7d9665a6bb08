"""When whoever waits looks for the first time: at once, but for a task that was sent this very moment."""

import threading
from typing import Any

import psycopg
import pytest

from horsies import TaskResult
from horsies.db.broker import PostgresBroker
from horsies.tasks import handle as handle_module
from horsies.tasks.finish import finish_tasks, notify_done
from tests.fixtures.brokers import without_polling
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import ME, claim, completed, do, row

LISTENING = (
    "select count(*) from pg_stat_activity where datname = current_database() "
    "and application_name = 'horsies listener' and query like '%%done%%'"
)


pytestmark = without_polling


@pytest.fixture
def looks_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts as new is not looked for within the time of a test."""
    monkeypatch.setattr(handle_module, "SOON_S", 60.0)


@pytest.fixture
def is_new_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle_module, "AT_ONCE_S", 60.0)


def end_unannounced(broker: PostgresBroker) -> list[str]:
    claims = claim(broker)
    do(broker, finish_tasks(ME, [completed(held, "3") for held in claims]))
    return [held.id for held in claims]


@pytest.mark.promise("A4")
def test_a_new_task_is_found_by_its_announcement(
    basic: Any, broker: PostgresBroker, sql: psycopg.Connection, looks_late: None, is_new_for_long: None
) -> None:
    found: list[TaskResult[int, Any]] = []
    handle = basic.add.send(1, right=2)
    waiting = threading.Thread(target=lambda: found.append(handle.get(20_000)))
    waiting.start()
    eventually(lambda: row(sql, LISTENING)[0])
    do(broker, notify_done(end_unannounced(broker)))
    waiting.join()
    assert found[0].unwrap() == 3


@pytest.mark.promise("A4")
def test_a_new_task_that_ended_unheard_is_found_soon(basic: Any, broker: PostgresBroker, is_new_for_long: None) -> None:
    handle = basic.add.send(1, right=2)
    end_unannounced(broker)
    assert handle.get(20_000).unwrap() == 3


@pytest.mark.promise("A4")
def test_a_short_wait_looks_before_it_ends(
    basic: Any, broker: PostgresBroker, looks_late: None, is_new_for_long: None
) -> None:
    first, second = basic.add.send(1, right=2), basic.add.send(1, right=2)
    end_unannounced(broker)
    assert first.get(0).unwrap() == 3
    assert second.get(50).unwrap() == 3


def test_what_need_not_be_new_is_looked_for_at_once(
    basic: Any, broker: PostgresBroker, looks_late: None, is_new_for_long: None
) -> None:
    by_id = basic.app.handle(basic.add.send(1, right=2).task_id)
    keyed = basic.add.with_options(key="sum").send(1, right=2)
    end_unannounced(broker)
    assert by_id.get(20_000).unwrap() == 3
    assert keyed.get(20_000).unwrap() == 3


def test_whoever_waits_later_looks_at_once(
    basic: Any, broker: PostgresBroker, looks_late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle_module, "AT_ONCE_S", 0.0)  # however quick this machine is, the moment has passed
    handle = basic.add.send(1, right=2)
    end_unannounced(broker)
    assert handle.get(20_000).unwrap() == 3
