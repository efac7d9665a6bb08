import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest

from horsies.db.broker import SQL, PostgresBroker
from horsies.db.statement import Op, Statement, one, rows
from horsies.model.config import PostgresConfig
from horsies.model.errors import BrokerError
from horsies.tasks.enqueue import enqueue, enqueue_again
from horsies.tasks.handle import NotEnded
from tests.fixtures.eventually import eventually, wait_until_blocked
from tests.fixtures.faults import Plant
from tests.fixtures.journey import new_task, row, send_new, wait_for, wait_for_async
from tests.fixtures.proxies import Proxy

SESSIONS = (
    "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'horsies producer'"
)


def ping(broker: PostgresBroker) -> object:
    return broker.run(lambda: rows(SQL["ping"]()))


def backend(broker: PostgresBroker) -> object:
    return broker.run(lambda: one(Statement("s", "select pg_backend_pid()")()))


def sessions(sql: psycopg.Connection) -> int:
    return int(row(sql, SESSIONS)[0])


def test_it_connects_at_first_use(database: str, sql: psycopg.Connection) -> None:
    with PostgresBroker(PostgresConfig(database_url=database)) as broker:
        assert sessions(sql) == 0
        ping(broker)
        assert sessions(sql) == 1


def test_it_can_be_closed_twice_and_used_again(database: str) -> None:
    broker = PostgresBroker(PostgresConfig(database_url=database))
    ping(broker)
    broker.close()
    broker.close()
    assert ping(broker) == [(1,)]
    broker.close()


def test_it_holds_no_more_connections_than_its_pool_allows(database: str, sql: psycopg.Connection) -> None:
    slow = Statement("s", "select pg_sleep(0.02)")
    config = PostgresConfig(database_url=database, pool_max_size=3)
    with PostgresBroker(config) as broker, ThreadPoolExecutor(12) as threads:
        results = [threads.submit(broker.run, lambda: rows(slow())) for _ in range(12)]
        assert all(result.result() for result in results)
        assert sessions(sql) <= 3


async def test_many_coroutines_share_one_pool(async_broker: PostgresBroker, sql: psycopg.Connection) -> None:
    results = await asyncio.gather(*(async_broker.run_async(lambda: rows(SQL["ping"]())) for _ in range(50)))
    assert results == [[(1,)]] * 50
    assert sessions(sql) <= 10


def test_each_event_loop_has_a_pool_of_its_own(database: str) -> None:
    broker = PostgresBroker(PostgresConfig(database_url=database))

    async def use_in_loop() -> object:
        answer = await broker.run_async(lambda: rows(SQL["ping"]()))
        await broker.close_async()
        return answer

    assert [asyncio.run(use_in_loop()) for _ in range(2)] == [[(1,)], [(1,)]]


# -- errors and outages


def test_a_loop_that_ends_while_its_pool_connects_does_end(proxy: Proxy) -> None:
    """The broker is not closed, as in a short script."""
    proxy.freeze()
    broker = PostgresBroker(PostgresConfig(database_url=proxy.url))

    async def use_in_loop() -> None:
        sends = asyncio.create_task(broker.run_async(lambda: rows(SQL["ping"]())))
        await asyncio.to_thread(eventually, lambda: proxy.connections > 0, what="the pool connects")
        assert not sends.done()

    asyncio.run(use_in_loop())
    proxy.thaw()


@pytest.fixture
def interruptible() -> Generator[None]:
    """Restore the handler of SIGINT: a background process may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_interrupts_a_running_statement_at_once(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    count = Statement("count", "select count(*) from {schema}.tasks")

    def interrupt() -> None:
        wait_until_blocked(sql)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as thread:
        with psycopg.connect(database) as holder:
            holder.execute("lock table horsies.tasks")
            interrupting = thread.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                broker.run(lambda: one(count()))
        interrupting.result()
    assert broker.run(lambda: one(count())) == (0,)


def test_a_database_that_cannot_be_reached_is_an_error_that_says_why(proxy: Proxy) -> None:
    proxy.cut()
    config = PostgresConfig(database_url=proxy.url, connect_timeout_s=1)
    with PostgresBroker(config) as broker, pytest.raises(BrokerError, match="Connection refused") as caught:
        ping(broker)
    assert caught.value.retryable


def test_a_pool_that_is_busy_for_too_long_says_what_to_change(database: str) -> None:
    config = PostgresConfig(database_url=database, connect_timeout_s=1, pool_max_size=1)
    with PostgresBroker(config) as broker, broker.pools.blocking_pool().connection():
        with pytest.raises(
            BrokerError, match=r"no connection was free within 1 s.*raise pool_max_size \(1\)"
        ) as caught:
            ping(broker)
        assert caught.value.retryable


async def test_an_event_loop_is_not_blocked_while_a_pool_timeout_is_explained(proxy: Proxy) -> None:
    proxy.freeze()
    broker = PostgresBroker(PostgresConfig(database_url=proxy.url, connect_timeout_s=1))

    async def thaw() -> None:
        """At the second connection, the one that is to find out: a loop that it blocked would come too late."""
        await asyncio.to_thread(eventually, lambda: proxy.connections > 1)
        proxy.thaw()

    thawing = asyncio.create_task(thaw())
    assert await broker.run_async(lambda: rows(SQL["ping"]())) == [(1,)], "nothing was sent: it is run again"
    await thawing
    await broker.close_async()


def connection_errors(broker: PostgresBroker) -> int:
    return broker.pools.blocking_pool().get_stats().get("connections_errors", 0)


@pytest.mark.promise("W11")
def test_a_caller_that_waits_during_an_outage_gets_a_connection_when_the_server_is_back(proxy: Proxy) -> None:
    """The pauses between the attempts of the pool do not grow: after ten of them the next one is still soon."""
    proxy.cut()
    config = PostgresConfig(database_url=proxy.url, connect_timeout_s=300)
    with PostgresBroker(config) as broker, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(ping, broker)
        eventually(lambda: connection_errors(broker) >= 10, 30, seen=lambda: connection_errors(broker))
        proxy.heal()
        assert waiting.result(20) == [(1,)]


@pytest.mark.promise("W11")
async def test_a_coroutine_that_waits_during_an_outage_gets_a_connection_too(proxy: Proxy) -> None:
    proxy.cut()
    broker = PostgresBroker(PostgresConfig(database_url=proxy.url, connect_timeout_s=300))
    waiting = asyncio.create_task(broker.run_async(lambda: rows(SQL["ping"]())))
    await asyncio.sleep(0)
    pool = await broker.pools.async_pool()
    async with asyncio.timeout(30):
        while pool.get_stats().get("connections_errors", 0) < 10:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
    proxy.heal()
    async with asyncio.timeout(20):
        assert await waiting == [(1,)]
    await broker.close_async()


@pytest.mark.promise("W11")
def test_after_an_outage_no_error_blames_the_size_of_the_pool(proxy: Proxy) -> None:
    """All its connections are lost, and as many attempts to replace them fail, so it has its maximum size."""
    config = PostgresConfig(database_url=proxy.url, connect_timeout_s=2, pool_max_size=1)
    with PostgresBroker(config) as broker:
        ping(broker)
        proxy.cut()
        with pytest.raises(BrokerError, match=r"Connection refused|server closed the connection"):
            ping(broker)
        with pytest.raises(BrokerError, match="Connection refused"):
            ping(broker)
        proxy.heal()
        assert ping(broker) == [(1,)]


def test_a_broker_that_cannot_connect_at_once_leaves_nothing_running(proxy: Proxy) -> None:
    proxy.cut()
    with pytest.raises(BrokerError, match="Connection refused"):
        PostgresBroker.connect_with(PostgresConfig(database_url=proxy.url, connect_timeout_s=1))


def test_contention_is_retried(broker: PostgresBroker) -> None:
    tries = list[int]()

    def verb() -> Op[object]:
        tries.append(1)
        code = "40001" if len(tries) < 3 else "00000"
        raising = f"do $$ begin if '{code}' <> '00000' then raise sqlstate '{code}'; end if; end $$"
        return rows(Statement("s", raising)())

    broker.run(verb)
    assert len(tries) == 3


def test_an_operation_without_again_is_not_repeated_when_its_outcome_is_unknown(
    broker: PostgresBroker, faults: Plant
) -> None:
    faults("ping", "after", "drop")
    with pytest.raises(BrokerError) as caught:
        ping(broker)
    assert caught.value.retryable
    assert ping(broker) == [(1,)], "the broken connection was thrown away"


def test_an_unfinished_transaction_does_not_stay_in_the_pool(database: str, sql: psycopg.Connection) -> None:
    with PostgresBroker(PostgresConfig(database_url=database, pool_max_size=1)) as broker:
        with pytest.raises(BrokerError, match="division by zero"):
            broker.run(_fails_inside)
        state = "select state from pg_stat_activity where datname = current_database() and application_name = 'horsies producer'"
        assert row(sql, state) == ("idle",)
        assert ping(broker) == [(1,)]


def _fails_inside() -> Op[object]:
    yield from rows(Statement("s", "begin")())
    return (yield from rows(Statement("s", "select 1 / 0")()))


def test_a_send_survives_a_restart_of_the_server_that_broke_every_pooled_connection(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    fill_pool(broker, sql)
    sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name = 'horsies producer'"
    )
    eventually(lambda: sessions(sql) == 0)
    tasks = [new_task()]
    broker.run(partial(enqueue, tasks), again=partial(enqueue_again, tasks))
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


async def test_an_async_send_survives_the_same_restart(async_broker: PostgresBroker, sql: psycopg.Connection) -> None:
    slow = Statement("s", "select pg_sleep(0.05)")
    await asyncio.gather(*(async_broker.run_async(lambda: rows(slow())) for _ in range(20)))
    assert sessions(sql) > 5
    sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where datname = current_database() and application_name = 'horsies producer'"
    )
    eventually(lambda: sessions(sql) == 0)
    tasks = [new_task()]
    await async_broker.run_async(partial(enqueue, tasks), again=partial(enqueue_again, tasks))
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


def fill_pool(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    slow = Statement("s", "select pg_sleep(0.05)")
    with ThreadPoolExecutor(20) as threads:
        for result in [threads.submit(broker.run, lambda: rows(slow())) for _ in range(20)]:
            result.result()
    assert sessions(sql) > 5


def test_a_server_that_ends_idle_sessions_does_not_fail_a_send(
    database: str, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    name = row(sql, "select current_database()")[0]
    sql.execute(f"alter database \"{name}\" set idle_session_timeout = '50ms'".encode())
    ping(broker)
    eventually(lambda: sessions(sql) == 0, what="the server has ended the idle session")
    sql.execute(f'alter database "{name}" reset idle_session_timeout'.encode())
    tasks = [new_task()]
    broker.run(partial(enqueue, tasks), again=partial(enqueue_again, tasks))
    assert row(sql, "select count(*) from horsies.tasks") == (1,)


# -- fork

FORKING = """
import os, sys
from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.statement import Statement, one
from horsies.model.config import PostgresConfig

broker = PostgresBroker(PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"]))
def backend():
    return broker.run(lambda: one(Statement("s", "select pg_backend_pid()")()))[0]

before = backend()
broker.listener().subscribe(Channel.DONE, "x", lambda payload: None)
child = os.fork()
if child == 0:
    ours = backend()
    broker.close()
    os._exit(0 if ours != before else 9)
_, status = os.waitpid(child, 0)
after = backend()
broker.listener().unsubscribe  # the parent's listener is still there
broker.close()
print(os.waitstatus_to_exitcode(status), before == after)
"""


def test_after_a_fork_the_child_opens_its_own_connections_and_never_touches_the_parents(database: str) -> None:
    env = {**os.environ, "HORSIES_DATABASE_URL": database, "PYTHONWARNINGS": "ignore::DeprecationWarning"}
    done = subprocess.run(
        [sys.executable, "-c", FORKING], env=env, capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.stdout, done.stderr) == ("0 True\n", "")


# -- closing

LEAVING = """
import atexit, os
from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.model.config import PostgresConfig

@atexit.register
def stop_the_server():
    print(broker._listener)  # what is left of it at this moment

broker = PostgresBroker(PostgresConfig(database_url=os.environ["HORSIES_DATABASE_URL"]))
broker.listener().subscribe(Channel.DONE, "x", lambda payload: None)
"""


def test_a_process_closes_its_broker_before_earlier_exit_handlers_run(database: str) -> None:
    """Such a handler stops the embedded server; an open listener would log a lost connection."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVING],
        env={**os.environ, "HORSIES_DATABASE_URL": database},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("None\n", "")


QUERIES = (
    "select coalesce(string_agg(query, ' '), '') from pg_stat_activity "
    "where datname = current_database() and application_name = 'horsies producer'"
)


def test_closing_in_the_middle_of_a_statement_lets_it_end(database: str, sql: psycopg.Connection) -> None:
    broker = PostgresBroker(PostgresConfig(database_url=database))
    sql.execute("select pg_advisory_lock(7)")
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(broker.run, lambda: one(Statement("s", "select 5 from pg_advisory_xact_lock(7)")()))
        wait_until_blocked(sql)
        broker.close()
        sql.execute("select pg_advisory_unlock(7)")
        assert asking.result() == (5,)
    eventually(lambda: sessions(sql) == 0, what="the connection went with its pool")


def test_closing_in_the_middle_of_a_wait_does_not_end_the_wait(database: str, sql: psycopg.Connection) -> None:
    broker = PostgresBroker(PostgresConfig(database_url=database))
    (sent,) = send_new(broker)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(wait_for, broker, sent.id, 1.0)
        eventually(lambda: "select task.id" in str(row(sql, QUERIES)[0]), what="the first read")
        broker.close()
        assert waiting.result() is NotEnded.LIVE
    broker.close()


async def test_a_cancelled_statement_and_a_cancelled_wait_release_everything(
    database: str, sql: psycopg.Connection
) -> None:
    broker = PostgresBroker(PostgresConfig(database_url=database, pool_max_size=1))
    slow = broker.run_async(lambda: rows(Statement("s", "select pg_sleep(30)")()))
    for work, seen in ((slow, "pg_sleep"), (wait_for_async(broker, new_task().id), "select task.id")):
        running = asyncio.ensure_future(work)
        while seen not in str(row(sql, QUERIES)[0]):  # noqa: ASYNC110 - the database gives no signal of its own
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await broker.run_async(lambda: rows(SQL["ping"]())) == [(1,)]
    await broker.close_async()
