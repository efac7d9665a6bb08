"""Schedules that operators and programs create at run time, beside those that apps declare."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from horsies import (
    AppConfig,
    ConfigError,
    CustomQueueConfig,
    DailySchedule,
    Horsies,
    IntervalSchedule,
    QueueMode,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
)
from horsies.db.broker import PostgresBroker
from horsies.db.faults import When
from horsies.model.config import PostgresConfig
from horsies.model.retry_policy import RetryPolicy
from horsies.ops import Ops
from horsies.schedules.control import change_schedule, create_schedule, remove_schedule
from horsies.schedules.sync import sync_schedules
from horsies.schedules.tick import tick
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.faults import Plant
from tests.fixtures.journey import row
from tests.schedules.steps import Stepper, declare, history, outcomes, slots_of, store, stored_row, tick_at

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HOURLY = IntervalSchedule(hours=1)
REPORT = TaskSchedule(name="report", task_name="pack", pattern=HOURLY, kwargs={"number": 7})


@pytest.fixture
def app(database: str, broker: PostgresBroker) -> Generator[Horsies]:
    queues = [CustomQueueConfig(name="parcels", priority=5), CustomQueueConfig(name="letters")]
    declared = TaskSchedule(name="declared", task_name="pack", pattern=HOURLY, kwargs={"number": 1})
    config = AppConfig(
        broker=PostgresConfig(database_url=database),
        queue_mode=QueueMode.CUSTOM,
        custom_queues=queues,
        schedule=ScheduleConfig(schedules=[declared]),
    )
    app = Horsies(config)

    @app.task("pack", queue_name="parcels", timeout_ms=7_000, retry_policy=RetryPolicy.fixed([1], auto_retry_for=["X"]))
    def pack(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=number)

    assert pack(1).is_ok()
    yield app
    app.close()


@pytest.fixture
def ops(app: Horsies) -> Ops:
    return app.ops.acting_as("alice")


# -- the verbs of operators


def test_a_created_schedule_has_all_that_its_task_needs_and_any_scheduler_ticks_it(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    ops.create_schedule(REPORT)
    (info,) = ops.list_schedules()
    assert (info.name, info.is_dynamic, info.app, info.state, info.args) == (
        "report",
        True,
        None,
        "active",
        '{"number":7}',
    )
    assert info.next_slot_at is not None
    ticked = tick_at(broker, info.next_slot_at)
    assert outcomes(ticked) == [("ENQUEUED", info.next_slot_at)]
    task = "task_name, queue_name, args::text, timeout_ms, retry_delays_ms, retry_for"
    assert row(sql, f"select {task} from horsies.tasks") == ("pack", "parcels", '{"number":7}', 7_000, [1_000], ["X"])


async def test_it_is_changed_paused_and_removed_and_all_of_it_is_recorded(ops: Ops, broker: PostgresBroker) -> None:
    await ops.create_schedule_async(REPORT)
    assert await ops.change_schedule_async(replace(REPORT, kwargs={"number": 8}, queue_name="letters"))
    (info,) = await ops.list_schedules_async()
    assert (info.args, info.queue_name) == ('{"number":8}', "letters")
    assert await ops.pause_schedule_async("report")
    assert await ops.remove_schedule_async("report")
    assert not await ops.remove_schedule_async("report")
    assert not await ops.change_schedule_async(REPORT)
    assert await ops.list_schedules_async() == []
    found = [(entry.actor, entry.action, entry.target, entry.count) for entry in await ops.list_audit_async()]
    assert found == [
        ("alice", "change schedule", "report", 0),
        ("alice", "remove schedule", "report", 0),
        ("alice", "remove schedule", "report", 1),
        ("alice", "pause schedule", "report", 1),
        ("alice", "change schedule", "report", 1),
        ("alice", "create schedule", "report", 1),
    ]
    await ops.broker.close_async()


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        (replace(REPORT, task_name="lost"), "there is no task 'lost'; this app has 'pack'"),
        (replace(REPORT, kwargs={"number": "x"}), "kwargs: pack"),
        (replace(REPORT, kwargs={}), "missing a required argument: 'number'"),
        (replace(REPORT, queue_name="pigeons"), "there is no queue 'pigeons'"),
        (replace(REPORT, name="declared"), "'declared' is declared in the configuration of this app; change it there"),
        ("report", "schedule must be of type TaskSchedule"),
    ],
)
def test_a_schedule_is_checked_in_full_before_anything_is_written(
    schedule: TaskSchedule, problem: str, ops: Ops
) -> None:
    for action in (ops.create_schedule, ops.change_schedule):
        with pytest.raises(ConfigError, match=problem):
            action(schedule)
    assert ops.list_schedules() == []
    assert ops.list_audit() == []


def test_without_the_app_of_its_task_no_schedule_is_created(database: str, broker: PostgresBroker) -> None:
    """Neither its arguments nor the retries and the timeout of its task would be known."""
    stranger = Horsies(AppConfig(broker=broker.config))
    with pytest.raises(ConfigError, match="there is no task 'pack'; this app has none"):
        stranger.ops.create_schedule(REPORT)
    stranger.close()


def test_a_name_that_an_app_declares_is_refused_and_the_refusal_is_recorded(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    store(broker, declare("report", HOURLY), app="shop", now=NOON)
    before = stored_row(sql, "report")
    advice = "schedule 'report' is declared by app 'shop'; change it in the configuration of that app"
    for action in (ops.create_schedule, ops.change_schedule):
        with pytest.raises(ConfigError, match=advice):
            action(REPORT)
    with pytest.raises(ConfigError, match=advice):
        ops.remove_schedule("report")
    assert stored_row(sql, "report") == before
    assert [(entry.action, entry.count) for entry in ops.list_audit()] == [
        ("remove schedule", 0),
        ("change schedule", 0),
        ("create schedule", 0),
    ]


def test_a_name_that_was_created_before_is_refused_unless_it_is_the_same_schedule(
    ops: Ops, sql: psycopg.Connection
) -> None:
    ops.create_schedule(REPORT)
    before = stored_row(sql, "report")
    ops.create_schedule(REPORT)  # as after a lost answer
    with pytest.raises(ConfigError, match="schedule 'report' exists already, with another definition; change it"):
        ops.create_schedule(replace(REPORT, kwargs={"number": 8}))
    assert stored_row(sql, "report") == before


@pytest.mark.parametrize("statement", ["lock_one_schedule", "store_schedules", "commit_tick"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_creation_and_a_change_whose_connection_is_lost_are_repeated(
    statement: str, when: When, ops: Ops, faults: Plant
) -> None:
    faults(statement, when, "drop")
    ops.create_schedule(REPORT)
    faults(statement, when, "drop")
    assert ops.change_schedule(replace(REPORT, kwargs={"number": 8}))
    assert [info.args for info in ops.list_schedules()] == ['{"number":8}']
    assert [entry.count for entry in ops.list_audit()] == [1, 1]


# -- slots


def created(broker: PostgresBroker, name: str = "report", now: datetime = NOON, **options: Any) -> None:
    broker.run(partial(create_schedule, declare(name, HOURLY, **options), now))


def test_a_change_keeps_the_slot_unless_the_pattern_or_the_zone_changes(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    created(broker)
    slot = stored_row(sql, "report")["next_slot_at"]
    assert broker.run(partial(change_schedule, declare("report", HOURLY, args='{"a":1}'), NOON + 3 * HOUR))
    assert stored_row(sql, "report")["next_slot_at"] == slot
    later = NOON + 3 * HOUR + MINUTE
    assert broker.run(partial(change_schedule, declare("report", IntervalSchedule(minutes=10)), later))
    assert outcomes(tick_at(broker, NOON + 3 * HOUR + 10 * MINUTE)) == [("ENQUEUED", NOON + 3 * HOUR + 10 * MINUTE)]
    assert slots_of(history(broker, "report"), "MISSED") == [NOON + HOUR]


def test_a_paused_schedule_stays_paused_when_it_is_changed(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    created(broker)
    sql.execute("update horsies.schedules set paused_at = now()")
    assert broker.run(partial(change_schedule, declare("report", IntervalSchedule(minutes=10)), NOON + 3 * HOUR))
    assert stored_row(sql, "report")["paused_at"] is not None
    assert history(broker, "report") == []


def test_a_disabled_schedule_is_never_due(broker: PostgresBroker) -> None:
    created(broker, enabled=False)
    assert tick_at(broker, NOON + 3 * HOUR).decisions == []


def test_the_history_of_a_removed_schedule_stays(broker: PostgresBroker) -> None:
    created(broker)
    tick_at(broker, NOON + HOUR)
    assert broker.run(partial(remove_schedule, "report"))
    assert tick_at(broker, NOON + 2 * HOUR).decisions == []
    assert slots_of(history(broker, "report")) == [NOON + HOUR]


def test_many_schedulers_enqueue_each_slot_once(database: str, broker: PostgresBroker) -> None:
    for number in range(5):
        created(broker, f"report-{number}", catch_up_missed=True)

    def run(hour: int) -> None:
        with PostgresBroker(PostgresConfig(database_url=database)) as own:
            own.run(partial(tick, NOON + hour * HOUR))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(12)))
    tick_at(broker, NOON + 12 * HOUR)
    for number in range(5):
        slots = slots_of(history(broker, f"report-{number}"))
        assert slots == [NOON + hour * HOUR for hour in range(1, 13)]


# -- beside declared schedules


def test_an_app_that_declares_other_schedules_leaves_it_alone(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    created(broker)
    before = stored_row(sql, "report")
    for now, names in ((NOON, ["a", "b"]), (NOON + 5 * HOUR, ["a"]), (NOON + 6 * HOUR, [])):
        synced = store(broker, *[declare(name, HOURLY) for name in names], app="shop", now=now)
        assert (synced.taken, synced.unowned, synced.clashes) == ([], [], {})
        assert "report" not in synced.retired
    assert stored_row(sql, "report") == before


def test_an_app_that_declares_the_same_name_does_not_take_it_over(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    created(broker)
    before = stored_row(sql, "report")
    other = declare("report", DailySchedule(NOON.time()))
    synced = store(broker, other, declare("a", HOURLY), app="shop", now=NOON)
    assert (synced.taken, synced.added, synced.changed, synced.clashes) == (["report"], ["a"], [], {})
    assert stored_row(sql, "report") == before
    broker.run(partial(remove_schedule, "report"))
    synced = store(broker, other, declare("a", HOURLY), app="shop", now=NOON)
    assert (synced.taken, synced.added) == ([], ["report"])


def test_a_name_that_no_app_declares_any_more_can_be_used_again(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    store(broker, declare("report", HOURLY), now=NOON)
    sql.execute("update horsies.schedules set paused_at = now()")
    store(broker, now=NOON)
    with pytest.raises(ConfigError, match="'report' was declared by app 'shop' and is never due; create a new one"):
        broker.run(partial(change_schedule, declare("report", HOURLY), NOON))
    created(broker)
    found = stored_row(sql, "report")
    assert (found["is_dynamic"], found["declared"], found["app"], found["paused_at"]) == (True, True, None, None)
    assert outcomes(tick_at(broker, NOON + HOUR)) == [("ENQUEUED", NOON + HOUR)]


def test_of_a_creation_and_a_declaration_at_the_same_time_one_is_refused(
    database: str, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """There is no row yet that the second could wait for."""
    with psycopg.connect(database, autocommit=True) as connection, ThreadPoolExecutor(1) as thread:
        storing = Stepper(connection, sync_schedules([declare("report", HOURLY)], app="shop", now=NOON))
        storing.until("store_schedules")
        creating = thread.submit(created, broker)
        wait_until_blocked(sql, on=connection)
        while storing.step():
            pass
        with pytest.raises(ConfigError, match="declared by app 'shop'"):
            creating.result(20)
    assert stored_row(sql, "report")["is_dynamic"] is False
