"""Operations on the caller's own connection: what they return, where they are committed, and how errors are explained."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (Django and asyncpg come without types)

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest
from django.db.utils import Error as DjangoError
from psycopg import errors
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from horsies.db.broker import PostgresBroker
from horsies.db.statement import Op, Query, Statement, execute, one, script
from horsies.model.errors import SchemaError
from horsies.model.task import TaskId
from horsies.tasks.enqueue import enqueue_within
from tests.fixtures.callers import (
    KINDS,
    Asyncpg,
    Autocommitting,
    Caller,
    Django,
    SqlAlchemy,
    SqlAlchemyAsyncSession,
)
from tests.fixtures.faults import Plant
from tests.fixtures.journey import new_task, row

OF_DRIVERS = (psycopg.Error, asyncpg.PostgresError, DBAPIError, DjangoError)


def query(text: str, /, **params: object) -> Query:
    return Statement("of_a_test", text)(**params)


def sending() -> Op[Sequence[TaskId]]:
    return enqueue_within([new_task()])


def sent(sql: psycopg.Connection) -> int:
    return int(row(sql, "select count(*) from horsies.tasks")[0])


# -- statements


def test_an_operation_gets_plain_rows_with_any_connection(caller: Caller, broker: PostgresBroker) -> None:
    moment = datetime(2001, 2, 3, 4, 5, 6, 7, UTC)

    def verb() -> Op[Any]:
        first = yield from one(
            query(
                "select %(text)s::text, %(number)s::integer + 1, %(none)s::text is null, %(flag)s::boolean, "
                "%(moment)s::timestamptz = '2001-02-03 04:05:06.000007+00', %(text)s::text like '100 %%'",
                text='100 % "é" {schema} $1',
                number=41,
                none=None,
                flag=True,
                moment=moment,
            )
        )
        both = yield from execute(
            query("select 1 where false"), query("select * from unnest(%(n)s::real[])", n=[1, 2.5])
        )
        return first, both

    with caller.transaction():
        assert caller.run(broker, verb) == (
            ('100 % "é" {schema} $1', 42, True, True, True, True),
            [[], [(1.0,), (2.5,)]],
        )


def test_a_script_is_refused_inside_a_callers_transaction(broker: PostgresBroker, database: str) -> None:
    with psycopg.connect(database) as connection, pytest.raises(TypeError, match="'s' is not a query"):
        broker.run_on(connection, lambda: script(Statement("s", "commit")))


# -- connections that commit each statement


def sending_and_failing() -> Op[None]:
    yield from sending()
    yield from execute(query("select 1 / %(zero)s::integer", zero=0))


class SqlAlchemyAutocommit(SqlAlchemy):
    def connect_with_engine(self) -> Any:
        return self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")


class SqlAlchemyAsyncAutocommit(SqlAlchemyAsyncSession):
    async def connect_with_engine(self) -> Any:
        return AsyncSession(self.engine.execution_options(isolation_level="AUTOCOMMIT"))


ALONE: dict[str, type[Caller]] = {
    "psycopg": Autocommitting,
    "sqlalchemy": SqlAlchemyAutocommit,
    "sqlalchemy-async": SqlAlchemyAsyncAutocommit,
    "django": Django,
    "asyncpg": Asyncpg,
}


@pytest.fixture(params=ALONE)
def autocommitting(request: pytest.FixtureRequest, database: str) -> Generator[Caller]:
    made = ALONE[request.param](database)
    yield made
    made.close()


def test_outside_a_transaction_a_task_is_sent_at_once(
    autocommitting: Caller, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    autocommitting.run(broker, sending)
    assert sent(sql) == 1


def test_outside_a_transaction_an_operation_is_atomic(
    autocommitting: Caller, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    with pytest.raises(OF_DRIVERS, match="division by zero"):
        autocommitting.run(broker, sending_and_failing)
    assert sent(sql) == 0
    autocommitting.run(broker, sending)  # and the connection is as good as before
    assert sent(sql) == 1


def test_in_a_pipeline_outside_a_transaction_an_operation_is_atomic(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    with psycopg.connect(database, autocommit=True) as connection, connection.pipeline():
        connection.execute("select 1")  # still pending: whether a transaction is open is not known
        with pytest.raises(psycopg.errors.DivisionByZero):
            broker.run_on(connection, sending_and_failing)
        assert sent(sql) == 0
        with connection.transaction():
            broker.run_on(connection, sending)
            assert sent(sql) == 0
        broker.run_on(connection, sending)
        assert sent(sql) == 2


async def test_in_an_asyncio_pipeline_outside_a_transaction_an_operation_is_atomic(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    connection = await psycopg.AsyncConnection.connect(database, autocommit=True)
    async with connection, connection.pipeline():
        await connection.execute("select 1")
        with pytest.raises(psycopg.errors.DivisionByZero):
            await broker.run_on_async(connection, sending_and_failing)
        assert sent(sql) == 0
        await broker.run_on_async(connection, sending)
        assert sent(sql) == 1


# -- errors


@contextmanager
def calling(kind: str, url: str) -> Generator[Caller]:
    caller = KINDS[kind](url)
    try:
        with caller.transaction():
            yield caller
    finally:
        caller.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "psycopg-pipeline"])
def test_in_a_failed_transaction_the_library_raises_its_own_error(
    kind: str, database: str, broker: PostgresBroker
) -> None:
    with pytest.raises(OF_DRIVERS, match="transaction is aborted") as caught, calling(kind, database) as caller:  # noqa: PT012 - the last one fails
        with pytest.raises(OF_DRIVERS, match="division by zero"):
            caller.execute("select 1 / 0")
        caller.run(broker, sending)
    assert "roll it back, and send in a new one" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy-session", "sqlalchemy-asyncpg-session", "django", "asyncpg"])
def test_a_database_without_our_tables_is_named_as_the_reason(
    kind: str, empty_database: str, broker: PostgresBroker
) -> None:
    reason = "no tables of horsies in its schema 'horsies'"
    with pytest.raises(SchemaError, match=reason), calling(kind, empty_database) as caller:
        caller.run(broker, sending)


def test_nothing_is_retried(caller: Caller, broker: PostgresBroker, faults: Plant, sql: psycopg.Connection) -> None:
    faults("enqueue_tasks", "after", "error")
    with pytest.raises(errors.InternalError_, match="planted fault"), caller.transaction():
        caller.run(broker, sending)
    assert sent(sql) == 0


def test_a_closed_connection_is_refused_as_its_library_does(broker: PostgresBroker, database: str) -> None:
    connection = psycopg.connect(database)
    connection.close()
    with pytest.raises(psycopg.OperationalError, match="the connection is closed"):
        broker.run_on(connection, sending)
