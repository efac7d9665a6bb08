"""Connections of callers: which libraries are supported, what stays unchanged, and what is refused by name."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (Django and asyncpg come without types)

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

import asyncpg
import psycopg
import pytest
from django.db.utils import ConnectionHandler
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from horsies.db.broker import PostgresBroker
from horsies.db.statement import Op
from horsies.model.errors import UnsupportedConnectionError
from horsies.model.task import TaskId
from horsies.tasks.enqueue import enqueue_within
from tests.fixtures.callers import KINDS
from tests.fixtures.journey import new_task, row


def sending() -> Op[Sequence[TaskId]]:
    return enqueue_within([new_task()])


def sent(sql: psycopg.Connection) -> int:
    return int(row(sql, "select count(*) from horsies.tasks")[0])


def test_nothing_is_prepared_on_a_callers_connection(database: str, broker: PostgresBroker) -> None:
    with psycopg.connect(database, prepare_threshold=0) as connection:
        broker.run_on(connection, sending)
        assert connection.execute("select count(*) from pg_prepared_statements where not from_sql").fetchone() == (1,)


# -- what the caller has stays as it was


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    n: Mapped[int] = mapped_column(primary_key=True)


def test_a_session_is_neither_flushed_nor_expired(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    sql.execute("create table orders (n integer primary key)")
    engine = create_engine("postgresql+psycopg://", creator=partial(psycopg.connect, database))
    with Session(engine) as session:
        loaded, pending = Order(n=1), Order(n=2)
        session.add(loaded)
        session.flush()
        session.add(pending)
        broker.run_on(session, sending)
        assert pending in session.new
        assert "n" in loaded.__dict__
        session.commit()
    engine.dispose()
    assert sent(sql) == 1


def test_a_connection_that_streams_its_rows_can_be_used(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    engine = create_engine("postgresql+psycopg://", creator=partial(psycopg.connect, database))
    with engine.connect().execution_options(stream_results=True) as connection:
        broker.run_on(connection, sending)
        connection.commit()
    engine.dispose()
    assert sent(sql) == 1


def test_a_connection_from_a_pool_can_be_used(broker: PostgresBroker, database: str, sql: psycopg.Connection) -> None:
    with ConnectionPool(database, min_size=1, open=True) as pool, pool.connection() as connection:
        broker.run_on(connection, sending)
    assert sent(sql) == 1


async def test_an_async_connection_from_a_pool_can_be_used(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    async with AsyncConnectionPool(database, min_size=1, open=False) as pool, pool.connection() as connection:
        await broker.run_on_async(connection, sending)
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        await broker.run_on_async(connection, sending)
    assert sent(sql) == 2


async def test_an_async_scoped_session_can_be_used(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    engine = create_async_engine(
        "postgresql+psycopg://", async_creator=partial(psycopg.AsyncConnection.connect, database)
    )
    session = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    await broker.run_on_async(session, sending)
    assert sent(sql) == 0
    await session.commit()
    await session.close()
    await engine.dispose()
    assert sent(sql) == 1


# -- unsupported connections


def refusal(broker: PostgresBroker, connection: object) -> str:
    with pytest.raises(UnsupportedConnectionError) as caught:
        broker.run_on(connection, sending)
    return str(caught.value)


def refusal_async(broker: PostgresBroker, connection: object) -> str:
    with pytest.raises(UnsupportedConnectionError) as caught:
        asyncio.run(broker.run_on_async(connection, sending))
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_blocking_connection_in_async_code_or_the_reverse_is_refused_with_what_to_call(
    kind: str, database: str, broker: PostgresBroker
) -> None:
    caller = KINDS[kind](database)
    try:
        if kind.endswith("async") or "async-" in kind or "asyncpg" in kind:
            assert "use `await ….send_async(…)`" in refusal(broker, caller.connection)
        else:
            assert "would block the event loop; use `….send(…)`" in refusal_async(broker, caller.connection)
    finally:
        caller.close()


def test_another_database_below_sqlalchemy_is_refused_by_name(broker: PostgresBroker) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        message = refusal(broker, connection)
    engine.dispose()
    assert message.startswith("connection= is a Connection of sqlalchemy on sqlite+pysqlite; ")
    assert message.endswith("make the engine with postgresql+psycopg://")


def test_another_database_below_django_is_refused_by_name(broker: PostgresBroker) -> None:
    handler = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
    message = refusal(broker, handler["default"])
    assert message.startswith("connection= is Django's, on sqlite3.dbapi2; ")
    assert message.endswith("the ENGINE django.db.backends.postgresql with psycopg 3 installed")


@pytest.mark.parametrize("thing", ["postgresql://", 7, create_engine("sqlite://")])
def test_another_object_is_refused_with_a_list_of_supported_connections(thing: object, broker: PostgresBroker) -> None:
    assert "give a connection of psycopg 3, a Connection or Session of SQLAlchemy" in refusal(broker, thing)
    assert "Django's connection, an async one of these, or one of asyncpg" in refusal_async(broker, thing)


LENDING = """
import os, sys
import psycopg
from horsies.db.broker import PostgresBroker
from horsies.model.config import PostgresConfig
from horsies.db.statement import Statement, one

url = os.environ["HORSIES_DATABASE_URL"]
broker = PostgresBroker(PostgresConfig(database_url=url))
with psycopg.connect(url) as connection:
    broker.run_on(connection, lambda: one(Statement("s", "select 1")()))
print(*sys.modules.keys() & {"sqlalchemy", "django", "asyncpg", "psycopg2"})
"""


def test_no_library_is_loaded_that_the_caller_has_not_loaded(database: str) -> None:
    env = {**os.environ, "HORSIES_DATABASE_URL": database}
    done = subprocess.run([sys.executable, "-c", LENDING], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("\n", "")
