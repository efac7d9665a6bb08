import logging
import queue
import threading
from collections.abc import Callable, Generator
from functools import partial

import psycopg
import pytest

from horsies.db.broker import SQL, PostgresBroker
from horsies.db.channels import Channel
from horsies.db.listener import ListenerTimings
from horsies.db.statement import rows
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.proxies import Proxy

QUICK = WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_ms=500)
LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database() and application_name = 'horsies listener'"
)


def notify(sql: psycopg.Connection, channel: Channel, payload: str) -> None:
    sql.execute("select pg_notify(%s, %s)", [channel.name_in("horsies"), payload])


class Ear:
    """A subscriber that keeps what it hears."""

    def __init__(self, broker: PostgresBroker, channel: Channel, key: str | None = None) -> None:
        self._received: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._place = channel, key, self._received.put
        self._listener = broker.listener()
        if not self._listener.subscribe(*self._place):
            assert self.next() is None, "told that LISTEN is in force"

    def next(self, timeout_s: float = 5.0) -> str | None:
        return self._received.get(timeout=timeout_s)

    @property
    def has_more(self) -> bool:
        return not self._received.empty()

    def close(self) -> None:
        self._listener.unsubscribe(*self._place)


MakeEar = Callable[..., Ear]


@pytest.fixture
def ear() -> Generator[MakeEar]:
    made: list[Ear] = []

    def make(broker: PostgresBroker, channel: Channel, key: str | None = None) -> Ear:
        made.append(Ear(broker, channel, key))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_subscriber_hears_what_comes_after_listen_is_in_force(
    broker: PostgresBroker, sql: psycopg.Connection, ear: MakeEar
) -> None:
    listening = ear(broker, Channel.NEW)
    notify(sql, Channel.NEW, "100 1 default")
    assert listening.next() == "100 1 default"


def test_all_subscribers_of_a_process_share_one_connection(
    broker: PostgresBroker, sql: psycopg.Connection, ear: MakeEar
) -> None:
    ears = [ear(broker, Channel.DONE, f"task-{number}") for number in range(20)]
    new = ear(broker, Channel.NEW)
    notify(sql, Channel.DONE, "task-3 task-4")
    notify(sql, Channel.NEW, "last")
    assert new.next() == "last"
    assert [number for number, each in enumerate(ears) if each.has_more and each.next()] == [3, 4]
    assert len(column(sql, LISTENERS)) == 1


def test_the_listener_does_not_sit_in_a_transaction(
    broker: PostgresBroker, sql: psycopg.Connection, ear: MakeEar
) -> None:
    ear(broker, Channel.DONE, "x")
    assert row(sql, LISTENERS.replace("pid", "state, backend_xmin", 1)) == ("idle", None)


@pytest.mark.promise("W12")
def test_when_its_backend_is_terminated_it_reconnects_and_wakes_everyone(
    database: str, sql: psycopg.Connection, ear: MakeEar
) -> None:
    with PostgresBroker(PostgresConfig(database_url=database), resilience=QUICK) as broker:
        first, second = ear(broker, Channel.DONE, "a"), ear(broker, Channel.NEW)
        sql.execute(f"select pg_terminate_backend(pid) from ({LISTENERS}) as listeners".encode())
        assert (first.next(), second.next()) == (None, None), "told of the loss"
        assert broker.listener().is_polling
        assert (first.next(), second.next()) == (None, None), "told that it is back"
        notify(sql, Channel.DONE, "a")
        assert first.next() == "a"


def test_reconnected_it_is_no_longer_deaf(database: str, sql: psycopg.Connection, ear: MakeEar) -> None:
    config = PostgresConfig(database_url=database)
    with PostgresBroker(config, resilience=QUICK, listener_timings=ListenerTimings(first_test_s=0.05)) as broker:
        listening = ear(broker, Channel.NEW)
        sql.execute(f"select pg_terminate_backend(pid) from ({LISTENERS}) as listeners".encode())
        assert listening.next() is None
        assert listening.next() is None
        eventually(lambda: not broker.listener().is_polling, what="the self-test passed")


def test_an_outage_is_reported_once_and_ends_by_itself(
    proxy: Proxy, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture, ear: MakeEar
) -> None:
    with PostgresBroker(PostgresConfig(database_url=proxy.url), resilience=QUICK) as broker:
        listening = ear(broker, Channel.NEW)
        proxy.cut()
        for _ in range(4):
            assert listening.next() is None  # the loss, and every attempt that fails
        proxy.heal()
        eventually(lambda: column(sql, LISTENERS))
        lost = [record for record in caplog.records if "LISTEN connection lost" in record.message]
        assert 1 <= len(lost) <= 2
        eventually(lambda: (notify(sql, Channel.NEW, "again"), listening.has_more and listening.next() == "again")[1])


# -- the self-test


def test_a_listener_that_hears_nothing_is_declared_deaf_with_one_line(
    database: str,
    empty_database: str,
    caplog: pytest.LogCaptureFixture,
    ear: MakeEar,
) -> None:
    # NOTIFY does not cross databases: to this listener nothing ever comes, as behind a transaction pooler.
    config = PostgresConfig(database_url=database, listen_url=empty_database)
    timings = ListenerTimings(first_test_s=0.05, test_interval_s=0.05, test_timeout_s=0.2)
    with caplog.at_level(logging.WARNING), PostgresBroker(config, listener_timings=timings) as broker:
        listening = ear(broker, Channel.DONE, "x")
        assert not broker.listener().is_polling
        for _ in range(3):
            assert listening.next() is None, "woken, to look for itself"
        assert broker.listener().is_polling
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert "LISTEN/NOTIFY does not arrive" in said[0]
    assert "Set listen_url to a direct connection" in said[0]


def test_a_connection_that_went_silent_is_replaced(
    proxy: Proxy,
    database: str,
    sql: psycopg.Connection,
    ear: MakeEar,
) -> None:
    # Only the listener goes through the proxy; the self-test's notification takes another way.
    config = PostgresConfig(database_url=database, listen_url=proxy.url)
    timings = ListenerTimings(first_test_s=0.0, test_interval_s=0.1, test_timeout_s=0.2)
    with PostgresBroker(config, resilience=QUICK, listener_timings=timings) as broker:
        listening = ear(broker, Channel.NEW)
        eventually(
            lambda: (
                "pg_notify" in str(column(sql, "select query from pg_stat_activity where datname = current_database()"))
            )
        )
        notify(sql, Channel.NEW, "heard")
        assert listening.next() == "heard"
        proxy.freeze()
        assert listening.next() is None, "the silence was noticed"
        proxy.thaw()
        assert listening.next() is None, "listening again"
        notify(sql, Channel.NEW, "after")
        assert listening.next() == "after"


@pytest.mark.promise("W11")
def test_a_self_test_that_is_sent_on_a_broken_connection_does_not_cost_the_listener_its_own(
    database: str, sql: psycopg.Connection, ear: MakeEar
) -> None:
    senders = (
        "select pid from pg_stat_activity where datname = current_database() and application_name = 'horsies producer'"
    )
    config = PostgresConfig(database_url=database)
    timings = ListenerTimings(first_test_s=0.0, test_interval_s=0.2)
    with PostgresBroker(config, resilience=QUICK, listener_timings=timings) as broker:
        ear(broker, Channel.NEW)
        for _ in range(3):
            before = column(sql, LISTENERS)
            received_at = broker.listener().received_at
            eventually(lambda: column(sql, senders), what="a test was sent")
            row(sql, f"select count(pg_terminate_backend(pid)) from ({senders}) as senders")
            eventually(
                lambda received_at=received_at: broker.listener().received_at != received_at,
                what="the next test was heard",
            )
            assert column(sql, LISTENERS) == before
            assert not broker.listener().is_polling


@pytest.mark.promise("W11")
def test_a_listener_that_waits_for_its_next_attempt_is_told_when_the_database_is_reached(
    proxy: Proxy, sql: psycopg.Connection, ear: MakeEar
) -> None:
    """By a verb that failed, and succeeds again. It would wait for a minute otherwise."""
    patient = WorkerResilienceConfig(db_retry_initial_ms=60_000, db_retry_max_ms=60_000)
    with PostgresBroker(PostgresConfig(database_url=proxy.url, connect_timeout_s=5), resilience=patient) as broker:
        ping = partial(rows, SQL["ping"]())
        broker.run(ping)
        listening = ear(broker, Channel.NEW)
        proxy.cut()
        assert listening.next() is None, "the loss"
        eventually(lambda: not broker.listener().is_listening)
        proxy.heal()
        broker.run(ping, again=ping)
        eventually(lambda: column(sql, LISTENERS), what="LISTEN is back")


def test_what_arrives_while_another_channel_is_being_subscribed_is_heard(
    proxy: Proxy, sql: psycopg.Connection, ear: MakeEar, database: str
) -> None:
    config = PostgresConfig(database_url=database, listen_url=proxy.url)
    with PostgresBroker(config, listener_timings=ListenerTimings(first_test_s=60)) as broker:
        done = ear(broker, Channel.DONE, "a")
        proxy.freeze()
        heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        broker.listener().subscribe(Channel.NEW, None, heard.put)
        notify(sql, Channel.DONE, "a")
        proxy.thaw()
        assert heard.get(timeout=5) is None, "LISTEN for the second channel is in force"
        assert done.next() == "a"
        broker.listener().unsubscribe(Channel.NEW, None, heard.put)


def test_what_nobody_waits_for_any_longer_is_given_up_and_taken_up_again(
    database: str, sql: psycopg.Connection, ear: MakeEar
) -> None:
    somebody_waits = (
        "select count(*) from pg_locks where locktype = 'advisory' and mode = 'ShareLock' and granted "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    timings = ListenerTimings(first_test_s=0.0, test_interval_s=0.1)
    with PostgresBroker(PostgresConfig(database_url=database), listener_timings=timings) as broker:
        other = ear(broker, Channel.NEW)
        for _ in range(2):
            done = Ear(broker, Channel.DONE)
            assert row(sql, somebody_waits) == (1,)
            done.close()
            eventually(lambda: row(sql, somebody_waits) == (0,))
        notify(sql, Channel.NEW, "still")
        assert other.next() == "still"


def test_a_closed_listener_leaves_no_thread_and_no_session(database: str, sql: psycopg.Connection) -> None:
    broker = PostgresBroker(PostgresConfig(database_url=database), listener_timings=ListenerTimings(first_test_s=0.0))
    broker.listener()
    eventually(lambda: column(sql, LISTENERS))
    broker.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("horsies-")]
    eventually(lambda: not column(sql, LISTENERS))
