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
from horsies.db.waiter import ReadResult, Waiter, WaiterTimings, WaitSource
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
    """Another process, as far as the database can tell: it works and notifies, and waits for nothing."""
    with PostgresBroker(PostgresConfig(database_url=database)) as made:
        yield made


def run_all(broker: PostgresBroker) -> list[str]:
    """Claim and complete whatever there is, unannounced."""
    claims = claim(broker, 1_000)
    do(broker, finish_tasks(ME, [completed(held, '"done"') for held in claims]))
    return [held.id for held in claims]


def begin_to_wait(
    threads: ThreadPoolExecutor, broker: PostgresBroker, task: NewTask, sql: psycopg.Connection
) -> "Future[Ended | NotEnded]":
    """Returns when the waiter has looked for the first time and found nothing."""
    waiting = threads.submit(wait_for, broker, task.id, 20.0)
    eventually(lambda: row(sql, READS)[0], what="the first read")
    return waiting


async def until_read(sql: psycopg.Connection) -> None:
    """Somebody has looked, or is looking, for an ending."""
    while not row(sql, READS)[0]:  # noqa: ASYNC110 - the database gives no signal of its own
        await asyncio.sleep(0.01)


# -- before, during, never


@pytest.mark.promise("A4")
def test_a_result_that_is_there_already_is_read_at_once(broker: PostgresBroker) -> None:
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
def test_an_ending_around_the_first_look_is_not_missed(
    broker: PostgresBroker, other: PostgresBroker, moment: str
) -> None:
    """Just before it, the look must see it; just after it, somebody must be known to wait."""
    (sent,) = send_new(other)
    looks: list[str] = []

    def read(ids: list[str]) -> Op[Mapping[str, ReadResult[WaitAnswer]]]:
        looks.append("before")
        if looks == [moment]:
            do(other, notify_done(run_all(other)))
        found = yield from get_results(ids)
        looks.append("after")
        if looks[1:] == [moment]:
            do(other, notify_done(run_all(other)))
        return found

    waiting = Waiter[WaitAnswer]([sent.id])
    waiter = broker.hub(WaitSource(Channel.DONE, read))
    with waiter.register(waiting):
        broker.wait(waiter, waiting, time.monotonic() + 10.0)
    assert waiting.answers[sent.id] == Ended(sent.id, TaskStatus.COMPLETED, '"done"', None)
    assert not waiting.timed_out, "it was told, and did not find it at the end of its time"


def test_endings_are_announced_only_while_somebody_waits(
    broker: PostgresBroker, other: PostgresBroker, threads: ThreadPoolExecutor, sql: psycopg.Connection
) -> None:
    """A notification wakes every session of the database that listens to anything."""
    sql.execute(f'listen "{Channel.DONE.name_in("horsies")}"'.encode())

    def heard() -> list[str]:
        sql.execute("select pg_notify(%s, 'last')", [Channel.DONE.name_in("horsies")])
        return [notification.payload for notification in sql.notifies(timeout=0)]

    (unwanted,) = send_new(other)
    do(other, notify_done(run_all(other)))
    assert heard() == ["last"]
    assert wait_for(broker, unwanted.id) == Ended(unwanted.id, TaskStatus.COMPLETED, '"done"', None)

    (wanted,) = send_new(other)
    waiting = begin_to_wait(threads, broker, wanted, sql)
    do(other, notify_done(run_all(other)))
    waiting.result(10.0)
    assert heard() == [wanted.id, "last"]

    (last,) = send_new(other)
    broker.close()
    eventually(lambda: column(sql, LISTENERS) == [], what="the server has noticed that it left")
    do(other, notify_done(run_all(other)))
    assert heard() == ["last"]
    assert isinstance(wait_for(other, last.id), Ended)


def test_whoever_cannot_have_the_lock_of_those_who_wait_polls_until_it_can(
    broker: PostgresBroker, other: PostgresBroker, threads: ThreadPoolExecutor, sql: psycopg.Connection
) -> None:
    """Somebody has hung at announcing an ending."""
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
def test_a_lost_notification_costs_one_poll(
    broker: PostgresBroker,
    other: PostgresBroker,
    threads: ThreadPoolExecutor,
    sql: psycopg.Connection,
) -> None:
    (sent,) = send_new(other)
    waiting = begin_to_wait(threads, broker, sent, sql)
    run_all(other)  # and nobody is told
    assert isinstance(waiting.result(5.0), Ended)


def test_a_wait_that_runs_out_says_that_the_task_is_alive(broker: PostgresBroker) -> None:
    (sent,) = send_new(broker)
    began = time.monotonic()
    assert wait_for(broker, sent.id, 0.2) is NotEnded.LIVE
    assert 0.2 <= time.monotonic() - began < 2.0
    claim(broker)
    assert wait_for(broker, sent.id, 0.0) is NotEnded.LIVE


def test_an_unknown_id_is_unknown_when_the_time_is_over(broker: PostgresBroker) -> None:
    assert wait_for(broker, new_task_id(), 0.1) is NotEnded.UNKNOWN


def test_a_task_that_is_sent_while_it_is_waited_for_is_found(
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
def test_an_id_that_was_not_made_by_us_is_found_too(
    task_id: str, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    send(broker, new_task(task_id=task_id))
    assert wait_for(broker, task_id, 0.0) is NotEnded.LIVE
    run_all(broker)
    sql.execute("update horsies.finished set finished_at = '2001-01-01'")
    assert isinstance(wait_for(broker, task_id), Ended)


# -- many


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
def test_everyone_looks_when_too_many_have_ended_to_name_them(
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
async def test_when_the_one_who_reads_is_cancelled_another_takes_over(
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
def test_a_task_whose_transaction_commits_later_is_waited_for(
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


# -- trouble


def test_a_deaf_waiter_polls_instead_and_says_so_once(
    database: str,
    empty_database: str,
    other: PostgresBroker,
    threads: ThreadPoolExecutor,
    sql: psycopg.Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # NOTIFY does not cross databases, so this listener hears nothing, as behind a transaction pooler.
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
    said = [record.name for record in caplog.records if record.name.startswith("horsies")]
    assert said == ["horsies.listen"]


def test_a_waiter_whose_listener_is_cut_off_polls_until_it_is_back(
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


def test_a_listen_connection_that_is_killed_costs_nobody_an_answer(
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
        do(other, notify_done(run_all(other)))  # perhaps to nobody
        assert isinstance(waiting.result(10.0), Ended)


def test_a_waiter_outlives_an_outage_of_the_whole_database(
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


def test_when_the_database_stays_away_every_waiter_is_told(
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


def test_an_answer_lost_while_reading_is_asked_for_again(broker: PostgresBroker, faults: Plant) -> None:
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
add.send().get(50)  # by then the other sits
child = os.fork()
if child == 0:
    os._exit(0 if handle.get(10).unwrap_err().error_code == "WAIT_TIMEOUT" else 9)
_, status = os.waitpid(child, 0)
handle.cancel()
waiting.join()
print(os.waitstatus_to_exitcode(status), found[0].unwrap_err().error_code)
"""


def test_after_a_fork_the_child_waits_on_its_own_and_the_parent_goes_on(database: str) -> None:
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


def test_a_process_leaves_without_a_word_while_its_daemon_threads_wait(database: str) -> None:
    env = {**os.environ, "HORSIES_DATABASE_URL": database}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEAVING], env=env, capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
