"""Concurrent schedulers that die repeatedly, over months: each slot exactly once, compared with an independent oracle."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time, timedelta

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.model.schedule import CronSchedule, DailySchedule, HourlySchedule, MonthlySchedule, Pattern, WeeklySchedule
from horsies.schedules.tick import tick
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import row
from tests.schedules.oracle import Wanted, cron, is_last_day, slots_between
from tests.schedules.steps import Stepper, declare, history, store, tick_at

SCHEDULERS = 3
DEATH_RATE = 0.3  # of the ticks
STEP = timedelta(hours=7)
MONTHS = datetime(2026, 9, 20, tzinfo=UTC), datetime(2026, 11, 20, tzinfo=UTC)
SPRING = datetime(2026, 2, 20, tzinfo=UTC), datetime(2026, 4, 20, tzinfo=UTC)


def at(hour: int, minute: int) -> Wanted:
    return lambda local: (local.hour, local.minute) == (hour, minute)


SCHEDULES: list[tuple[str, Pattern, Wanted]] = [
    ("Europe/Berlin", DailySchedule(time(2, 30)), at(2, 30)),
    ("Europe/Berlin", CronSchedule("*/20 1-3 * * *"), cron("*/20 1-3 * * *")),
    ("America/New_York", HourlySchedule(15), lambda local: local.minute == 15),
    ("America/New_York", CronSchedule("30 1 * * sun"), cron("30 1 * * sun")),
    (
        "Australia/Lord_Howe",
        WeeklySchedule(["sat", "sun"], time(1, 45)),
        lambda local: local.weekday() > 4 and at(1, 45)(local),
    ),
    ("Australia/Lord_Howe", DailySchedule(time(2, 10)), at(2, 10)),
    ("Asia/Kolkata", MonthlySchedule("last", time(23, 59)), lambda local: is_last_day(local) and at(23, 59)(local)),
    ("UTC", CronSchedule("0 */6 * * *"), cron("0 */6 * * *")),
]


class Clock:
    """The clock that all schedulers share. Each reading moves it on."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self._lock = threading.Lock()
        self._now, self._end = start, end

    def next(self) -> datetime | None:
        with self._lock:
            self._now += STEP * random.random()  # noqa: S311 - no secret
            return self._now if self._now < self._end else None


def run_scheduler(url: str, clock: Clock) -> int:
    """Run ticks until the clock ends. Returns how often the scheduler died."""
    deaths, connection = 0, psycopg.connect(url, autocommit=True)
    while (now := clock.next()) is not None:
        fatal = random.randrange(6) if random.random() < DEATH_RATE else None  # noqa: S311 - no secret
        if not tick_or_die(connection, now, fatal):
            deaths, connection = deaths + 1, psycopg.connect(url, autocommit=True)
    connection.close()
    return deaths


def tick_or_die(connection: psycopg.Connection, now: datetime, fatal: int | None) -> bool:
    """Tick, or die at step `fatal`: before a request if it is even, between its answer and the read if it is odd.

    Returns whether the tick was completed.
    """
    ticking, step = Stepper(connection, tick(now, limit=3)), 0
    while True:
        if step == fatal:
            connection.close()
            return False
        more = ticking.step()
        if step + 1 == fatal:
            connection.close()
            return False
        if not more:
            return True
        step += 2


@pytest.mark.promise("T4")
@pytest.mark.parametrize("months", [MONTHS, SPRING], ids=["autumn", "spring"])
def test_schedulers_that_die_repeatedly_decide_each_slot_exactly_once(
    database: str, broker: PostgresBroker, sql: psycopg.Connection, months: tuple[datetime, datetime]
) -> None:
    start, end = months
    names = [f"{zone} {pattern}" for zone, pattern, _ in SCHEDULES]
    made = [
        declare(name, pattern, timezone=zone, catch_up_missed=True, max_catch_up_runs=1_000)
        for name, (zone, pattern, _) in zip(names, SCHEDULES, strict=True)
    ]
    store(broker, *made, now=start)
    clock = Clock(start, end)
    with ThreadPoolExecutor(SCHEDULERS) as threads:
        deaths = [threads.submit(run_scheduler, database, clock) for _ in range(SCHEDULERS)]
        assert sum(each.result() for each in deaths) > 20
    eventually(lambda: (tick_at(broker, end).next_due_s or 1) > 0, what="all slots are decided")
    for name, (zone, _, wanted) in zip(names, SCHEDULES, strict=True):
        runs = history(broker, name, 10_000)
        seen = Counter(run.slot_at for run in runs)
        assert seen == Counter(slots_between(wanted, zone, start, end)), name
        assert {run.outcome for run in runs} <= {"ENQUEUED"}
    tasks = (
        "select count(*), count(distinct tasks.id) from horsies.tasks join horsies.schedule_runs on task_id = tasks.id"
    )
    (total,) = row(sql, "select count(*) from horsies.tasks")
    assert row(sql, tasks) == (total, total)
    assert row(sql, "select count(*) from horsies.schedule_runs") == (total,)
