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
from tests.fixtures.exhaustion import no_free_descriptor, take_free_descriptors
from tests.fixtures.journey import column, row
from tests.fixtures.proxies import Proxy

QUICK = WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_ms=500)
LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database() and application_name = 'horsies listener'"
)


def notify(sql: psycopg.Connection, channel: Channel, payload: str) -> None:
    sql.execute("select pg_notify(%s, %s)", [channel.name_in("horsies"), payload])


class RecordingSubscriber:
    """A subscriber that keeps what it receives."""

    def __init__(self, broker: PostgresBroker, channel: Channel, key: str | None = None) -> None:
        self._received: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._place = channel, key, self._received.put
        self._listener = broker.listener()
        if not self._listener.subscribe(*self._place):
            assert self.next() is None, "called when LISTEN is in force"

    def next(self, timeout_s: float = 5.0) -> str | None:
        return self._received.get(timeout=timeout_s)

    @property
    def has_more(self) -> bool:
        return not self._received.empty()

    def close(self) -> None:
        self._listener.unsubscribe(*self._place)


Subscribe = Callable[..., RecordingSubscriber]


@pytest.fixture
def subscribe() -> Generator[Subscribe]:
    made: list[RecordingSubscriber] = []

    def make(broker: PostgresBroker, channel: Channel, key: str | None = None) -> RecordingSubscriber:
        made.append(RecordingSubscriber(broker, channel, key))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_subscriber_receives_notifications_once_listen_is_in_force(
    broker: PostgresBroker, sql: psycopg.Connection, subscribe: Subscribe
) -> None:
    subscriber = subscribe(broker, Channel.NEW)
    notify(sql, Channel.NEW, "100 1 default")
    assert subscriber.next() == "100 1 default"


def test_all_subscribers_of_a_process_share_one_connection(
    broker: PostgresBroker, sql: psycopg.Connection, subscribe: Subscribe
) -> None:
    subscribers = [subscribe(broker, Channel.DONE, f"task-{number}") for number in range(20)]
    new = subscribe(broker, Channel.NEW)
    notify(sql, Channel.DONE, "task-3 task-4")
    notify(sql, Channel.NEW, "last")
    assert new.next() == "last"
    assert [number for number, each in enumerate(subscribers) if each.has_more and each.next()] == [3, 4]
    assert len(column(sql, LISTENERS)) == 1


def test_the_listener_holds_no_transaction(
    broker: PostgresBroker, sql: psycopg.Connection, subscribe: Subscribe
) -> None:
    subscribe(broker, Channel.DONE, "x")
    assert row(sql, LISTENERS.replace("pid", "state, backend_xmin", 1)) == ("idle", None)


@pytest.mark.promise("W12")
def test_when_its_backend_is_terminated_it_reconnects_and_wakes_all_subscribers(
    database: str, sql: psycopg.Connection, subscribe: Subscribe
) -> None:
    with PostgresBroker(PostgresConfig(database_url=database), resilience=QUICK) as broker:
        first, second = subscribe(broker, Channel.DONE, "a"), subscribe(broker, Channel.NEW)
        sql.execute(f"select pg_terminate_backend(pid) from ({LISTENERS}) as listeners".encode())
        assert (first.next(), second.next()) == (None, None), "called when the connection is lost"
        assert broker.listener().is_polling
        assert (first.next(), second.next()) == (None, None), "called when it is restored"
        notify(sql, Channel.DONE, "a")
        assert first.next() == "a"


def test_polling_ends_after_a_reconnect(database: str, sql: psycopg.Connection, subscribe: Subscribe) -> None:
    config = PostgresConfig(database_url=database)
    with PostgresBroker(config, resilience=QUICK, listener_timings=ListenerTimings(first_test_s=0.05)) as broker:
        subscriber = subscribe(broker, Channel.NEW)
        sql.execute(f"select pg_terminate_backend(pid) from ({LISTENERS}) as listeners".encode())
        assert subscriber.next() is None
        assert subscriber.next() is None
        eventually(lambda: not broker.listener().is_polling, what="the self-test passed")


def test_an_outage_is_logged_once_and_the_listener_recovers(
    proxy: Proxy, sql: psycopg.Connection, caplog: pytest.LogCaptureFixture, subscribe: Subscribe
) -> None:
    with PostgresBroker(PostgresConfig(database_url=proxy.url), resilience=QUICK) as broker:
        subscriber = subscribe(broker, Channel.NEW)
        proxy.cut()
        for _ in range(4):
            assert subscriber.next() is None  # the loss, and every attempt that fails
        proxy.heal()
        eventually(lambda: column(sql, LISTENERS))
        lost = [record for record in caplog.records if "LISTEN connection lost" in record.message]
        assert 1 <= len(lost) <= 2
        eventually(lambda: (notify(sql, Channel.NEW, "again"), subscriber.has_more and subscriber.next() == "again")[1])


def test_a_listener_without_a_free_descriptor_recovers_when_there_is_one(
    database: str, sql: psycopg.Connection, subscribe: Subscribe
) -> None:
    with PostgresBroker(PostgresConfig(database_url=database), resilience=QUICK) as broker:
        subscriber = subscribe(broker, Channel.NEW)
        with no_free_descriptor():
            sql.execute(f"select pg_terminate_backend(pid) from ({LISTENERS}) as listeners".encode())
            assert subscriber.next() is None, "the loss"
            with take_free_descriptors():
                for _ in range(3):
                    assert subscriber.next() is None, "an attempt has failed"
        eventually(lambda: (notify(sql, Channel.NEW, "again"), subscriber.has_more and subscriber.next() == "again")[1])


# -- the self-test


def test_a_listener_that_receives_nothing_starts_polling_and_logs_one_line(
    database: str,
    empty_database: str,
    caplog: pytest.LogCaptureFixture,
    subscribe: Subscribe,
) -> None:
    # NOTIFY does not cross databases: to this listener nothing ever comes, as behind a transaction pooler.
    config = PostgresConfig(database_url=database, listen_url=empty_database)
    timings = ListenerTimings(first_test_s=0.05, test_interval_s=0.05, test_timeout_s=0.2)
    with caplog.at_level(logging.WARNING), PostgresBroker(config, listener_timings=timings) as broker:
        subscriber = subscribe(broker, Channel.DONE, "x")
        assert not broker.listener().is_polling
        for _ in range(3):
            assert subscriber.next() is None, "woken, to look for itself"
        assert broker.listener().is_polling
    logged = [record.message for record in caplog.records]
    assert len(logged) == 1
    assert "LISTEN/NOTIFY does not arrive" in logged[0]
    assert "Set listen_url to a direct connection" in logged[0]


def test_an_unresponsive_connection_is_replaced(
    proxy: Proxy,
    database: str,
    sql: psycopg.Connection,
    subscribe: Subscribe,
) -> None:
    # Only the listener goes through the proxy; the self-test's notification takes another way.
    config = PostgresConfig(database_url=database, listen_url=proxy.url)
    timings = ListenerTimings(first_test_s=0.0, test_interval_s=0.1, test_timeout_s=0.2)
    with PostgresBroker(config, resilience=QUICK, listener_timings=timings) as broker:
        subscriber = subscribe(broker, Channel.NEW)
        eventually(
            lambda: (
                "pg_notify" in str(column(sql, "select query from pg_stat_activity where datname = current_database()"))
            )
        )
        notify(sql, Channel.NEW, "before")
        assert subscriber.next() == "before"
        proxy.freeze()
        assert subscriber.next() is None, "the silence was noticed"
        proxy.thaw()
        assert subscriber.next() is None, "subscriber again"
        notify(sql, Channel.NEW, "after")
        assert subscriber.next() == "after"


@pytest.mark.promise("W11")
def test_a_self_test_sent_on_a_broken_connection_does_not_make_the_listener_reconnect(
    database: str, sql: psycopg.Connection, subscribe: Subscribe
) -> None:
    senders = (
        "select pid from pg_stat_activity where datname = current_database() and application_name = 'horsies producer'"
    )
    config = PostgresConfig(database_url=database)
    timings = ListenerTimings(first_test_s=0.0, test_interval_s=0.2)
    with PostgresBroker(config, resilience=QUICK, listener_timings=timings) as broker:
        subscribe(broker, Channel.NEW)
        for _ in range(3):
            before = column(sql, LISTENERS)
            received_at = broker.listener().received_at
            eventually(lambda: column(sql, senders), what="a test was sent")
            row(sql, f"select count(pg_terminate_backend(pid)) from ({senders}) as senders")
            eventually(
                lambda received_at=received_at: broker.listener().received_at != received_at,
                what="the next test passed",
            )
            assert column(sql, LISTENERS) == before
            assert not broker.listener().is_polling


@pytest.mark.promise("W11")
def test_a_listener_reconnects_at_once_when_another_connection_reaches_the_database(
    proxy: Proxy, sql: psycopg.Connection, subscribe: Subscribe
) -> None:
    """An operation failed and then succeeds. Otherwise the listener would wait for a minute."""
    patient = WorkerResilienceConfig(db_retry_initial_ms=60_000, db_retry_max_ms=60_000)
    with PostgresBroker(PostgresConfig(database_url=proxy.url, connect_timeout_s=5), resilience=patient) as broker:
        ping = partial(rows, SQL["ping"]())
        broker.run(ping)
        subscriber = subscribe(broker, Channel.NEW)
        proxy.cut()
        assert subscriber.next() is None, "the loss"
        eventually(lambda: not broker.listener().is_listening)
        proxy.heal()
        broker.run(ping, again=ping)
        eventually(lambda: column(sql, LISTENERS), what="LISTEN is back")


def test_a_notification_that_arrives_during_a_listen_command_is_delivered(
    proxy: Proxy, sql: psycopg.Connection, subscribe: Subscribe, database: str
) -> None:
    config = PostgresConfig(database_url=database, listen_url=proxy.url)
    with PostgresBroker(config, listener_timings=ListenerTimings(first_test_s=60)) as broker:
        done = subscribe(broker, Channel.DONE, "a")
        proxy.freeze()
        received: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        broker.listener().subscribe(Channel.NEW, None, received.put)
        notify(sql, Channel.DONE, "a")
        proxy.thaw()
        assert received.get(timeout=5) is None, "LISTEN for the second channel is in force"
        assert done.next() == "a"
        broker.listener().unsubscribe(Channel.NEW, None, received.put)


def test_an_unused_channel_is_unlistened_and_can_be_subscribed_again(
    database: str, sql: psycopg.Connection, subscribe: Subscribe
) -> None:
    a_session_waits = (
        "select count(*) from pg_locks where locktype = 'advisory' and mode = 'ShareLock' and granted "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    timings = ListenerTimings(first_test_s=0.0, test_interval_s=0.1)
    with PostgresBroker(PostgresConfig(database_url=database), listener_timings=timings) as broker:
        other = subscribe(broker, Channel.NEW)
        for _ in range(2):
            done = RecordingSubscriber(broker, Channel.DONE)
            assert row(sql, a_session_waits) == (1,)
            done.close()
            eventually(lambda: row(sql, a_session_waits) == (0,))
        notify(sql, Channel.NEW, "still")
        assert other.next() == "still"


def test_a_closed_listener_leaves_no_thread_and_no_session(database: str, sql: psycopg.Connection) -> None:
    broker = PostgresBroker(PostgresConfig(database_url=database), listener_timings=ListenerTimings(first_test_s=0.0))
    broker.listener()
    eventually(lambda: column(sql, LISTENERS))
    broker.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("horsies-")]
    eventually(lambda: not column(sql, LISTENERS))
