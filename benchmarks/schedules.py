"""`python -m benchmarks.schedules`: how long a scheduler takes for ten thousand schedules that are due at the same instant.

Of 700 tasks, with cron patterns and intervals in three zones, some with jitter and some that must not overlap; five rounds, a day apart. Exit code 1 when the
slowest round misses the bar.
"""

import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial

from benchmarks.place import Place, open_place
from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.model.schedule import CronSchedule, IntervalSchedule, TaskSchedule
from horsies.model.task import TaskOptions
from horsies.schedules.sync import DeclaredSchedule, sync_schedules
from horsies.schedules.tick import tick

COUNT, ROUNDS, MAX_S = 10_000, 5, 2.0
ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata")
NOON, DAY = datetime(2026, 11, 15, 12, tzinfo=UTC), timedelta(days=1)


def main() -> int:
    with open_place() as place, PostgresBroker(PostgresConfig(database_url=place.url)) as broker:
        broker.run(partial(sync_schedules, [_declared(number) for number in range(COUNT)], app="bench", now=NOON))
        seconds = [_serve_all(place, broker, NOON + n * DAY) for n in range(1, ROUNDS + 1)]
    print(f"{COUNT} schedules due at once: {min(seconds):.2f} to {max(seconds):.2f} s in {ROUNDS} rounds")
    print(f"bar: {max(seconds):.2f} s <= {MAX_S} s: {'PASS' if max(seconds) <= MAX_S else 'FAIL'}")
    return 0 if max(seconds) <= MAX_S else 1


def _declared(number: int) -> DeclaredSchedule:
    schedule = TaskSchedule(
        name=f"schedule {number}",
        task_name=f"task {number % 700}",
        pattern=CronSchedule(f"{number % 60} 12 * * *") if number % 2 else IntervalSchedule(days=1, seconds=number),
        timezone=ZONES[number % 3],
        jitter=number % 4,
        overlap="skip" if number % 7 else "allow",
    )
    return DeclaredSchedule(schedule, TaskOptions(schedule.task_name, "default", number % 5), "{}")


def _serve_all(place: Place, broker: PostgresBroker, slot: datetime) -> float:
    """Wait until what was enqueued before has ended, so that nothing overlaps."""
    place.admin.execute("truncate horsies.tasks")
    place.admin.execute("update horsies.schedules set next_slot_at = %s", [slot])
    began = time.perf_counter()
    while broker.run(partial(tick, slot)).is_full:
        pass
    seconds = time.perf_counter() - began
    enqueued = place.admin.execute("select count(*) from horsies.tasks").fetchone()
    if enqueued != (COUNT,):
        raise SystemExit(f"{enqueued} tasks were enqueued, not {COUNT}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
