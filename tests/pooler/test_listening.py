"""Listeners behind a pooler: which receive notifications, and that they leave nothing behind."""

import logging
import queue
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.listener import ListenerTimings
from horsies.model.config import PostgresConfig
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column
from tests.fixtures.pgbouncer import PgBouncer, StartPgBouncer

LISTENERS = (
    "select pid from pg_stat_activity where datname = current_database() and application_name = 'horsies listener'"
)
WITHOUT_PROOF = ListenerTimings(pooler_checks=0)  # no proof is found that the session is shared


class RecordingSubscriber:
    def __init__(self, config: PostgresConfig, timings: ListenerTimings | None = None) -> None:
        self.broker = PostgresBroker(config, listener_timings=timings)
        self._received: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.broker.listener().subscribe(Channel.NEW, None, self._received.put)

    @property
    def is_polling(self) -> bool:
        return self.broker.listener().is_polling

    def receives(self, sql: psycopg.Connection, payload: str) -> bool:
        sql.execute("select pg_notify(%s, %s)", [Channel.NEW.name_in("horsies"), payload])
        while not self._received.empty():
            if self._received.get() == payload:
                return True
        return False


Logged = Callable[[], list[str]]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """The messages of our own loggers."""
    caplog.set_level(logging.WARNING, "horsies")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("horsies")]


def left_behind(pgbouncer: PgBouncer) -> list[object]:
    """Return the channels that the only session of this pooler listens on."""
    with psycopg.connect(pgbouncer.url, autocommit=True) as through:
        return column(through, "select pg_listening_channels()")


def test_through_a_transaction_pooler_it_polls_and_logs_what_to_set(
    pgbouncer: StartPgBouncer, sql: psycopg.Connection, logged: Logged
) -> None:
    pooler = pgbouncer(default_pool_size=1)
    subscriber = RecordingSubscriber(PostgresConfig(database_url=pooler.url))
    with subscriber.broker:
        eventually(logged)
        assert subscriber.is_polling
        assert subscriber.broker.listener().subscribe(Channel.DONE, "x", lambda _: None), "it does not wait for LISTEN"
        assert left_behind(pooler) == []
        assert not subscriber.receives(sql, "anything")
    (line,) = logged()
    assert "LISTEN does not work through a transaction pooler; polling instead" in line
    assert "Set listen_url to a direct connection" in line


@pytest.mark.parametrize("settings", [{}, {"server_round_robin": 1}])
def test_changing_sessions_prove_a_transaction_pooler_too(
    pgbouncer: StartPgBouncer, logged: Logged, settings: dict[str, int]
) -> None:
    """Several sessions of the pooler are idle, and other clients use the rest."""
    pooler = pgbouncer(default_pool_size=5, **settings)
    busy = [psycopg.connect(pooler.url) for _ in range(4)]
    for connection in busy:
        connection.execute("select 1")
    for connection in busy[:2]:
        connection.rollback()
    subscriber = RecordingSubscriber(PostgresConfig(database_url=pooler.url))
    with subscriber.broker:
        eventually(logged)
    for connection in busy:
        connection.close()
    assert len(logged()) == 1


def test_a_failed_self_test_leaves_nothing_in_a_shared_session(pgbouncer: StartPgBouncer, logged: Logged) -> None:
    pooler = pgbouncer(default_pool_size=1)
    subscriber = RecordingSubscriber(
        PostgresConfig(database_url=pooler.url), replace(WITHOUT_PROOF, test_timeout_s=0.5)
    )
    with subscriber.broker:
        eventually(lambda: left_behind(pooler) == [Channel.TEST.name_in("horsies")])
        eventually(logged)
        assert left_behind(pooler) == []
        assert subscriber.is_polling
    assert len(logged()) == 1


def test_a_listener_closed_during_its_self_test_leaves_nothing_behind(
    pgbouncer: StartPgBouncer,
) -> None:
    pooler = pgbouncer(default_pool_size=1)
    subscriber = RecordingSubscriber(PostgresConfig(database_url=pooler.url), WITHOUT_PROOF)
    eventually(lambda: left_behind(pooler))
    subscriber.broker.close()
    assert left_behind(pooler) == []


def test_through_a_session_pooler_notifications_arrive(
    pgbouncer: StartPgBouncer, sql: psycopg.Connection, logged: Logged
) -> None:
    pooler = pgbouncer(pool_mode="session", server_reset_query="")
    subscriber = RecordingSubscriber(PostgresConfig(database_url=pooler.url))
    with subscriber.broker:
        eventually(lambda: subscriber.receives(sql, "anything"))
        assert not subscriber.is_polling
    assert logged() == []
    with psycopg.connect(pooler.url, autocommit=True) as through:
        # The session that was given back last is handed out first.
        others = [psycopg.connect(pooler.url, autocommit=True) for _ in range(4)]
        assert [column(each, "select pg_listening_channels()") for each in (through, *others)] == [[]] * 5
        for each in others:
            each.close()


def test_notifications_arrive_through_a_direct_listen_url(
    pgbouncer: StartPgBouncer, database: str, sql: psycopg.Connection, logged: Logged
) -> None:
    subscriber = RecordingSubscriber(PostgresConfig(database_url=pgbouncer().url, listen_url=database))
    with subscriber.broker:
        eventually(lambda: subscriber.receives(sql, "anything"))
        assert not subscriber.is_polling
        assert len(column(sql, LISTENERS)) == 1
    assert logged() == []


def test_a_listen_url_that_leads_to_the_pooler_as_well_is_logged(pgbouncer: StartPgBouncer, logged: Logged) -> None:
    pooler = pgbouncer()
    subscriber = RecordingSubscriber(PostgresConfig(database_url=pooler.url, listen_url=pooler.url))
    with subscriber.broker:
        eventually(logged)
    assert "Set listen_url to a direct connection" in logged()[0]


def test_a_pooler_is_checked_again_after_a_while(
    pgbouncer: StartPgBouncer, sql: psycopg.Connection, logged: Logged
) -> None:
    """A pooler that was changed to a session pooler delivers notifications after all."""
    pooler = pgbouncer()
    subscriber = RecordingSubscriber(PostgresConfig(database_url=pooler.url), ListenerTimings(pooler_retry_s=0.05))
    with subscriber.broker:
        eventually(logged)
        pooler.stop()
        pooler.settings["pool_mode"] = "session"
        pooler.start()
        eventually(lambda: subscriber.receives(sql, "anything"))
        assert not subscriber.is_polling
