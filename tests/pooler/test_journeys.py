"""Everything that a worker does, with PgBouncer in transaction mode between it and the database."""

import signal
from pathlib import Path

import psycopg
import pytest

from horsies.db.waiter import WaiterTimings
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.pgbouncer import PgBouncer, StartPgBouncer
from tests.fixtures.workers import StartWorker
from tests.pooler.conftest import MakePooled, Pooled
from tests.recovery.steps import (
    CLUSTER,
    each_ended_once,
    held_intervals,
    insert_spans,
    most_at_once,
    notes,
    settings,
)
from tests.worker.steps import PATIENCE_MS, begun, insert_lines, numbers, statuses, wait_until_ended

ONLY_NOTIFICATIONS = {"notify_poll_interval_ms": 300_000}
POLLING = {"notify_poll_interval_ms": 1_000}
NOT_LISTENING = "LISTEN does not work through a transaction pooler"
NEVER_POLLS = WaiterTimings(poll_s=600.0)  # within the time of a test; still polls if LISTEN does not work


def every_ending(pooled: Pooled) -> None:
    assert pooled.result("add", 1, 2).unwrap() == 3
    assert pooled.result("echo_async", "x" * 100_000).unwrap() == "x" * 100_000
    assert pooled.result("raise_error", "no").unwrap_err().error_code == "UNHANDLED_ERROR"
    assert pooled.result("kill_self").unwrap_err().error_code == "WORKER_CRASHED"


def test_with_a_listen_url_workers_and_waiters_are_woken_by_notification(
    pgbouncer: StartPgBouncer, pooled: MakePooled, database: str
) -> None:
    pooler = pgbouncer(server_round_robin=1, server_reset_query_always=1)  # whatever it does between two transactions
    app = pooled(pooler.url, database, resilience=ONLY_NOTIFICATIONS)
    app.app.broker.waiter_timings = NEVER_POLLS
    worker = app.worker(processes=2)
    every_ending(app)
    assert not any("WARNING" in line and "LISTEN" in line for line in worker.logs)


def test_without_a_listen_url_they_poll_and_each_process_logs_it_once(
    pgbouncer: StartPgBouncer, pooled: MakePooled, caplog: pytest.LogCaptureFixture
) -> None:
    app = pooled(pgbouncer().url, resilience=POLLING)
    app.app.broker.waiter_timings = NEVER_POLLS
    worker = app.worker(processes=2)
    worker.wait_for_log(f"{NOT_LISTENING}; polling instead. Set listen_url to a direct connection")
    every_ending(app)
    assert worker.terminate() == 0
    assert len([line for line in worker.logs if NOT_LISTENING in line]) == 1
    assert len([record for record in caplog.records if NOT_LISTENING in record.getMessage()]) == 1
    assert not any("ERROR" in line for line in worker.logs)


async def test_asyncio_callers_poll_as_well(pgbouncer: StartPgBouncer, pooled: MakePooled) -> None:
    app = pooled(pgbouncer().url, resilience=POLLING)
    app.app.broker.waiter_timings = NEVER_POLLS
    app.worker()
    handle = await app.app.tasks["add"].send_async(2, 3)
    assert (await handle.get_async(PATIENCE_MS)).unwrap() == 5
    await app.app.close_async()


def test_a_direct_worker_serves_producers_behind_the_pooler(
    pgbouncer: StartPgBouncer, pooled: MakePooled, worker: StartWorker
) -> None:
    app = pooled(pgbouncer(default_pool_size=1).url)
    app.app.broker.waiter_timings = NEVER_POLLS
    worker(CLUSTER, env=settings(resilience=ONLY_NOTIFICATIONS))
    assert app.result("add", 1, 2).unwrap() == 3


def test_a_task_sends_another_through_the_pooler(
    pgbouncer: StartPgBouncer, pooled: MakePooled, database: str, sql: psycopg.Connection
) -> None:
    app = pooled(pgbouncer().url, database)
    app.worker()
    assert app.result("send_add", 4, 5).is_ok()
    assert wait_until_ended(sql, 2) == {"COMPLETED": 2}


def test_caps_hold_across_workers_that_share_two_sessions(
    pgbouncer: StartPgBouncer, pooled: MakePooled, database: str, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Each batch uses one session at a time, so there is no deadlock however few sessions there are."""
    app = pooled(pgbouncer(default_pool_size=2).url, database, cluster_wide_cap=3)
    for _ in range(2):
        app.worker(processes=2, options=("--max-tasks-per-child=0", "--concurrency=2"))
    insert_spans(sql, tmp_path / "log", 60, 0.02)
    assert wait_until_ended(sql, 60) == {"COMPLETED": 60}
    each_ended_once(sql, 60)
    assert most_at_once(held_intervals(sql)) == 3


def test_a_single_session_serves_several_workers(
    pgbouncer: StartPgBouncer, pooled: MakePooled, sql: psycopg.Connection, tmp_path: Path
) -> None:
    app = pooled(pgbouncer(default_pool_size=1).url, resilience=POLLING, prefetch_buffer="auto")
    first, second = (app.worker(processes=2) for _ in range(2))
    insert_lines(sql, tmp_path / "log", 200)
    assert wait_until_ended(sql, 200) == {"COMPLETED": 200}
    assert sorted(numbers(tmp_path / "log")) == list(range(200))
    assert (first.terminate(), second.terminate()) == (0, 0)
    assert not any("database unavailable" in line for line in first.logs + second.logs)


def test_tasks_with_an_expired_lease_are_claimed_by_another_worker_and_run_once(
    pgbouncer: StartPgBouncer, pooled: MakePooled, database: str, sql: psycopg.Connection, tmp_path: Path
) -> None:
    app = pooled(pgbouncer().url, database, prefetch_buffer=6, claim_lease_ms=1_000)
    app.worker()
    app.send("gate", str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    insert_spans(sql, tmp_path / "log", 3, 0.0)
    eventually(lambda: statuses(sql) == {"RUNNING": 1, "CLAIMED": 3}, seen=lambda: statuses(sql))
    app.worker()
    eventually(lambda: statuses(sql) == {"RUNNING": 1, "COMPLETED": 3}, 20, seen=lambda: statuses(sql))
    (tmp_path / "open").touch()
    assert wait_until_ended(sql, 4) == {"COMPLETED": 4}
    assert len(notes(tmp_path / "log")) == 6


@pytest.mark.parametrize("listens", [True, False])
def test_a_running_task_is_cancelled(
    pgbouncer: StartPgBouncer,
    pooled: MakePooled,
    database: str,
    tmp_path: Path,
    listens: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """By a notification to its worker, or by what the next heartbeat reads."""
    app = pooled(pgbouncer().url, database if listens else None, resilience=POLLING)
    app.worker()
    handle = app.send("gate_async", str(tmp_path / "begun"), str(tmp_path / "never"))
    begun(tmp_path / "begun")
    handle.cancel()
    assert handle.get(PATIENCE_MS).unwrap_err().error_code == "TASK_CANCELLED"


def test_the_tasks_of_a_killed_worker_are_recovered(
    pgbouncer: StartPgBouncer, pooled: MakePooled, sql: psycopg.Connection, tmp_path: Path
) -> None:
    app = pooled(pgbouncer().url, resilience=POLLING)
    first = app.worker()
    insert_spans(sql, tmp_path / "log", 1, 1.0)
    eventually(lambda: notes(tmp_path / "log"), what="it has begun")
    first.signal(signal.SIGKILL)
    first.wait()
    second = app.worker()
    second.wait_for_log("ended or released 1 tasks of dead workers")
    assert wait_until_ended(sql, 1) == {"COMPLETED": 1}
    assert row(sql, "select attempts, array_length(failed_attempts, 1) from horsies.finished") == (2, 1)


def test_a_worker_survives_a_restart_of_the_pooler(
    pgbouncer: StartPgBouncer, pooled: MakePooled, database: str, sql: psycopg.Connection, tmp_path: Path
) -> None:
    pooler = pgbouncer()
    app = pooled(pooler.url, database)
    worker = app.worker(processes=2)
    handle = app.send("gate", str(tmp_path / "begun"), str(tmp_path / "open"))
    begun(tmp_path / "begun")
    insert_lines(sql, tmp_path / "log", 50)
    eventually(lambda: numbers(tmp_path / "log"))
    pooler.stop()
    (tmp_path / "open").touch()
    worker.wait_for_log("database unavailable")
    pooler.start()
    assert handle.get(PATIENCE_MS).is_ok()
    assert wait_until_ended(sql, 51) == {"COMPLETED": 51}
    assert sorted(numbers(tmp_path / "log")) == list(range(50))
    assert column(sql, "select distinct attempts from horsies.finished") == [1]


def test_nothing_is_lost_by_query_wait_timeout(
    pgbouncer: StartPgBouncer, pooled: MakePooled, database: str, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """The pooler disconnects clients that have waited for a session for too long."""
    pooler = pgbouncer(default_pool_size=1, query_wait_timeout=1)
    app = pooled(pooler.url, database)
    worker = app.worker(processes=2)
    with psycopg.connect(pooler.url) as hog:
        hog.execute("select 1")
        insert_lines(sql, tmp_path / "log", 20)
        worker.wait_for_log("database unavailable.*query_wait_timeout")
    assert wait_until_ended(sql, 20) == {"COMPLETED": 20}
    assert sorted(numbers(tmp_path / "log")) == list(range(20))


def test_a_batch_leaves_nothing_in_a_session(
    pgbouncer: StartPgBouncer, pooled: MakePooled, database: str, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """Timeouts, locks, prepared statements and LISTEN would affect the next client."""
    pooler = pgbouncer(default_pool_size=1)
    worker = pooled(pooler.url, cluster_wide_cap=2, resilience=POLLING).worker(processes=2)
    insert_spans(sql, tmp_path / "log", 30, 0.001)
    wait_until_ended(sql, 30)
    assert worker.terminate() == 0
    assert _kept(pooler) == ("0", "0", "0", 0, 0, 0)


def _kept(pooler: PgBouncer) -> tuple[object, ...]:
    with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as through:
        return row(
            through,
            "select current_setting('statement_timeout'), current_setting('lock_timeout'), "
            "current_setting('idle_in_transaction_session_timeout'), "
            "(select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()), "
            "(select count(*) from pg_prepared_statements), (select count(*) from pg_listening_channels())",
        )
