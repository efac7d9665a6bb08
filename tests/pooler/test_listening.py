"""Who hears through a pooler, who does not, and what either leaves behind."""

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


class Ear:
    def __init__(self, config: PostgresConfig, timings: ListenerTimings | None = None) -> None:
        self.broker = PostgresBroker(config, listener_timings=timings)
        self._received: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.broker.listener().subscribe(Channel.NEW, None, self._received.put)

    @property
    def is_polling(self) -> bool:
        return self.broker.listener().is_polling

    def hears(self, sql: psycopg.Connection, payload: str) -> bool:
        sql.execute("select pg_notify(%s, %s)", [Channel.NEW.name_in("horsies"), payload])
        while not self._received.empty():
            if self._received.get() == payload:
                return True
        return False


Said = Callable[[], list[str]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """The lines that our own loggers have written."""
    caplog.set_level(logging.WARNING, "horsies")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("horsies")]


def left_behind(pgbouncer: PgBouncer) -> list[object]:
    """What the only session of this pooler listens to."""
    with psycopg.connect(pgbouncer.url, autocommit=True) as through:
        return column(through, "select pg_listening_channels()")


def test_through_a_transaction_pooler_nothing_is_listened_to_and_one_line_says_what_to_set(
    pgbouncer: StartPgBouncer, sql: psycopg.Connection, said: Said
) -> None:
    pooler = pgbouncer(default_pool_size=1)
    ear = Ear(PostgresConfig(database_url=pooler.url))
    with ear.broker:
        eventually(said)
        assert ear.is_polling
        assert ear.broker.listener().subscribe(Channel.DONE, "x", lambda _: None), "nobody waits for LISTEN"
        assert left_behind(pooler) == []
        assert not ear.hears(sql, "anything")
    (line,) = said()
    assert "LISTEN does not work through a transaction pooler; polling instead" in line
    assert "Set listen_url to a direct connection" in line


@pytest.mark.parametrize("settings", [{}, {"server_round_robin": 1}])
def test_sessions_that_change_show_it_too(pgbouncer: StartPgBouncer, said: Said, settings: dict[str, int]) -> None:
    """Several sessions wait in the pooler, and strangers are busy in others."""
    pooler = pgbouncer(default_pool_size=5, **settings)
    busy = [psycopg.connect(pooler.url) for _ in range(4)]
    for connection in busy:
        connection.execute("select 1")
    for connection in busy[:2]:
        connection.rollback()
    ear = Ear(PostgresConfig(database_url=pooler.url))
    with ear.broker:
        eventually(said)
    for connection in busy:
        connection.close()
    assert len(said()) == 1


def test_what_a_failed_self_test_left_in_a_shared_session_is_taken_back(pgbouncer: StartPgBouncer, said: Said) -> None:
    pooler = pgbouncer(default_pool_size=1)
    ear = Ear(PostgresConfig(database_url=pooler.url), replace(WITHOUT_PROOF, test_timeout_s=0.5))
    with ear.broker:
        eventually(lambda: left_behind(pooler) == [Channel.TEST.name_in("horsies")])
        eventually(said)
        assert left_behind(pooler) == []
        assert ear.is_polling
    assert len(said()) == 1


def test_closed_in_the_middle_of_its_self_test_it_leaves_nothing_behind(
    pgbouncer: StartPgBouncer,
) -> None:
    pooler = pgbouncer(default_pool_size=1)
    ear = Ear(PostgresConfig(database_url=pooler.url), WITHOUT_PROOF)
    eventually(lambda: left_behind(pooler))
    ear.broker.close()
    assert left_behind(pooler) == []


def test_through_a_session_pooler_notifications_are_heard(
    pgbouncer: StartPgBouncer, sql: psycopg.Connection, said: Said
) -> None:
    pooler = pgbouncer(pool_mode="session", server_reset_query="")
    ear = Ear(PostgresConfig(database_url=pooler.url))
    with ear.broker:
        eventually(lambda: ear.hears(sql, "anything"))
        assert not ear.is_polling
    assert said() == []
    with psycopg.connect(pooler.url, autocommit=True) as through:
        # The session that was given back last is handed out first.
        others = [psycopg.connect(pooler.url, autocommit=True) for _ in range(4)]
        assert [column(each, "select pg_listening_channels()") for each in (through, *others)] == [[]] * 5
        for each in others:
            each.close()


def test_a_direct_listen_url_hears_while_everything_else_goes_through_the_pooler(
    pgbouncer: StartPgBouncer, database: str, sql: psycopg.Connection, said: Said
) -> None:
    ear = Ear(PostgresConfig(database_url=pgbouncer().url, listen_url=database))
    with ear.broker:
        eventually(lambda: ear.hears(sql, "anything"))
        assert not ear.is_polling
        assert len(column(sql, LISTENERS)) == 1
    assert said() == []


def test_a_listen_url_that_leads_to_the_pooler_as_well_is_told_so(pgbouncer: StartPgBouncer, said: Said) -> None:
    pooler = pgbouncer()
    ear = Ear(PostgresConfig(database_url=pooler.url, listen_url=pooler.url))
    with ear.broker:
        eventually(said)
    assert "Set listen_url to a direct connection" in said()[0]


def test_a_pooler_that_is_gone_for_a_while_is_asked_again(
    pgbouncer: StartPgBouncer, sql: psycopg.Connection, said: Said
) -> None:
    """A pooler that was changed to a session pooler delivers notifications after all."""
    pooler = pgbouncer()
    ear = Ear(PostgresConfig(database_url=pooler.url), ListenerTimings(pooler_retry_s=0.05))
    with ear.broker:
        eventually(said)
        pooler.stop()
        pooler.settings["pool_mode"] = "session"
        pooler.start()
        eventually(lambda: ear.hears(sql, "anything"))
        assert not ear.is_polling
