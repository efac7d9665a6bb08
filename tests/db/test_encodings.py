"""Text arrives unchanged, whatever encoding a role, a database, a URL or the environment sets; or it is refused."""

from typing import Any

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.model.errors import BrokerError, UnsupportedConnectionError
from horsies.tasks.enqueue import SLICE_ROWS
from tests.fixtures.callers import KINDS
from tests.fixtures.journey import column, new_task, row, send
from tests.fixtures.server import DatabaseServer, database_with
from tests.fixtures.workers import StartWorker

TEXTS = ["plain", "é", "日本", "😀"]
TIMEOUT_MS = 20_000

pytestmark = pytest.mark.promise("D5")


def echoed(basic: Any) -> list[object]:
    return [basic.echo.send(text).get(TIMEOUT_MS).unwrap() for text in TEXTS]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_the_environment_changes_no_text(
    basic: Any, worker: StartWorker, encoding: str, monkeypatch: pytest.MonkeyPatch, sql: psycopg.Connection
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", encoding)
    worker(env={"PGCLIENTENCODING": encoding})
    assert echoed(basic) == TEXTS
    basic.echo.send_many([basic.echo.call("é") for _ in range(SLICE_ROWS + 1)])  # by COPY
    assert set(column(sql, "select args ->> 'value' from horsies.all_tasks")) == set(TEXTS)


def test_a_role_or_a_database_changes_no_text(basic: Any, worker: StartWorker, sql: psycopg.Connection) -> None:
    sql.execute(f"alter database \"{sql.info.dbname}\" set client_encoding = 'LATIN1'".encode())
    worker()
    assert echoed(basic) == TEXTS
    assert set(column(sql, "select args ->> 'value' from horsies.all_tasks")) == set(TEXTS)


def test_a_url_changes_no_text(database: str, sql: psycopg.Connection) -> None:
    url = f"{database}{'&' if '?' in database else '?'}client_encoding=LATIN1"
    with PostgresBroker(PostgresConfig(database_url=url)) as broker:
        send(broker, new_task(args='{"value": "日本"}'))
    assert column(sql, "select args ->> 'value' from horsies.tasks") == ["日本"]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_a_database_that_cannot_hold_every_text_is_refused(server: DatabaseServer, encoding: str) -> None:
    refused = pytest.raises(BrokerError, match=rf"has the encoding {encoding}.*needs a database with the encoding UTF8")
    with database_with(server, encoding) as url:
        with PostgresBroker(PostgresConfig(database_url=url)) as broker:
            with refused as migrating:
                broker.migrate()
            assert not migrating.value.retryable
            with refused:
                send(broker, new_task())
        with refused:
            PostgresBroker.connect_with(PostgresConfig(database_url=url))
        with psycopg.connect(url, autocommit=True) as sql:
            assert row(sql, "select to_regnamespace('horsies') is null") == (True,)


async def test_an_unsuitable_database_is_refused_in_asyncio_code_too(server: DatabaseServer) -> None:
    with database_with(server, "LATIN1") as url:
        broker = PostgresBroker(PostgresConfig(database_url=url))
        with pytest.raises(BrokerError, match="has the encoding LATIN1"):
            await broker.migrate_async()
        await broker.close_async()


def test_a_worker_on_an_unsuitable_database_logs_the_error_and_exits(
    server: DatabaseServer, worker: StartWorker
) -> None:
    with database_with(server, "SQL_ASCII") as url:
        started = worker(database_url=url, until_ready=False)
        started.wait_for_log("has the encoding SQL_ASCII, which cannot hold every text")
        assert started.wait() != 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "asyncpg" not in kind])
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_callers_connection_with_another_encoding_is_refused_and_stays_usable(
    kind: str, encoding: str, database: str, basic: Any, sql: psycopg.Connection
) -> None:
    caller = KINDS[kind](database)
    try:
        with caller.transaction():
            caller.execute(f"set client_encoding = '{encoding}'")
            with pytest.raises(UnsupportedConnectionError, match=f"client_encoding {encoding}.*client_encoding=UTF8"):
                caller.send(basic.echo, "é")
            caller.execute("set client_encoding = 'UTF8'")
            caller.send(basic.echo, "日本")
    finally:
        caller.close()
    assert column(sql, "select args ->> 'value' from horsies.tasks") == ["日本"]
