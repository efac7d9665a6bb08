from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from functools import partial

import psycopg
import pytest

from horsies import BrokerError
from horsies.db.broker import PostgresBroker
from horsies.db.dedicated import DedicatedConnection
from horsies.db.errors import DriverError
from horsies.db.faults import When
from horsies.db.statement import rows
from horsies.model.config import PostgresConfig
from horsies.model.retry_policy import RetryPolicy
from horsies.model.schedule import CronSchedule, DailySchedule, IntervalSchedule
from horsies.model.task import TaskOptions
from horsies.schedules.control import pause_schedule
from horsies.schedules.tick import SQL as TICK
from horsies.schedules.tick import tick
from horsies.tasks.finish import finish_tasks
from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.faults import Plant
from tests.fixtures.journey import ME, claim, column, completed, do, row
from tests.fixtures.proxies import Proxy
from tests.schedules.steps import (
    Stepper,
    declare,
    end_all_tasks,
    history,
    outcomes,
    slots_of,
    store,
    stored_row,
    tick_at,
)

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
HOURLY = IntervalSchedule(hours=1)


def test_a_new_schedule_starts_with_its_next_slot(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    store(broker, declare("report", HOURLY), now=NOON)
    assert tick_at(broker, NOON + 59 * MINUTE).decisions == []
    assert outcomes(tick_at(broker, NOON + HOUR)) == [("ENQUEUED", NOON + HOUR)]
    assert tick_at(broker, NOON + HOUR).decisions == []
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


def test_a_tick_returns_the_time_until_the_next_slot(broker: PostgresBroker) -> None:
    assert tick_at(broker, NOON).next_due_s is None
    store(broker, declare("report", HOURLY), declare("mail", DailySchedule(time(12, 10))), now=NOON)
    assert tick_at(broker, NOON).next_due_s == 600
    assert tick_at(broker, NOON + 10 * MINUTE).next_due_s == 3_000


def test_a_task_is_enqueued_with_the_stored_options(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    retry = RetryPolicy.fixed([1, 5], auto_retry_for=["TASK_TIMEOUT"], jitter=0.5)
    terms = TaskOptions("pack", "parcels", 7, timeout_ms=9_000, retry=retry)
    store(broker, declare("pack", HOURLY, args='{"n": "\\u0000 \\"x\\""}', terms=terms), now=NOON)
    tick_at(broker, NOON + HOUR)
    stored = row(
        sql,
        "select task_name, queue_name, priority, args::text, timeout_ms, retry_delays_ms, retry_jitter, retry_for, ready, status from horsies.tasks",
    )
    expected = ("pack", "parcels", 7, '{"n": "\\u0000 \\"x\\""}', 9_000, [1_000, 5_000], 0.5, ["TASK_TIMEOUT"])
    assert stored == (*expected, True, "PENDING")


# -- missed slots


def test_only_the_newest_missed_slot_runs_and_the_others_are_recorded(broker: PostgresBroker) -> None:
    store(broker, declare("report", HOURLY), now=NOON)
    assert outcomes(tick_at(broker, NOON + 5.5 * HOUR)) == [("MISSED", NOON + HOUR), ("ENQUEUED", NOON + 5 * HOUR)]
    missed, ran = history(broker, "report")
    assert (missed.slot_at, missed.last_slot_at, missed.task_id) == (NOON + HOUR, NOON + 4 * HOUR, None)
    assert ran.task_id is not None
    assert outcomes(tick_at(broker, NOON + 6 * HOUR)) == [("ENQUEUED", NOON + 6 * HOUR)]


def test_with_catch_up_all_missed_slots_run_in_order(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    store(broker, declare("report", HOURLY, catch_up_missed=True), now=NOON)
    ticked = tick_at(broker, NOON + 5.5 * HOUR)
    assert outcomes(ticked) == [("ENQUEUED", NOON + n * HOUR) for n in range(1, 6)]
    ids = [run.task_id for run in history(broker, "report")]
    assert column(sql, "select id::text from horsies.tasks order by enqueued_at, id") == ids


def test_only_the_newest_max_catch_up_runs_are_caught_up(broker: PostgresBroker) -> None:
    store(broker, declare("report", HOURLY, catch_up_missed=True, max_catch_up_runs=2), now=NOON)
    assert outcomes(tick_at(broker, NOON + 5.5 * HOUR)) == [
        ("MISSED", NOON + HOUR),
        ("ENQUEUED", NOON + 4 * HOUR),
        ("ENQUEUED", NOON + 5 * HOUR),
    ]
    assert history(broker, "report")[0].last_slot_at == NOON + 3 * HOUR


def test_without_catch_up_only_slots_on_time_run(broker: PostgresBroker) -> None:
    store(broker, declare("report", HOURLY, max_catch_up_runs=0), now=NOON)
    assert outcomes(tick_at(broker, NOON + 3.5 * HOUR)) == [("MISSED", NOON + HOUR)]
    assert history(broker, "report")[0].last_slot_at == NOON + 3 * HOUR
    assert outcomes(tick_at(broker, NOON + 4 * HOUR + MINUTE / 2)) == [("ENQUEUED", NOON + 4 * HOUR)]
    assert outcomes(tick_at(broker, NOON + 6 * HOUR)) == [("MISSED", NOON + 5 * HOUR), ("ENQUEUED", NOON + 6 * HOUR)]


# -- overlap and jitter


def test_a_slot_is_skipped_while_the_last_run_is_live(broker: PostgresBroker) -> None:
    store(broker, declare("report", HOURLY, overlap="skip"), now=NOON)
    tick_at(broker, NOON + HOUR)
    assert outcomes(tick_at(broker, NOON + 2 * HOUR)) == [("SKIPPED", NOON + 2 * HOUR)]  # it waits
    (held,) = claim(broker)
    assert outcomes(tick_at(broker, NOON + 3 * HOUR)) == [("SKIPPED", NOON + 3 * HOUR)]  # it runs
    do(broker, finish_tasks(ME, [completed(held)]))
    assert outcomes(tick_at(broker, NOON + 4 * HOUR)) == [("ENQUEUED", NOON + 4 * HOUR)]
    assert [run.outcome for run in history(broker, "report")] == ["ENQUEUED", "SKIPPED", "SKIPPED", "ENQUEUED"]


def test_without_overlap_only_the_newest_slot_is_caught_up(broker: PostgresBroker) -> None:
    store(broker, declare("report", HOURLY, overlap="skip", catch_up_missed=True), now=NOON)
    assert outcomes(tick_at(broker, NOON + 3 * HOUR)) == [("MISSED", NOON + HOUR), ("ENQUEUED", NOON + 3 * HOUR)]


def test_jitter_delays_each_slot_by_a_repeatable_time_of_its_own(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    def due_in() -> float:
        (seconds,) = row(
            sql, "select extract(epoch from enqueued_at - sent_at)::float8 from horsies.tasks where not ready"
        )
        end_all_tasks(sql)
        return seconds

    store(broker, declare("report", HOURLY, jitter=1_800), now=NOON)
    delays: list[float] = []
    for n in (1, 2, 3):
        tick_at(broker, NOON + n * HOUR)
        delays.append(due_in())
    assert len({round(delay) for delay in delays}) == 3
    assert all(0 < delay <= 1_801 for delay in delays)
    sql.execute("update horsies.schedules set next_slot_at = %s", [NOON + HOUR])
    tick_at(broker, NOON + HOUR)
    assert abs(due_in() - delays[0]) < 1


def test_a_slot_that_is_later_than_its_jitter_runs_at_once(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    store(broker, declare("report", DailySchedule(time(13)), jitter=60), now=NOON)
    tick_at(broker, NOON + 2 * HOUR)
    assert row(sql, "select ready from horsies.tasks") == (True,)


# -- several schedulers


@pytest.mark.promise("T4")
def test_a_schedule_that_another_scheduler_has_locked_is_skipped(database: str, broker: PostgresBroker) -> None:
    store(broker, declare("report", HOURLY), declare("mail", HOURLY), now=NOON)
    with psycopg.connect(database) as other:
        other.execute("select from horsies.schedules where name = 'report' for update")
        assert [name for name, *_ in tick_at(broker, NOON + HOUR).decisions] == ["mail"]
        other.rollback()
    assert [name for name, *_ in tick_at(broker, NOON + HOUR).decisions] == ["report"]


@pytest.mark.promise("T4")
def test_a_late_decision_on_a_decided_slot_changes_nothing(
    database: str, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    store(broker, declare("report", HOURLY), now=NOON)
    with psycopg.connect(database, autocommit=True) as connection:
        late = Stepper(connection, tick(NOON + HOUR))
        late.until("record_decisions")
        connection.execute("rollback")  # it has lost its locks without noticing
        assert outcomes(tick_at(broker, NOON + HOUR)) == [("ENQUEUED", NOON + HOUR)]
        while late.step():
            pass
    assert row(sql, "select count(*) from horsies.tasks") == (1,)
    assert len(history(broker, "report")) == 1
    assert stored_row(sql, "report")["last_task_id"] == history(broker, "report")[0].task_id


def test_a_pause_during_a_tick_waits_and_then_takes_effect(
    database: str, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    store(broker, declare("report", HOURLY), now=NOON)
    with psycopg.connect(database, autocommit=True) as connection, ThreadPoolExecutor(1) as threads:
        ticking = Stepper(connection, tick(NOON + HOUR))
        ticking.until("record_decisions")
        pausing = threads.submit(broker.run, partial(pause_schedule, "report"))
        wait_until_blocked(sql, on=connection)
        while ticking.step():
            pass
        assert pausing.result()
    assert len(history(broker, "report")) == 1
    assert tick_at(broker, NOON + 2 * HOUR).decisions == []


IN_TRANSACTION = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null"
STATEMENTS = ["begin_tick", "lock_due_schedules", "record_decisions", "get_next_due"]


@pytest.mark.promise("T4")
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_after_a_lost_connection_the_slot_is_decided_exactly_once(
    broker: PostgresBroker, sql: psycopg.Connection, faults: Plant, statement: str, when: When
) -> None:
    """`record_decisions` is sent with the COMMIT: if the connection is lost after it, the outcome is unknown."""
    store(broker, declare("report", HOURLY), now=NOON)
    faults(statement, when, "drop")
    with pytest.raises(BrokerError, match="planted fault"):
        tick_at(broker, NOON + HOUR)
    # The server may take a moment to notice, and until then the rows are locked: a tick skips them.
    eventually(lambda: row(sql, IN_TRANSACTION) == (0,))
    again = tick_at(broker, NOON + HOUR)
    committed = (statement, when) in (("record_decisions", "after"), ("get_next_due", "after"))
    assert len(again.decisions) == (0 if committed else 1)
    assert slots_of(history(broker, "report")) == [NOON + HOUR]
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


def test_wherever_a_connection_is_cut_each_slot_is_decided_exactly_once(
    broker: PostgresBroker, proxy: Proxy, sql: psycopg.Connection
) -> None:
    """Cut it at every chunk of data, the COMMIT and its answer among them."""
    store(broker, declare("report", IntervalSchedule(minutes=1), catch_up_missed=True), now=NOON)
    config = PostgresConfig(database_url=proxy.url)
    slot, chunk, was_cut = NOON, 0, True
    while was_cut:
        slot, chunk = slot + MINUTE, chunk + 1
        session = DedicatedConnection(config, "tests")
        session.run(rows(TICK["get_tick_time"](now=None)))  # connect before the cut is set
        proxy.cut_at(chunk)
        with suppress(DriverError):
            session.run(tick(slot))
        was_cut = not proxy.disarm()
        session.close()
        tick_at(broker, slot)
    # The server may not have noticed yet that a tick was cut off, and may keep its locks.
    eventually(lambda: not (tick_at(broker, slot).next_due_s or 0) <= 0, what="nothing is left to do")
    assert chunk > 4
    assert slots_of(history(broker, "report")) == [NOON + n * MINUTE for n in range(1, chunk + 1)]
    assert row(sql, "select count(*), count(distinct id) from horsies.tasks") == (chunk, chunk)


# -- many schedules


@pytest.mark.promise("T4")
def test_ten_thousand_due_schedules_need_a_bounded_number_of_statements(
    database: str, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    """They have different tasks, patterns and zones, some have jitter, and some must not overlap."""
    zones, count = ["UTC", "Europe/Berlin", "Asia/Kolkata"], 10_000
    made = [
        declare(
            f"schedule {n}",
            CronSchedule(f"{n % 60} 12 * * *") if n % 2 else IntervalSchedule(days=1, seconds=n),
            terms=TaskOptions(f"task {n % 700}", "default", n % 5),
            timezone=zones[n % 3],
            jitter=n % 4,
            overlap="skip" if n % 7 else "allow",
        )
        for n in range(count)
    ]
    store(broker, *made, now=NOON)
    sql.execute("update horsies.schedules set next_slot_at = %s", [NOON + DAY])
    statements: list[str] = []
    is_full = True
    with psycopg.connect(database, autocommit=True) as connection:
        while is_full:
            ticking = Stepper(connection, tick(NOON + DAY))
            while True:
                statements += ticking.names
                if not ticking.step():
                    break
            assert ticking.result is not None
            is_full = ticking.result.is_full
    assert row(sql, "select count(*) from horsies.tasks") == (count,)
    assert row(sql, "select count(*) from horsies.schedules where next_slot_at > %s", NOON + DAY) == (count,)
    assert len(statements) <= 11 * 7


# -- schedules that cannot be decided


def test_a_schedule_that_cannot_be_read_is_skipped_and_reported(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    store(broker, declare("report", HOURLY), declare("odd", HOURLY), declare("moon", HOURLY), now=NOON)
    sql.execute("update horsies.schedules set timezone = 'Mars/Olympus' where name = 'odd'")
    sql.execute("""update horsies.schedules set pattern = '{"kind": "lunar"}' where name = 'moon'""")
    ticked = tick_at(broker, NOON + HOUR)
    assert [decision.name for decision in ticked.decisions] == ["report"]
    assert ticked.next_due_s == 3_600
    assert "Mars/Olympus" in ticked.unreadable["odd"]
    assert "lunar" in ticked.unreadable["moon"]
    assert tick_at(broker, NOON + HOUR, excluded=["odd", "moon"]).unreadable == {}


@pytest.mark.promise("D6")
def test_a_schedule_with_a_refused_task_does_not_block_others(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    store(broker, declare("a", HOURLY), declare("bad", HOURLY), declare("c", HOURLY), now=NOON)
    sql.execute("update horsies.schedules set queue_name = 'bad' where name = 'bad'")
    sql.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$; "
        "create trigger refuse before insert on horsies.tasks for each row when (new.queue_name = 'bad') execute function refuse()"
    )
    ticked = tick_at(broker, NOON + HOUR)
    assert ticked.failed == {"bad": "not this one"}
    assert sorted(decision.name for decision in ticked.decisions) == ["a", "c"]
    assert row(sql, "select count(*) from horsies.tasks") == (2,)
    assert tick_at(broker, NOON + HOUR, excluded=["bad"]).failed == {}
    sql.execute("drop trigger refuse on horsies.tasks")
    assert [decision.name for decision in tick_at(broker, NOON + HOUR).decisions] == ["bad"]
