"""Migrations through a pooler."""

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.model.errors import BrokerError, SchemaError
from tests.fixtures.journey import row
from tests.fixtures.pgbouncer import StartPgBouncer
from tests.fixtures.proxies import Proxy

SCHEMA = "made_here"
TABLES = f"select count(*) > 5 from pg_tables where schemaname = '{SCHEMA}'"


@pytest.mark.parametrize("direct", [True, False])
def test_the_schema_is_created_through_listen_url_and_through_the_pooler(
    pgbouncer: StartPgBouncer,
    database: str,
    sql: psycopg.Connection,
    direct: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    pooler = pgbouncer(default_pool_size=1)
    config = PostgresConfig(database_url=pooler.url, listen_url=database if direct else None, schema=SCHEMA)
    with PostgresBroker(config) as broker:
        assert broker.migrate()
        assert broker.migrate() == []
    assert row(sql, TABLES) == (True,)


def test_a_listen_url_to_another_database_is_refused_before_anything_is_created_there(
    pgbouncer: StartPgBouncer, empty_database: str
) -> None:
    config = PostgresConfig(database_url=pgbouncer().url, listen_url=empty_database, schema=SCHEMA)
    with PostgresBroker(config) as broker, pytest.raises(SchemaError, match="listen_url and database_url lead to diff"):
        broker.migrate()
    with psycopg.connect(empty_database) as elsewhere:
        assert row(elsewhere, TABLES) == (False,)


def test_the_error_names_an_unreachable_listen_url(pgbouncer: StartPgBouncer, proxy: Proxy) -> None:
    proxy.cut()
    config = PostgresConfig(database_url=pgbouncer().url, listen_url=proxy.url)
    with PostgresBroker(config) as broker, pytest.raises(BrokerError, match=r"at listen_url.*refused") as caught:
        broker.migrate()
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("?", "?options=-cgeqo%3Doff&", "unsupported startup parameter: options"),
        ("/horsies", "/nothing", "bouncer config error|no such database"),
    ],
)
def test_permanent_refusals_of_the_pooler_are_not_retried(
    pgbouncer: StartPgBouncer, old: str, new: str, words: str
) -> None:
    config = PostgresConfig(database_url=pgbouncer().url.replace(old, new))
    with PostgresBroker(config) as broker, pytest.raises(BrokerError, match=words) as caught:
        broker.migrate()
    assert not caught.value.retryable
