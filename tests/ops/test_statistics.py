"""Time series, counts and error groups: exact, from minutes that were rolled up and from what has ended since, and never by reading all of `finished`."""

import random
from collections import Counter
from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from horsies import AppConfig, Horsies, TaskError
from horsies.db.broker import PostgresBroker
from horsies.db.statement import Query
from horsies.maintenance.minutes import SQL as ROLL_UP
from horsies.model.codec import encode_error
from horsies.model.config import PostgresConfig
from horsies.model.status import TaskStatus
from horsies.ops import statistics
from horsies.ops.api import Ops
from horsies.ops.statistics import TotalsOrder, get_percentile
from horsies.tasks.finish import finish_tasks
from tests.fixtures.journey import ME, claim, do, failed, send_new
from tests.maintenance.test_minutes import MINUTE, current, end_task, roll_up

FINAL = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")


@pytest.fixture
def ops(database: str, broker: PostgresBroker) -> Generator[Ops]:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=database)))
    yield app.ops
    app.close()


def shown(ops: Ops, minutes: int = 60, **filters: str) -> dict[datetime, tuple[int, ...]]:
    """The points that count anything."""
    points = ops.time_series(minutes=minutes, **filters)
    assert [point.minute - points[0].minute for point in points] == [number * MINUTE for number in range(minutes)]
    found = {point.minute: (point.completed, point.failed, point.cancelled, point.expired) for point in points}
    return {minute: counts for minute, counts in found.items() if any(counts)}


@pytest.mark.parametrize("rolls_up", [0, 1, 2], ids=["never rolled up", "rolled up before", "rolled up"])
def test_the_counts_are_those_of_the_rows(
    rolls_up: int, ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    now, dice = current(sql), random.Random(5)  # noqa: S311 - no secret
    ended: list[tuple[datetime, str, str, str]] = []

    def end(moments: list[datetime]) -> None:
        for at in moments:
            queue, name, status = dice.choice("ab"), dice.choice("xyz"), dice.choice(FINAL)
            end_task(sql, at, queue=queue, name=name, status=status)
            ended.append((at.replace(second=0, microsecond=0), queue, name, status))

    end([now - dice.uniform(3, 120) * MINUTE for _ in range(200)])
    if rolls_up >= 1:
        roll_up(broker)
        sql.execute("update horsies.minutes_until set minute = minute - interval '2 minutes'")
    end([now - dice.uniform(0, 2) * MINUTE for _ in range(50)] + [now])
    if rolls_up >= 2:
        roll_up(broker)
    choices: list[dict[str, Any]] = [{}, {"queue_name": "a"}, {"task_name": "y"}, {"queue_name": "b", "task_name": "z"}]
    for filters in choices:
        expected: dict[datetime, Counter[str]] = {}
        for minute, queue, name, status in ended:
            wanted = filters.get("queue_name", queue) == queue and filters.get("task_name", name) == name
            if wanted and minute > now - 60 * MINUTE:
                expected.setdefault(minute, Counter())[status] += 1
        assert shown(ops, **filters) == {
            minute: tuple(counts[status] for status in FINAL) for minute, counts in expected.items()
        }
        total = sum(expected.values(), Counter[str]())
        assert ops.count_ended(**filters) == {TaskStatus(status): total[status] for status in FINAL}


def test_the_series_is_as_long_as_asked_for_and_at_most_a_day(ops: Ops, sql: psycopg.Connection) -> None:
    now = current(sql)
    assert [point.minute for point in ops.time_series(minutes=1)] == [now]
    assert len(ops.time_series(minutes=10**9)) == 1440
    assert len(ops.time_series(minutes=-1)) == 1
    assert all(point.is_complete for point in ops.time_series())


@pytest.mark.parametrize("source", ["minutes", "finished"])
def test_percentiles_are_within_the_limits_of_their_bucket(
    source: str, ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    at = current(sql) - MINUTE
    for number in range(1, 101):
        end_task(sql, at, waited=timedelta(milliseconds=number), ran=timedelta(seconds=number), attempts=2)
    if source == "minutes":
        roll_up(broker)
    (point,) = [point for point in ops.time_series() if point.minute == at]
    values = (point.wait_p50_ms, point.wait_p95_ms, point.run_p50_ms, point.run_p95_ms)
    for value, exact in zip(values, (50, 95, 50_000, 95_000), strict=True):
        assert value is not None
        assert exact / 2 < value < exact * 2
    assert point.retried == 100


@pytest.mark.parametrize(
    ("histogram", "share", "expected"),
    [
        (None, 0.5, None),
        ([0, 0, 0], 0.5, None),
        ([4, 0, 0], 0.5, 0.5),
        ([0, 4, 0], 0.5, 1.5),
        ([1, 0, 4, 0], 0.95, 2 + 2 * 3.75 / 4),
        ([0] * 26 + [3], 0.5, 2.0**25),
    ],
)
def test_a_percentile_is_interpolated(histogram: list[int] | None, share: float, expected: float | None) -> None:
    assert get_percentile(histogram, share) == expected


def test_if_too_much_has_ended_lately_the_points_say_so(
    ops: Ops, sql: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "MAX_TAIL", 3)
    monkeypatch.setattr(statistics, "MAX_FAILURES", 3)
    now = current(sql)
    for number in (0, 1, 2, 2, 3):
        end_task(sql, now - number * MINUTE, status="FAILED")
    complete = {point.minute: point.is_complete for point in ops.time_series(minutes=5)}
    assert [complete[now - number * MINUTE] for number in range(5)] == [True, True, False, False, False]
    assert [(group.count, group.is_complete) for group in ops.error_groups()] == [(3, False)]


def test_odd_rows_do_not_stop_a_read(ops: Ops, sql: psycopg.Connection) -> None:
    now = current(sql)
    end_task(sql, now, waited=None, status="CANCELLED")
    for value in ("infinity", "-infinity", "4713-01-02 BC", "294276-12-31"):
        end_task(sql, value)
        for name in ("enqueued_at", "started_at"):
            task_id = end_task(sql, now)
            sql.execute(f"update horsies.finished set {name} = %s where id = %s".encode(), [value, task_id])
    for error in ("null", "[1]", '{"message": "nul \\u0000 here"}', None):
        end_task(sql, now, status="FAILED", error=error, attempts=2**31 - 1)
    assert shown(ops) == {now: (8, 4, 1, 0)}
    assert {group.message: group.count for group in ops.error_groups()} == {"": 3, "nul # here": 1}


def test_errors_are_grouped_over_all_minutes(ops: Ops, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    now = current(sql)
    times = [now - timedelta(hours=23), now - 5 * MINUTE, now - MINUTE, now]
    rolled = [
        end_task(sql, at, status="FAILED", code="NO", error=f'{{"message": "no {at:%f%H%M}"}}') for at in times[:2]
    ]
    roll_up(broker)
    live = [end_task(sql, at, status="FAILED", code="NO", error='{"message": "no 7"}') for at in times[3:]]
    other = end_task(sql, now - MINUTE, name="mail", status="FAILED")
    sql.execute("update horsies.minutes_until set minute = %s", [now - MINUTE])
    first, second = ops.error_groups()
    assert (first.task_name, first.error_code, first.message, first.count) == ("pack", "NO", "no #", 3)
    assert (first.first_at, first.last_at, first.example_id) == (times[0], times[3], live[0])
    assert (second.task_name, second.error_code, second.message, second.example_id) == ("mail", "", "", other)
    assert ops.error_groups(limit=1) == [first]
    assert ops.error_groups(task_name="mail") == [second]
    (lately,) = ops.error_groups(hours=1, task_name="pack")
    assert (lately.count, lately.first_at) == (2, times[1])
    assert first.is_complete
    assert rolled


def test_a_group_has_the_first_line_as_it_was_written(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    texts = {
        'no column "name" at 7\nsecond line': 'no column "name" at #',
        "C:\\new\\temp is not a folder": "C:\\new\\temp is not a folder",
        "first\r\nsecond": "first",
        "rot \x1b[31m \u202e é ß": "rot #[#m \u202e é ß",
    }
    for text in texts:
        error = encode_error(TaskError(error_code="NO", message=text))
        end_task(sql, current(sql) - MINUTE, status="FAILED", code="NO", error=error)
    live = ops.error_groups()
    assert {group.message for group in live} == {*texts.values()}
    roll_up(broker)
    groups = ops.error_groups()
    assert [group.id for group in groups] == [group.id for group in live]
    assert [ops.count_tasks(group.to_filter()) for group in groups] == [1] * len(texts)


@pytest.mark.parametrize("source", ["minutes", "finished"])
def test_totals_are_by_queue_and_by_task(
    source: str, ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    at, second = current(sql) - 2 * MINUTE, timedelta(seconds=1)
    for number in range(10):
        end_task(sql, at, queue="a", name="quick", ran=10 * second / 1000)
        end_task(sql, at + number * second, queue="a", name="broken", status="FAILED", ran=second / 100)
    for _ in range(3):
        end_task(sql, at + MINUTE, queue="b", name="slow", ran=30 * second, attempts=2)
    if source == "minutes":
        roll_up(broker)
    by_queue = {each.name: each for each in ops.queue_totals()}
    assert {name: (each.completed, each.failed, each.retried) for name, each in by_queue.items()} == {
        "a": (10, 10, 0), "b": (3, 0, 3)
    }  # fmt: skip
    slow = by_queue["b"]
    assert slow.ended == 3
    assert slow.run_p95_ms is not None
    assert 15_000 < slow.run_p95_ms < 60_000
    assert 45 < slow.run_total_s < 180
    assert slow.is_complete
    assert {each.name for each in ops.task_totals(queue_name="a")} == {"quick", "broken"}
    first = {order: ops.task_totals(order=order)[0].name for order in TotalsOrder}
    assert first == {
        TotalsOrder.COUNT: "broken", TotalsOrder.FAILURES: "broken", TotalsOrder.DURATION: "slow", TotalsOrder.RUN_TOTAL: "slow"
    }  # fmt: skip
    assert ops.queue_totals(minutes=1) == []


async def test_a_failed_task_is_seen_at_once_and_a_retried_one_not_any_more(ops: Ops, broker: PostgresBroker) -> None:
    send_new(broker, 2)
    held = claim(broker, 2)
    do(broker, finish_tasks(ME, [failed(one) for one in held]))
    assert (await ops.count_ended_async())[TaskStatus.FAILED] == 2
    (group,) = await ops.error_groups_async()
    assert (group.task_name, group.error_code, group.count) == ("add", "BROKEN", 2)
    ops.retry_tasks([held[0].id])
    assert (await ops.time_series_async(minutes=2))[0].completed == 0
    assert ops.count_ended()[TaskStatus.FAILED] == 1
    await ops.broker.close_async()


def plan(sql: psycopg.Connection, query: Query) -> str:
    sql.execute("set enable_seqscan = off")
    text = query.statement.for_schema("horsies").rstrip(b";")
    return "\n".join(line for (line,) in sql.execute(b"explain " + text, query.params))


def test_only_the_wanted_minutes_of_finished_are_read(sql: psycopg.Connection) -> None:
    now = current(sql)
    sql.execute("insert into horsies.minutes_until values (true, %s)", [now])
    for query in (
        statistics.SQL["get_time_series"](minutes=60, queue_name=None, task_name="x", by_queue=False, limit=10),
        statistics.SQL["get_totals"](minutes=60, by_queue=True, queue_name=None, limit=10),
        statistics.SQL["get_error_groups"](minutes=60, task_name="x", limit=10, tail=10, sensitive=[]),
        ROLL_UP["get_next_minute"](again=1),
        ROLL_UP["insert_task_minutes"](minute=now, groups=10),
        ROLL_UP["insert_error_minutes"](minute=now, groups=10, messages=10),
    ):
        found = plan(sql, query)
        scans = found.count("on finished_") - found.count("SubPlan")
        assert scans > 0
        assert "Seq Scan on finished" not in found
        assert found.count("Index Cond: (((finished_at AT TIME ZONE 'UTC'::text) >= ") >= scans, found
