"""Statistics by minute: each minute is counted exactly, once, whatever the rows contain, and if several processes count at the same time."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.maintenance import minutes
from horsies.maintenance.minutes import MinuteRunner, roll_up_minutes
from horsies.model.config import PostgresConfig
from horsies.model.errors import BrokerError
from tests.fixtures.eventually import eventually
from tests.fixtures.faults import Plant
from tests.fixtures.journey import column, row
from tests.maintenance.aged_rows import retained

MINUTE = timedelta(minutes=1)
COUNTS = "select minute, queue_name, task_name, completed, failed, cancelled, expired, retried from horsies.task_minutes order by 1, 2, 3"
ERRORS = "select task_name, error_code, message, count, example_id::text from horsies.error_minutes order by 1, 2, 3"


def current(sql: psycopg.Connection) -> datetime:
    """Return the current minute. Waits for the next one if this one is nearly over, so that it stays the current one for the test."""
    eventually(lambda: row(sql, "select extract(second from clock_timestamp()) < 50")[0], 15)
    return row(sql, "select date_trunc('minute', clock_timestamp())")[0]


def end_task(  # noqa: PLR0913 - the columns of a row
    sql: psycopg.Connection,
    at: datetime | str,
    *,
    name: str = "pack",
    queue: str = "default",
    status: str = "COMPLETED",
    error: str | None = None,
    code: str | None = None,
    attempts: int = 1,
    waited: timedelta | None = timedelta(seconds=1),
    ran: timedelta = timedelta(seconds=1),
) -> str:
    """Insert a task that ended then."""
    started = None if waited is None or isinstance(at, str) else at - ran
    enqueued = at if started is None or waited is None else started - waited
    (task_id,) = row(
        sql,
        "insert into horsies.finished (id, task_name, queue_name, priority, status, args, error_code, error, sent_at, enqueued_at, "
        "attempts, claim_no, started_at, finished_at) "
        "values (gen_random_uuid(), %s, %s, 100, %s, '{}', %s, %s, now(), %s, %s, 1, %s, %s) returning id::text",
        name, queue, status, code, error, enqueued, attempts, started, at,
    )  # fmt: skip
    return task_id


def roll_up(broker: PostgresBroker) -> float:
    return broker.run(roll_up_minutes)


def counts(sql: psycopg.Connection) -> list[tuple[object, ...]]:
    return sql.execute(COUNTS.encode()).fetchall()


def test_each_minute_that_is_over_is_counted_by_queue_and_task(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    now = current(sql)
    for status in ("COMPLETED", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED"):
        end_task(sql, now - MINUTE, status=status, attempts=2)
    end_task(sql, now - timedelta(microseconds=1), queue="fast")
    end_task(sql, now - 5 * MINUTE, name="mail")
    end_task(sql, now)
    next_s = roll_up(broker)
    assert counts(sql) == [
        (now - 5 * MINUTE, "default", "mail", 1, 0, 0, 0, 0),
        (now - MINUTE, "default", "pack", 2, 1, 1, 1, 5),
        (now - MINUTE, "fast", "pack", 1, 0, 0, 0, 0),
    ]
    assert column(sql, "select minute from horsies.minutes_until") == [now]
    assert 2 < next_s < 63, "the next one is when this minute is over"


def test_durations_are_counted_by_powers_of_two(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    at = current(sql) - MINUTE
    milliseconds = [0.999, 1, 1.999, 2, 1024, 33_554_431, 33_554_432, 90_000_000]
    for each in milliseconds:
        end_task(sql, at, waited=timedelta(0), ran=timedelta(milliseconds=each))
    roll_up(broker)
    waited, ran = row(sql, "select waited, ran from horsies.task_minutes")
    assert waited == [8] + [0] * 26
    assert {bucket: count for bucket, count in enumerate(ran) if count} == {0: 1, 1: 2, 2: 1, 11: 1, 25: 1, 26: 2}
    assert len(ran) == 27


def test_failures_are_grouped_by_their_masked_message(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    at = current(sql) - MINUTE
    error = '{"error_code": "NO", "message": "order %s of %s is gone\\nTraceback", "data": null}'
    newest = ""
    for number in range(3):
        newest = end_task(
            sql,
            at + number * timedelta(seconds=1),
            status="FAILED",
            code="NO",
            error=error % (number, UUID(int=number)),
        )
    other = end_task(sql, at, status="FAILED", code="NO", error=error.replace("gone", "late") % (1, 2))
    end_task(sql, at)
    roll_up(broker)
    assert sql.execute(ERRORS.encode()).fetchall() == [
        ("pack", "NO", "order # of # is gone", 3, newest),
        ("pack", "NO", "order # of # is late", 1, other),
    ]
    seconds = "select extract(epoch from last_at - first_at)::float from horsies.error_minutes order by count"
    assert column(sql, seconds) == [0, 2]


def test_odd_rows_are_counted_and_stop_nothing(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    now = current(sql)
    at = now - MINUTE
    end_task(sql, at, waited=None)
    end_task(sql, at, waited=timedelta(seconds=-5), ran=timedelta(seconds=-5))
    end_task(sql, at, attempts=-(2**31))
    end_task(sql, at, attempts=2**31 - 1)
    for column_name in ("enqueued_at", "started_at"):
        for value in ("infinity", "-infinity", "4713-01-02 BC", "294276-12-31"):
            task_id = end_task(sql, at)
            sql.execute(f"update horsies.finished set {column_name} = %s where id = %s".encode(), [value, task_id])
    for error in (
        "null",
        "[]",
        '"text"',
        '{"message": 5}',
        '{"message": "nul \\u0000 here"}',
        None,
        '{"message": "' + "x" * 9_000 + '"}',
    ):
        end_task(sql, at, status="FAILED", error=error)
    for letter in "äb":
        end_task(sql, at, status="FAILED", name=letter * 5_000, queue=letter * 5_000, code=letter * 5_000)
    end_task(sql, "infinity")
    end_task(sql, "-infinity")
    roll_up(broker)
    assert column(sql, "select sum(completed + failed) from horsies.task_minutes") == [4 + 8 + 7 + 2]
    assert column(sql, "select sum(count) from horsies.error_minutes") == [9]
    assert column(sql, "select retried from horsies.task_minutes where task_name = 'pack'") == [999]
    assert "nul \\u0000 here" not in column(sql, "select message from horsies.error_minutes")
    assert "nul # here" in column(sql, "select message from horsies.error_minutes")
    assert column(sql, "select minute from horsies.minutes_until") == [now]


def test_an_ending_that_is_committed_late_is_counted_with_the_next_minute(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    now = current(sql)
    end_task(sql, now - 2 * MINUTE)
    roll_up(broker)
    sql.execute("update horsies.minutes_until set minute = minute - interval '1 minute'")  # as it was a minute ago
    end_task(sql, now - 2 * MINUTE)
    end_task(sql, now - MINUTE)
    roll_up(broker)
    roll_up(broker)
    assert [(minute, completed) for minute, _, _, completed, *_ in counts(sql)] == [(now - 2 * MINUTE, 2), (now - MINUTE, 1)]  # fmt: skip


def test_nothing_is_computed_again_while_the_minute_lasts(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    now = current(sql)
    end_task(sql, now - MINUTE)
    roll_up(broker)
    before = column(sql, "select xmin::text from horsies.task_minutes")
    roll_up(broker)
    assert column(sql, "select xmin::text from horsies.task_minutes") == before


def test_tasks_that_are_deleted_later_still_count(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    now = current(sql)
    end_task(sql, now - 3 * MINUTE)
    roll_up(broker)
    sql.execute("delete from horsies.finished")
    sql.execute("update horsies.minutes_until set minute = minute - interval '1 minute'")
    roll_up(broker)
    assert [(minute, completed) for minute, _, _, completed, *_ in counts(sql)] == [(now - 3 * MINUTE, 1)]


def test_while_another_leader_computes_nothing_is_done(
    broker: PostgresBroker, sql: psycopg.Connection, database: str
) -> None:
    now = current(sql)
    end_task(sql, now - MINUTE)
    roll_up(broker)
    sql.execute("update horsies.minutes_until set minute = minute - interval '10 minutes'")
    sql.execute("delete from horsies.task_minutes")
    with psycopg.connect(database) as other:
        other.execute("select from horsies.minutes_until for update")
        roll_up(broker)
        assert counts(sql) == []
    roll_up(broker)
    assert len(counts(sql)) == 1


async def test_two_leaders_at_once_count_everything_once(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    now = current(sql)
    for number in range(1, 41):
        end_task(sql, now - number * MINUTE, status="FAILED", error='{"message": "no"}')
    await asyncio.gather(*(asyncio.to_thread(roll_up, broker) for _ in range(4)))
    roll_up(broker)
    assert [(minute, failed) for minute, _, _, _, failed, *_ in counts(sql)] == [
        (now - number * MINUTE, 1) for number in range(40, 0, -1)
    ]
    assert column(sql, "select sum(count) from horsies.error_minutes") == [40]


def test_a_leader_that_was_away_continues_in_bounded_steps(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    now = current(sql)
    sql.execute("insert into horsies.minutes_until values (true, %s)", [now - timedelta(hours=50)])
    for hours in (30, 23, 5):
        end_task(sql, now - timedelta(hours=hours))
    assert broker.run(lambda: roll_up_minutes(1)) == 0, "there is more to do"
    assert [minute for minute, *_ in counts(sql)] == [now - timedelta(hours=23)]
    roll_up(broker)
    assert [minute for minute, *_ in counts(sql)] == [now - timedelta(hours=23), now - timedelta(hours=5)]


@pytest.mark.parametrize("stored", ["infinity", "-infinity", "2100-01-01 00:00:17+00"])
def test_a_mark_that_cannot_be_right_is_corrected(stored: str, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    now = current(sql)
    sql.execute("insert into horsies.minutes_until values (true, %s)", [stored])
    end_task(sql, now - MINUTE)
    roll_up(broker)
    assert column(sql, "select minute from horsies.minutes_until") == [now]
    assert len(counts(sql)) == 1


def test_groups_beyond_the_limit_are_counted_together(
    broker: PostgresBroker, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minutes, "TASK_GROUPS", 1)
    monkeypatch.setattr(minutes, "ERROR_GROUPS", 1)
    monkeypatch.setattr(minutes, "MAX_MESSAGES", 4)
    at = current(sql) - MINUTE
    for name in ("often", "often", "once", "seldom"):
        newest = end_task(sql, at, name=name, status="FAILED", code="NO", error='{"message": "no"}')
    end_task(sql, at + timedelta(seconds=1), name="often", status="FAILED", code="NO", error='{"message": "no"}')
    roll_up(broker)
    assert [(queue, name, failed) for _, queue, name, _, failed, *_ in counts(sql)] == [
        ("", "", 2),
        ("default", "often", 3),
    ]
    groups = sql.execute(
        "select task_name, error_code, message, count from horsies.error_minutes order by count"
    ).fetchall()
    assert groups == [("often", "NO", "no", 2), ("", "", "", 3)], "the message of the last failure was not read"
    assert newest


def test_a_minute_that_cannot_be_computed_does_not_stop_the_next_one(
    broker: PostgresBroker, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    now = current(sql)
    end_task(sql, now - 3 * MINUTE, name="odd")
    end_task(sql, now - MINUTE)
    sql.execute("alter table horsies.task_minutes add check (task_name <> 'odd')")
    with caplog.at_level(logging.WARNING, "horsies"):
        roll_up(broker)
    assert [minute for minute, *_ in counts(sql)] == [now - MINUTE]
    assert "the statistics of" in caplog.text


@pytest.mark.parametrize("statement", ["insert_error_minutes", "commit_minute"])
def test_a_lost_connection_leaves_no_half_minute(
    statement: str, broker: PostgresBroker, sql: psycopg.Connection, faults: Plant
) -> None:
    end_task(sql, current(sql) - MINUTE, status="FAILED", error='{"message": "no"}')
    faults(statement, "before", "drop")
    with pytest.raises(BrokerError):
        roll_up(broker)
    assert counts(sql) == []
    # Waits until the server has noticed, and the lock is free.
    sql.execute("select from horsies.minutes_until for update")
    roll_up(broker)
    assert (len(counts(sql)), len(sql.execute(ERRORS.encode()).fetchall())) == (1, 1)


def test_old_minutes_are_deleted(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    now = current(sql)
    for hours in (26, 24):
        sql.execute(
            "insert into horsies.task_minutes values (%s, 'q', 't', 1, 0, 0, 0, 0, array_fill(0, array[27]), array_fill(0, array[27]))",
            [now - timedelta(hours=hours)],
        )
        sql.execute(
            "insert into horsies.error_minutes values (%s, 't', '', '', 1, now(), now(), gen_random_uuid())",
            [now - timedelta(hours=hours)],
        )
    sql.execute("insert into horsies.minutes_until values (true, %s)", [now - MINUTE])
    roll_up(broker)
    assert column(sql, "select minute from horsies.task_minutes") == [now - timedelta(hours=24)]
    assert column(sql, "select minute from horsies.error_minutes") == [now - timedelta(hours=24)]


async def test_the_leader_computes_on_its_own(
    database: str, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minutes, "FIRST_S", 0.01)
    end_task(sql, datetime.now(UTC) - 2 * MINUTE)
    async with (
        asyncio.TaskGroup() as group,
        MinuteRunner(group, database=PostgresConfig(database_url=database)) as runner,
    ):
        await asyncio.sleep(0.1)
        assert counts(sql) == [], "it is not the leader"
        runner.is_leader.set()
        await asyncio.to_thread(eventually, lambda: len(counts(sql)) == 1)


def test_logs_dead_workers_and_the_audit_are_deleted_when_they_are_old(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    sql.execute(
        "insert into horsies.attempt_logs (task_id, claim_no, attempt, records, stored_at) "
        "select '00000000-0000-4000-8000-00000000000a', n, n, '[]', now() - n * interval '5 days' from generate_series(0, 3) as n"
    )
    sql.execute(
        "insert into horsies.dead_workers select gen_random_uuid(), 'h', 1, null, '1', '{}', now(), now(), now() - age, 0, '{}' "
        "from unnest('{23 hours, 25 hours}'::interval[]) as age"
    )
    sql.execute(
        "insert into horsies.audit (at, actor, action, target) "
        "select now() - age, 'a', age::text, 't' from unnest('{91 days, 89 days}'::interval[]) as age"
    )
    done = retained(broker)
    assert [done[name].count for name in ("logs of attempts", "dead workers", "entries of the audit")] == [2, 1, 1]
    assert column(sql, "select claim_no from horsies.attempt_logs order by 1") == [0, 1]
    assert column(sql, "select action from horsies.audit") == ["89 days"]
