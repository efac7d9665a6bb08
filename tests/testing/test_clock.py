from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta

import psycopg
import pytest

from horsies import ConfigError, DailySchedule, IntervalSchedule, ScheduleConfig, TaskSchedule, TaskStatus
from horsies.testing import assert_enqueued, clock, drain, enqueued
from tests.fixtures.journey import column, row
from tests.testing import shop

pytestmark = pytest.mark.usefixtures("sandbox")


def test_a_scheduled_task_runs_when_its_time_has_come() -> None:
    handle = shop.note.schedule(timedelta(hours=1), "later")
    assert drain() == []
    clock.advance(timedelta(minutes=59))
    assert drain() == []
    clock.advance(timedelta(minutes=2))
    assert len(drain()) == 1
    assert handle.status() is TaskStatus.COMPLETED


def test_advancing_runs_nothing() -> None:
    shop.note.schedule(60, "later")
    clock.advance(61)
    (found,) = assert_enqueued(shop.note)
    assert found.due_in_s <= 0
    assert shop.log == []


def test_a_task_past_its_good_until_expires() -> None:
    handle = shop.note.with_options(good_until=datetime.now(UTC) + timedelta(hours=1)).send("milk")
    clock.advance(3599)
    assert enqueued(shop.note)
    clock.advance(2)
    assert handle.status() is TaskStatus.EXPIRED
    assert handle.get(timeout_ms=1_000).unwrap_err().error_code == "TASK_EXPIRED"
    assert drain() == []


def test_a_claim_that_was_never_started_is_released_after_its_lease(sql: psycopg.Connection) -> None:
    shop.note.send("claimed")
    sql.execute(
        "update horsies.tasks set status = 'CLAIMED', claimed_by = gen_random_uuid(), claim_no = 1, "
        "lease_until = now() + interval '5 s'"
    )
    assert drain() == []
    clock.advance(6)
    assert len(drain()) == 1


def test_the_window_of_a_key_ends() -> None:
    def send() -> str:
        return shop.note.with_options(key="k", key_window=3600).send("x").task_id

    first = send()
    drain()
    assert send() == first
    clock.advance(3601)
    assert send() != first


def test_an_old_result_can_still_be_read() -> None:
    handle = shop.note.send("old")
    drain()
    clock.advance(timedelta(days=40))
    assert handle.get(timeout_ms=1_000).unwrap() == "old"


def test_all_times_in_all_tables_move(sql: psycopg.Connection) -> None:
    sql.execute("create table horsies.later (id int, at timestamptz, note text, on_day timestamptz)")
    sql.execute("insert into horsies.later values (1, '2030-01-02 00:00+00', 'x', null)")
    versions = column(sql, "select applied_at from horsies.schema_versions")
    clock.advance(timedelta(days=1))
    assert row(sql, "select at = '2030-01-01 00:00+00', on_day, note from horsies.later") == (True, None, "x")
    assert column(sql, "select applied_at from horsies.schema_versions") == versions


@pytest.mark.parametrize("by", [-1, timedelta(seconds=-1), float("nan"), "60", True])
def test_an_invalid_or_negative_step_is_refused(by: float) -> None:
    with pytest.raises(ConfigError, match="the time to let pass"):
        clock.advance(by)


TWO_DAYS = (2, 3)  # the test takes a few seconds, in which another hour may begin


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = [
        TaskSchedule(name="daily", task_name="note", pattern=DailySchedule(time(9)), kwargs={"text": "daily"}),
        TaskSchedule(name="hourly", task_name="note", pattern=IntervalSchedule(hours=1), kwargs={"text": "hourly"}),
    ]
    config = replace(shop.app.config, schedule=ScheduleConfig(schedules=schedules))
    monkeypatch.setattr(shop.app, "config", config)


@pytest.mark.usefixtures("scheduled")
def test_schedules_enqueue_what_becomes_due() -> None:
    clock.advance(timedelta(days=2))
    drain()
    counts = Counter(shop.log)
    assert counts["daily"] in TWO_DAYS
    assert counts["hourly"] - 46 in TWO_DAYS


@pytest.mark.usefixtures("scheduled")
def test_schedules_keep_their_calendar_times_with_many_small_steps() -> None:
    for _ in range(16):
        clock.advance(timedelta(hours=3))
    drain()
    counts = Counter(shop.log)
    assert counts["daily"] in TWO_DAYS
    assert counts["hourly"] - 46 in TWO_DAYS
