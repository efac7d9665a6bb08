import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel, waiters_lock
from horsies.db.listener import ListenerTimings
from horsies.db.statement import Op
from horsies.db.waiter import ReadResult, WaiterTimings
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.errors import BrokerError
from horsies.model.status import TaskStatus
from horsies.model.task import Ended, NewTask
from horsies.tasks.finish import finish_tasks, notify_done
from horsies.tasks.handle import NotEnded, WaitAnswer, get_results
from horsies.tasks.ids import new_task_id
from tests.fixtures.brokers import WITHOUT_POLLING, without_polling
from tests.fixtures.eventually import eventually
from tests.fixtures.faults import Plant
from tests.fixtures.journey import (
    ME,
    claim,
    column,
    completed,
    do,
    failed,
    new_task,
    row,
    send,
    send_new,
    wait_for,
    wait_for_async,
)
from tests.fixtures.proxies import Proxy

QUICK = WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_ms=500)
READS = (
    "select count(*) from pg_stat_activity where datname = current_database() "
    "and application_name = 'horsies producer' and query like 'select task.id::text, status%%'"
)
LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database() and application_name = 'horsies listener'"
)


@pytest.fixture
def threads() -> Generator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def other(database: str) -> Generator[PostgresBroker]:
    """A second process from the database's point of view: it ends tasks and notifies, and waits for none."""
    with PostgresBroker(PostgresConfig(database_url=database)) as made:
        yield made


def run_all(broker: PostgresBroker) -> list[str]:
    """Claim and complete all tasks, without a notification."""
    claims = claim(broker, 1_000)
    do(broker, finish_tasks(ME, [completed(held, '"done"') for held in claims]))
    return [held.id for held in claims]


def begin_to_wait(
    threads: ThreadPoolExecutor, broker: PostgresBroker, task: NewTask, sql: psycopg.Connection
) -> "Future[Ended | NotEnded]":
    """Start a wait. Returns after its first read, which found nothing."""
    waiting = threads.submit(wait_for, broker, task.id, 20.0)
    eventually(lambda: row(sql, READS)[0], what="the first read")
    return waiting


async def until_read(sql: psycopg.Connection) -> None:
    """Wait until a session has read results, or is reading them."""
    while not row(sql, READS)[0]:  # noqa: ASYNC110 - the database gives no signal of its own
        await asyncio.sleep(0.01)


# -- one task


@pytest.mark.promise("A4")
def test_a_stored_result_is_read_at_once(broker: PostgresBroker) -> None:
    (sent,) = send_new(broker)
    run_all(broker)
    assert wait_for(broker, sent.id) == Ended(sent.id, TaskStatus.COMPLETED, '"done"', None)


@pytest.mark.promise("A4")
@without_polling
def test_a_waiter_is_woken_by_the_notification(
    broker: PostgresBroker,
    other: PostgresBroker,
    threads: ThreadPoolExecutor,
    sql: psycopg.Connection,
) -> None:
    (sent,) = send_new(other)
    waiting = begin_to_wait(threads, broker, sent, sql)
    do(other, notify_done(run_all(other)))
    assert waiting.result(10.0) == Ended(sent.id, TaskStatus.COMPLETED, '"done"', None)


@without_polling
async def test_a_waiting_coroutine_is_woken_by_the_notification(
    async_broker: PostgresBroker, other: PostgresBroker, sql: psycopg.Connection
) -> None:
    (sent,) = send_new(other)
    waiting = asyncio.ensure_future(wait_for_async(async_broker, sent.id))
    await until_read(sql)
    do(other, notify_done(run_all(other)))
    async with asyncio.timeout(10):
        assert await waiting == Ended(sent.id, TaskStatus.COMPLETED, '"done"', None)


@pytest.mark.parametrize("moment", ["before", "after"])
@without_polling
def test_an_ending_just_before_or_after_the_first_read_is_not_missed(
    broker: PostgresBroker, other: PostgresBroker, moment: str
) -> None:
    """Just before, the read must find it; just after, the waiter must already be registered."""
    (sent,) = send_new(other)
    reads: list[str] = []

    def read(ids: list[str]) -> Op[Mapping[str, ReadResult[WaitAnswer]]]:
        reads.append("before")
        if reads == [moment]:
            do(other, notify_done(run_all(other)))
        found = yield from get_results(ids)
        reads.append("after")
        if reads[1:] == [moment]:
            do(other, notify_done(run_all(other)))
        return found

    ((_, future),) = broker.as_completed(read, [sent.id], None)  # the notification wakes it, not a deadline
    assert future.result() == Ended(sent.id, TaskStatus.COMPLETED, '"done"', None)


def test_endings_are_announced_only_while_there_is_a_waiter(
    broker: PostgresBroker, other: PostgresBroker, threads: ThreadPoolExecutor, sql: psycopg.Connection
) -> None:
    """A notification wakes every session of the database that listens to anything."""
    sql.execute(f'listen "{Channel.DONE.name_in("horsies")}"'.encode())

    def read_notifications() -> list[str]:
        sql.execute("select pg_notify(%s, 'last')", [Channel.DONE.name_in("horsies")])
        return [notification.payload for notification in sql.notifies(timeout=0)]

    (unwanted,) = send_new(other)
    do(other, notify_done(run_all(other)))
    assert read_notifications() == ["last"]
    assert wait_for(broker, unwanted.id) == Ended(unwanted.id, TaskStatus.COMPLETED, '"done"', None)

    (wanted,) = send_new(other)
    waiting = begin_to_wait(threads, broker, wanted, sql)
    do(other, notify_done(run_all(other)))
    waiting.result(10.0)
    assert read_notifications() == [wanted.id, "last"]

    (last,) = send_new(other)
    broker.close()
    eventually(lambda: column(sql, LISTENERS) == [], what="the server has noticed the disconnect")
    do(other, notify_done(run_all(other)))
    assert read_notifications() == ["last"]
    assert isinstance(wait_for(other, last.id), Ended)


def test_a_waiter_that_cannot_get_the_waiters_lock_polls_until_it_can(
    broker: PostgresBroker, other: PostgresBroker, threads: ThreadPoolExecutor, sql: psycopg.Connection
) -> None:
    """A session that announces an ending hangs and holds the lock."""
    sql.execute("select pg_advisory_lock(%s)", [waiters_lock("horsies")])
    (task,) = send_new(other)
    waiting = threads.submit(wait_for, broker, task.id)
    eventually(lambda: broker.listener().is_polling)
    run_all(other)
    assert isinstance(waiting.result(10.0), Ended)
    sql.execute("select pg_advisory_unlock(%s)", [waiters_lock("horsies")])
    (another,) = send_new(other)
    waiting = begin_to_wait(threads, broker, another, sql)
    eventually(lambda: not broker.listener().is_polling)
    do(other, notify_done(run_all(other)))
    assert isinstance(waiting.result(10.0), Ended)


@pytest.mark.promise("A4")
@pytest.mark.parametrize("waiter_timings", [WaiterTimings(poll_s=0.3)], ids=["polls_often"])
def test_after_a_lost_notification_the_next_poll_finds_the_ending(
    broker: PostgresBroker,
    other: PostgresBroker,
    threads: ThreadPoolExecutor,
    sql: psycopg.Connection,
) -> None:
    (sent,) = send_new(other)
    waiting = begin_to_wait(threads, broker, sent, sql)
    run_all(other)  # without a notification
    assert isinstance(waiting.result(5.0), Ended)


def test_a_wait_that_times_out_reports_a_live_task(broker: PostgresBroker) -> None:
    (sent,) = send_new(broker)
    began = time.monotonic()
    assert wait_for(broker, sent.id, 0.2) is NotEnded.LIVE
    assert 0.2 <= time.monotonic() - began < 2.0
    claim(broker)
    assert wait_for(broker, sent.id, 0.0) is NotEnded.LIVE


def test_an_unknown_id_is_unknown_at_the_timeout(broker: PostgresBroker) -> None:
    assert wait_for(broker, new_task_id(), 0.1) is NotEnded.UNKNOWN


def test_a_task_that_is_sent_during_the_wait_is_found(
    broker: PostgresBroker, other: PostgresBroker, threads: ThreadPoolExecutor, sql: psycopg.Connection
) -> None:
    task = new_task()
    waiting = begin_to_wait(threads, broker, task, sql)
    send(other, task)
    do(other, notify_done(run_all(other)))
    assert isinstance(waiting.result(10.0), Ended)


def test_a_failure_is_read_with_its_error(broker: PostgresBroker) -> None:
    (sent,) = send_new(broker)
    (held,) = claim(broker)
    do(broker, finish_tasks(ME, [failed(held, error='{"error_code": "BROKEN"}')]))
    assert wait_for(broker, sent.id) == Ended(sent.id, TaskStatus.FAILED, None, '{"error_code": "BROKEN"}')


@pytest.mark.parametrize(
    "task_id",
    [
        "d48151dd-5865-42cb-8499-eb70dd9d29d0",
        "ffffffff-ffff-7fff-bfff-ffffffffffff",
        "00000000-0000-0000-0000-000000000000",
    ],
)
def test_an_id_of_another_version_is_found_too(task_id: str, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    send(broker, new_task(task_id=task_id))
    assert wait_for(broker, task_id, 0.0) is NotEnded.LIVE
    run_all(broker)
    sql.execute("update horsies.finished set finished_at = '2001-01-01'")
    assert isinstance(wait_for(broker, task_id), Ended)


# -- many waiters


@without_polling
def test_200_waiting_threads_use_one_listen_connection(
    broker: PostgresBroker, other: PostgresBroker, sql: psycopg.Connection
) -> None:
    sent = send_new(other, 200)
    outcomes: list[Ended | NotEnded] = []

    def wait_and_note(task: NewTask) -> None:
        outcomes.append(wait_for(broker, task.id))

    waiters = [threading.Thread(target=wait_and_note, args=[task]) for task in sent]
    for thread in waiters:
        thread.start()
    try:
        eventually(lambda: row(sql, READS)[0])
        assert len(column(sql, LISTENERS)) == 1
        do(other, notify_done(run_all(other)))
    finally:
        for waiter in waiters:
            waiter.join(20.0)
    assert sorted(found.id for found in outcomes if isinstance(found, Ended)) == [task.id for task in sent]
    assert len(column(sql, LISTENERS)) == 1


@without_polling
def test_all_waiters_read_when_too_many_tasks_ended_to_name_them(
    broker: PostgresBroker,
    other: PostgresBroker,
    threads: ThreadPoolExecutor,
    sql: psycopg.Connection,
) -> None:
    first, *_ = send_new(other, 201)
    waiting = begin_to_wait(threads, broker, first, sql)
    do(other, notify_done(run_all(other)))
    assert isinstance(waiting.result(10.0), Ended)


@without_polling
async def test_threads_and_coroutines_wait_for_the_same_task(
    async_broker: PostgresBroker, other: PostgresBroker, sql: psycopg.Connection
) -> None:
    (sent,) = send_new(other)
    waiting = [
        *(asyncio.ensure_future(wait_for_async(async_broker, sent.id)) for _ in range(3)),
        *(asyncio.ensure_future(asyncio.to_thread(wait_for, async_broker, sent.id)) for _ in range(3)),
    ]
    await until_read(sql)
    do(other, notify_done(run_all(other)))
    async with asyncio.timeout(10):
        assert [type(found) for found in await asyncio.gather(*waiting)] == [Ended] * 6


@without_polling
async def test_when_the_reading_waiter_is_cancelled_another_takes_over(
    async_broker: PostgresBroker, other: PostgresBroker, sql: psycopg.Connection
) -> None:
    first, second = send_new(other, 2)
    reading = asyncio.ensure_future(wait_for_async(async_broker, first.id))
    waiting = asyncio.ensure_future(wait_for_async(async_broker, second.id))
    await until_read(sql)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    do(other, notify_done(run_all(other)))
    async with asyncio.timeout(10):
        assert isinstance(await waiting, Ended)


@without_polling
def test_a_task_that_is_committed_during_the_wait_is_found(
    database: str,
    broker: PostgresBroker,
    other: PostgresBroker,
    threads: ThreadPoolExecutor,
    sql: psycopg.Connection,
) -> None:
    task = new_task()
    with psycopg.connect(database) as transaction:
        transaction.execute("insert into horsies.tasks (id, task_name) values (%s, 'add')", [task.id])
        waiting = begin_to_wait(threads, broker, task, sql)
        assert run_all(other) == []
    do(other, notify_done(run_all(other)))
    assert isinstance(waiting.result(10.0), Ended)


# -- failures


def test_a_waiter_without_notifications_polls_and_logs_it_once(
    database: str,
    empty_database: str,
    other: PostgresBroker,
    threads: ThreadPoolExecutor,
    sql: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # NOTIFY does not cross databases, so this listener receives nothing, as behind a transaction pooler.
    config = PostgresConfig(database_url=database, listen_url=empty_database)
    timings = ListenerTimings(first_test_s=0.0, test_timeout_s=0.2)
    with (
        caplog.at_level(logging.WARNING),
        PostgresBroker(config, listener_timings=timings, waiter_timings=WITHOUT_POLLING) as broker,
    ):
        (sent,) = send_new(other)
        waiting = begin_to_wait(threads, broker, sent, sql)
        eventually(lambda: broker.listener().is_polling)
        do(other, notify_done(run_all(other)))
        assert isinstance(waiting.result(10.0), Ended)
    logged = [record.name for record in caplog.records if record.name.startswith("horsies")]
    assert logged == ["horsies.listen"]


def test_a_waiter_polls_while_its_listener_is_disconnected(
    database: str,
    proxy: Proxy,
    other: PostgresBroker,
    threads: ThreadPoolExecutor,
    sql: psycopg.Connection,
) -> None:
    config = PostgresConfig(database_url=database, listen_url=proxy.url)
    with PostgresBroker(config, resilience=QUICK, waiter_timings=WITHOUT_POLLING) as broker:
        (sent,) = send_new(other)
        waiting = begin_to_wait(threads, broker, sent, sql)
        proxy.cut()
        eventually(lambda: broker.listener().is_polling)
        do(other, notify_done(run_all(other)))
        assert isinstance(waiting.result(10.0), Ended)


def test_killing_the_listen_connection_loses_no_answer(
    database: str,
    other: PostgresBroker,
    threads: ThreadPoolExecutor,
    sql: psycopg.Connection,
) -> None:
    # Only the read of everything after the reconnect can find the ending.
    timings = replace(WITHOUT_POLLING, poll_without_listen_s=60.0)
    with PostgresBroker(PostgresConfig(database_url=database), resilience=QUICK, waiter_timings=timings) as broker:
        (sent,) = send_new(other)
        waiting = begin_to_wait(threads, broker, sent, sql)
        (killed,) = column(sql, LISTENERS)
        sql.execute("select pg_terminate_backend(%s)", [killed])
        eventually(lambda: killed not in column(sql, LISTENERS))
        do(other, notify_done(run_all(other)))  # there may be no listener
        assert isinstance(waiting.result(10.0), Ended)


def test_a_waiter_survives_an_outage_of_the_database(
    proxy: Proxy, other: PostgresBroker, threads: ThreadPoolExecutor, sql: psycopg.Connection
) -> None:
    config = PostgresConfig(database_url=proxy.url, connect_timeout_s=5)
    with PostgresBroker(config, resilience=QUICK) as broker:
        (sent,) = send_new(other)
        waiting = begin_to_wait(threads, broker, sent, sql)
        proxy.cut()
        eventually(lambda: broker.listener().is_polling)
        proxy.heal()
        do(other, notify_done(run_all(other)))
        assert isinstance(waiting.result(15.0), Ended)


def test_when_the_database_stays_unavailable_every_waiter_raises(
    proxy: Proxy, other: PostgresBroker, threads: ThreadPoolExecutor, sql: psycopg.Connection
) -> None:
    config = PostgresConfig(database_url=proxy.url, connect_timeout_s=1)
    with PostgresBroker(config, resilience=QUICK) as broker:
        sent = send_new(other, 3)
        waiting = [begin_to_wait(threads, broker, task, sql) for task in sent]
        proxy.cut()
        for each in waiting:
            with pytest.raises(BrokerError, match="Connection refused") as caught:
                each.result(15.0)
            assert caught.value.retryable


def test_a_read_with_a_lost_answer_is_repeated(broker: PostgresBroker, faults: Plant) -> None:
    (sent,) = send_new(broker)
    run_all(broker)
    faults("get_results", "after", "drop")
    assert isinstance(wait_for(broker, sent.id), Ended)


FORKING = """
import os, threading
from horsies import Horsies, TaskError, TaskResult

app = Horsies()
@app.task("add")
def add() -> TaskResult[int, TaskError]: ...

handle, found = add.send(), []
waiting = threading.Thread(target=lambda: found.append(handle.get()))
waiting.start()
add.send().get(50)  # by then the other thread waits
child = os.fork()
if child == 0:
    os._exit(0 if handle.get(10).unwrap_err().error_code == "WAIT_TIMEOUT" else 9)
_, status = os.waitpid(child, 0)
handle.cancel()
waiting.join()
print(os.waitstatus_to_exitcode(status), found[0].unwrap_err().error_code)
"""


def test_after_a_fork_child_and_parent_wait_independently(database: str) -> None:
    env = {**os.environ, "HORSIES_DATABASE_URL": database, "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    done = subprocess.run(
        [sys.executable, "-c", FORKING], env=env, capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.stdout, done.stderr) == ("0 TASK_CANCELLED\n", "")


LEAVING = """
import os, threading
from horsies import Horsies, TaskError, TaskResult

app = Horsies()
@app.task("add")
def add() -> TaskResult[int, TaskError]: ...

for _ in range(3):
    threading.Thread(target=add.send().get, daemon=True).start()
add.send().get(50)
"""


def test_a_process_exits_without_output_while_its_daemon_threads_wait(database: str) -> None:
    env = {**os.environ, "HORSIES_DATABASE_URL": database}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEAVING], env=env, capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
