from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time, timedelta
from functools import partial

import psycopg
import pytest

from horsies import (
    AppConfig,
    ConfigError,
    CronSchedule,
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
from horsies.model.task import TaskOptions
from horsies.schedules.control import get_schedules, pause_schedule
from horsies.schedules.sync import SyncResult, declared_schedules, sync_schedules
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.journey import row
from tests.schedules.steps import Stepper, declare, history, store, stored_row, tick_at

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HOURLY = IntervalSchedule(hours=1)


# -- declarations


def app_with(*schedules: TaskSchedule) -> Horsies:
    queues = [CustomQueueConfig(name="parcels"), CustomQueueConfig(name="letters")]
    config = AppConfig(
        queue_mode=QueueMode.CUSTOM, custom_queues=queues, schedule=ScheduleConfig(schedules=list(schedules))
    )
    app = Horsies(config)

    @app.task("pack", queue_name="parcels", timeout_ms=7_000)
    def pack(number: int, at: time | None = None) -> TaskResult[int, TaskError]:
        return TaskResult(ok=number)

    assert pack(1).is_ok()
    return app


def test_a_declared_schedule_has_the_options_of_its_task_and_encoded_arguments() -> None:
    app = app_with(
        TaskSchedule(name="b", task_name="pack", pattern=HOURLY, kwargs={"number": 1, "at": time(9)}),
        TaskSchedule(name="a", task_name="pack", pattern=HOURLY, kwargs={"number": 2}, queue_name="letters"),
    )
    found = declared_schedules(app.config, app.tasks)
    assert found is not None
    assert [each.schedule.name for each in found] == ["a", "b"]
    assert [each.options.queue_name for each in found] == ["letters", "parcels"]
    assert {each.options.timeout_ms for each in found} == {7_000}
    assert [each.args for each in found] == ['{"number":2}', '{"number":1,"at":"09:00:00"}']


def test_an_app_may_declare_no_schedules() -> None:
    app = Horsies()
    assert declared_schedules(app.config, app.tasks) is None


def test_all_problems_of_all_schedules_are_reported_at_once() -> None:
    app = app_with(
        TaskSchedule(name="lost", task_name="unpack", pattern=HOURLY),
        TaskSchedule(name="typed", task_name="pack", pattern=HOURLY, kwargs={"number": "one"}),
        TaskSchedule(name="short", task_name="pack", pattern=HOURLY, queue_name="pigeons"),
    )
    with pytest.raises(ConfigError) as raised:
        declared_schedules(app.config, app.tasks)
    message = str(raised.value)
    for expected in (
        "schedule 'lost': there is no task 'unpack'; this app has 'pack'",
        "schedule 'typed': kwargs: pack() cannot be sent",
        "schedule 'short': kwargs: pack() cannot be called like this: missing a required argument: 'number'",
        "schedule 'short': queue_name: there is no queue 'pigeons'; this app has 'parcels', 'letters'",
    ):
        assert expected in message


def test_all_problems_of_one_schedule_are_reported_at_once() -> None:
    wrong: dict[str, object] = {
        "name": "",
        "task_name": 7,
        "pattern": "0 9 * * *",
        "kwargs": [1],
        "queue_name": 3,
        "timezone": "Europe/Atlantis",
        "enabled": "yes",
        "max_catch_up_runs": -1,
        "jitter": timedelta(days=2),
        "overlap": "sometimes",
    }
    with pytest.raises(ConfigError) as raised:
        TaskSchedule(**wrong)  # pyright: ignore[reportArgumentType] - wrong types are the point
    message = str(raised.value)
    assert "10 problems" in message
    assert "pattern must be one of IntervalSchedule" in message
    assert "timezone 'Europe/Atlantis' is not known; choose an IANA name" in message
    assert "choose at most a day" in message


def test_two_schedules_with_the_same_name_are_refused() -> None:
    same = TaskSchedule(name="a", task_name="pack", pattern=HOURLY)
    with pytest.raises(ConfigError, match="there are 2 schedules named 'a'; give each its own name"):
        ScheduleConfig(schedules=[same, same])
    with pytest.raises(ConfigError, match=r"schedules\[0\] must be of type TaskSchedule"):
        ScheduleConfig(schedules=["a"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="schedules must be a list"):
        ScheduleConfig(schedules=same)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="write schedule=ScheduleConfig"):
        AppConfig(schedule=[same])  # pyright: ignore[reportArgumentType]


def test_a_schedule_is_immutable() -> None:
    kwargs = {"number": 1}
    schedule = TaskSchedule(name="a", task_name="pack", pattern=HOURLY, kwargs=kwargs)
    kwargs["number"] = 2
    assert schedule.kwargs == {"number": 1}
    with pytest.raises(TypeError):
        schedule.kwargs["number"] = 3  # pyright: ignore[reportIndexIssue]


# -- storing


def test_an_unchanged_schedule_is_not_written(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    made = [declare("report", HOURLY, args='{"a":1}'), declare("mail", CronSchedule("0 9 * * mon-fri"))]
    assert store(broker, *made, now=NOON) == SyncResult(["mail", "report"], [], [])
    before = sql.execute("select xmin, name, next_slot_at from horsies.schedules order by name").fetchall()
    assert store(broker, *made, now=NOON + 5 * HOUR) == SyncResult([], [], [])
    after = sql.execute("select xmin, name, next_slot_at from horsies.schedules order by name").fetchall()
    assert after == before


def test_a_changed_pattern_starts_from_now_and_records_missed_slots(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    store(broker, declare("report", HOURLY), declare("zoned", DailySchedule(time(9))), now=NOON)
    changed = [
        declare("report", IntervalSchedule(hours=6)),
        declare("zoned", DailySchedule(time(9)), timezone="Asia/Tokyo"),
    ]
    assert store(broker, *changed, now=NOON + 90 * MINUTE).changed == ["report", "zoned"]
    assert stored_row(sql, "report")["next_slot_at"] == "2026-06-01T18:00:00+00:00"
    assert stored_row(sql, "zoned")["next_slot_at"] == "2026-06-02T00:00:00+00:00"
    assert [(run.outcome, run.slot_at) for run in history(broker, "report")] == [("MISSED", NOON + HOUR)]
    assert history(broker, "zoned") == []


def test_any_other_change_keeps_the_next_slot(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    store(broker, declare("report", HOURLY), now=NOON)
    terms = TaskOptions("pack", "parcels", 3, timeout_ms=5)
    changed = declare("report", HOURLY, args='{"n":2}', terms=terms, jitter=1.5, catch_up_missed=True)
    assert store(broker, changed, now=NOON + 5 * HOUR).changed == ["report"]
    stored = stored_row(sql, "report")
    assert stored["next_slot_at"] == "2026-06-01T13:00:00+00:00"
    assert (stored["task_name"], stored["args"], stored["jitter_ms"]) == ("pack", {"n": 2}, 1_500)
    assert history(broker, "report") == []


def test_a_removed_schedule_is_kept_but_never_due(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    store(broker, declare("report", HOURLY), declare("mail", HOURLY), now=NOON)
    assert store(broker, declare("mail", HOURLY), now=NOON).retired == ["report"]
    assert [decision.name for decision in tick_at(broker, NOON + 5 * HOUR).decisions if decision.name == "report"] == []
    assert [info.state for info in broker.run(get_schedules)] == ["active", "removed"]
    assert store(broker, declare("mail", HOURLY), now=NOON) == SyncResult([], [], [])
    again = store(broker, declare("mail", HOURLY), declare("report", HOURLY), now=NOON + 9 * HOUR)
    assert again.changed == ["report"]
    assert stored_row(sql, "report")["next_slot_at"] == "2026-06-01T22:00:00+00:00"


def test_a_disabled_schedule_is_stored_but_never_due(broker: PostgresBroker) -> None:
    store(broker, declare("report", HOURLY, enabled=False), now=NOON)
    assert tick_at(broker, NOON + 5 * HOUR).decisions == []
    store(broker, declare("report", HOURLY), now=NOON + 9 * HOUR)
    assert [decision.slot_at for decision in tick_at(broker, NOON + 10 * HOUR).decisions] == [NOON + 10 * HOUR]


def test_a_pause_survives_changes_of_the_declaration(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    store(broker, declare("report", HOURLY), now=NOON)
    assert broker.run(partial(pause_schedule, "report"))
    store(broker, declare("report", IntervalSchedule(minutes=5)), now=NOON)
    assert stored_row(sql, "report")["paused_at"] is not None
    assert tick_at(broker, NOON + 5 * HOUR).decisions == []
    assert history(broker, "report") == []


def test_a_sync_can_be_repeated(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    store(broker, declare("report", HOURLY), now=NOON)
    store(broker, declare("report", HOURLY), now=NOON)
    assert row(sql, "select count(*) from horsies.schedules") == (1,)


@pytest.mark.promise("T4")
def test_concurrent_syncs_of_a_new_schedule_wait_for_each_other(
    database: str, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """Otherwise the second, which has not seen the row of the first, would move its next slot."""
    with psycopg.connect(database, autocommit=True) as connection, ThreadPoolExecutor(1) as threads:
        first = Stepper(connection, sync_schedules([declare("report", HOURLY, args='{"n":1}')], app="shop", now=NOON))
        first.until("store_schedules")
        second = threads.submit(store, broker, declare("report", HOURLY, args='{"n":2}'), now=NOON + 5 * HOUR)
        wait_until_blocked(sql, on=connection)
        while first.step():
            pass
        assert second.result() == SyncResult([], ["report"], [])
    assert stored_row(sql, "report")["next_slot_at"] == "2026-06-01T13:00:00+00:00"


def test_a_tick_does_not_wait_for_a_running_sync(database: str, broker: PostgresBroker) -> None:
    store(broker, declare("report", HOURLY), now=NOON)
    with psycopg.connect(database, autocommit=True) as connection:
        syncing = Stepper(connection, sync_schedules([declare("report", HOURLY)], app="shop", now=NOON))
        syncing.until("store_schedules")
        assert tick_at(broker, NOON + HOUR).decisions == []
        while syncing.step():
            pass
    assert len(tick_at(broker, NOON + HOUR).decisions) == 1


# -- several apps in one schema


@pytest.mark.promise("D3")
def test_the_sync_of_an_app_does_not_change_another_app_s_schedules(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """Not even when slots of the other app are overdue: they must still be enqueued."""
    store(broker, declare("report", HOURLY), declare("mail", HOURLY), now=NOON, app="shop")
    before = sql.execute("select xmin, * from horsies.schedules order by name").fetchall()
    assert store(broker, declare("count", HOURLY), now=NOON + 5 * HOUR, app="bank") == SyncResult(["count"], [], [])
    assert store(broker, now=NOON + 5 * HOUR, app="bank") == SyncResult([], [], ["count"])
    after = sql.execute("select xmin, * from horsies.schedules where name <> 'count' order by name").fetchall()
    assert after == before
    assert history(broker, "report") == []
    assert sorted(decision.name for decision in tick_at(broker, NOON + HOUR).decisions) == ["mail", "report"]


@pytest.mark.promise("D3")
def test_a_schedule_of_two_apps_stays_with_the_first_and_the_clash_is_reported(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    store(broker, declare("report", HOURLY), now=NOON, app="shop")
    before = stored_row(sql, "report")
    other = declare("report", IntervalSchedule(minutes=5), args='{"n":2}')
    synced = store(broker, other, declare("count", HOURLY), now=NOON, app="bank")
    assert synced == SyncResult(["count"], [], [], clashes={"report": "shop"})
    assert stored_row(sql, "report") == before
    assert before["app"] == "shop"


def test_the_next_app_that_declares_a_removed_schedule_owns_it(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    store(broker, declare("report", HOURLY), now=NOON, app="shop")
    store(broker, now=NOON, app="shop")
    assert store(broker, declare("report", HOURLY), now=NOON, app="bank") == SyncResult([], ["report"], [])
    assert stored_row(sql, "report")["app"] == "bank"


def test_the_first_app_that_declares_a_schedule_without_an_owner_owns_it(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """It keeps its next slot. Others without an owner are not removed: they may belong to an app whose scheduler has not started yet."""
    store(broker, declare("report", HOURLY), declare("mail", HOURLY), now=NOON)
    sql.execute("update horsies.schedules set app = null")
    synced = store(broker, declare("report", HOURLY), now=NOON + 5 * HOUR, app="shop")
    assert synced == SyncResult([], ["report"], [], unowned=["mail"])
    stored = stored_row(sql, "report")
    assert (stored["app"], stored["next_slot_at"]) == ("shop", "2026-06-01T13:00:00+00:00")
    assert (stored_row(sql, "mail")["app"], stored_row(sql, "mail")["enabled"]) == (None, True)
    assert store(broker, declare("report", HOURLY), now=NOON, app="bank").clashes == {"report": "shop"}


def test_an_app_that_gets_a_name_keeps_the_schedules_stored_under_its_locator(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """But it removes no schedule of that locator: another app may be started by the same one."""
    store(broker, declare("report", HOURLY), declare("mail", HOURLY), now=NOON, app="tasks:app")
    synced = store(broker, declare("report", HOURLY), now=NOON, app="shop", locator="tasks:app")
    assert synced == SyncResult([], ["report"], [])
    assert stored_row(sql, "report")["app"] == "shop"
    assert stored_row(sql, "mail")["app"] == "tasks:app"
    assert stored_row(sql, "mail")["declared"] is True


def test_concurrent_syncs_of_two_apps_do_not_overwrite_each_other(
    database: str, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    with psycopg.connect(database, autocommit=True) as connection, ThreadPoolExecutor(1) as threads:
        first = Stepper(connection, sync_schedules([declare("report", HOURLY)], app="shop", now=NOON))
        first.until("store_schedules")
        second = threads.submit(store, broker, declare("report", HOURLY), now=NOON, app="bank")
        wait_until_blocked(sql, on=connection)
        while first.step():
            pass
        assert second.result().clashes == {"report": "shop"}
    assert stored_row(sql, "report")["app"] == "shop"
