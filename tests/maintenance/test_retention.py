"""The maintenance leader applies retention on its own, as long as it is the leader."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg
import pytest

from horsies import RetentionConfig
from horsies.db.broker import PostgresBroker
from horsies.maintenance.retention import DEFAULT_LIMITS, RetentionRunner
from horsies.model.config import PostgresConfig
from tests.fixtures.eventually import eventually
from tests.fixtures.faults import Plant
from tests.fixtures.journey import column
from tests.fixtures.roles import PlainUser
from tests.fixtures.workers import StartWorker
from tests.maintenance.aged_rows import ago, days_of, finish, make_day, places, retained
from tests.recovery.steps import settings

CLUSTER = "tests.apps.cluster:app"
OFTEN = RetentionConfig(every=timedelta(seconds=1))


@asynccontextmanager
async def as_leader(database: str) -> AsyncGenerator[RetentionRunner]:
    async with (
        asyncio.TaskGroup() as group,
        RetentionRunner(group, database=PostgresConfig(database_url=database), retention=OFTEN) as runner,
    ):
        runner.is_leader.set()
        yield runner


async def until(sql: psycopg.Connection, days: list[object]) -> None:
    await asyncio.to_thread(eventually, lambda: days_of(sql) == days, seen=lambda: days_of(sql))


def test_a_worker_that_runs_for_long_prepares_days_and_drops_them(worker: StartWorker, sql: psycopg.Connection) -> None:
    ahead = days_of(sql)
    started = worker(CLUSTER, env=settings(retention={"every": 1, "finished": 7 * 86_400}))
    for name in ahead:
        sql.execute(f"drop table horsies.{name}".encode())
    make_day(sql, 9)
    finish(sql, ago(9))
    eventually(lambda: days_of(sql) == ahead, 20, seen=lambda: days_of(sql))
    assert started.terminate() == 0


async def test_a_duty_that_fails_does_not_keep_the_others_from_being_done(
    database: str, sql: psycopg.Connection, faults: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = days_of(sql)
    make_day(sql, 9)
    faults("get_missing_partitions", "before", "error")
    async with as_leader(database):
        await until(sql, ahead)
    assert "maintenance: could not apply retention to days ahead" in caplog.text


async def test_a_lost_connection_is_made_anew(database: str, sql: psycopg.Connection, faults: Plant) -> None:
    ahead = days_of(sql)
    make_day(sql, 9)
    faults("get_old_partitions", "before", "drop")
    async with as_leader(database):
        await until(sql, ahead)


async def test_nothing_is_done_by_one_who_is_not_the_keeper(database: str, sql: psycopg.Connection) -> None:
    ahead = days_of(sql)
    old = make_day(sql, 9)
    async with as_leader(database) as runner:
        await until(sql, ahead)
        runner.is_leader.clear()
        make_day(sql, 9)
        await asyncio.sleep(1.5)  # longer than a look
        assert days_of(sql) == [old, *ahead]
        runner.is_leader.set()
        await until(sql, ahead)


async def test_for_a_user_who_may_not_create_partitions_the_log_says_once_what_to_grant(
    database: str, sql: psycopg.Connection, plain_user: PlainUser, caplog: pytest.LogCaptureFixture
) -> None:
    finish(sql, ago(9))
    sql.execute(f"grant usage on schema horsies to {plain_user.name}".encode())
    sql.execute(f"grant select, insert, update, delete on all tables in schema horsies to {plain_user.name}".encode())
    with caplog.at_level(logging.INFO, "horsies"):
        async with as_leader(plain_user.url(database)):
            await asyncio.to_thread(eventually, lambda: not places(sql))
            finish(sql, ago(9))
            await asyncio.to_thread(eventually, lambda: not places(sql), what="a second look")
    warnings = [
        record.getMessage() for record in caplog.records if "may not create and drop the partitions" in record.message
    ]
    assert len(warnings) == 1
    assert f"grant that role to {plain_user.name}" in warnings[0]


def test_health_snapshots_go_by_their_age(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    sql.execute(
        "insert into horsies.worker_states (worker_id, snapshot_at, hostname, pid, processes, concurrency, queues, tasks_running, "
        "tasks_claimed, memory_usage_mb, children_memory_mb, cpu_percent, children_cpu_percent, worker_started_at) "
        "select gen_random_uuid(), now() - age, 'h', 1, 1, 1, '{}', 0, 0, 0, 0, 0, 0, now() from ("
        "select interval '25 hours' from generate_series(1, %s) union all select interval '23 hours') as snapshots (age)",
        [2 * DEFAULT_LIMITS.rows],
    )
    assert retained(broker)["worker states"].count == 2 * DEFAULT_LIMITS.rows
    assert column(sql, "select count(*) from horsies.worker_states") == [1]


def test_the_history_of_schedules_goes_by_its_age(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    sql.execute(
        "insert into horsies.schedule_runs (schedule_name, outcome, decided_at) "
        "select 'nightly', 'ENQUEUED', now() - age from ("
        "select interval '31 days' from generate_series(1, %s) union all select interval '29 days') as runs (age)",
        [2 * DEFAULT_LIMITS.rows],
    )
    assert retained(broker)["schedule runs"].count == 2 * DEFAULT_LIMITS.rows
    assert column(sql, "select count(*) from horsies.schedule_runs") == [1]
