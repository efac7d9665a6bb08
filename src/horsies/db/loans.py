"""Connections that callers lend us: which libraries they may come from, and how a statement is run on each.

SQLAlchemy and Django keep books about the transactions of their connections, so we speak through them and not past them: a Session
begins its transaction, Django marks it broken, and an error is the one that the library raises for its own statements.
Neither is imported here: a connection of theirs can only exist if the caller has imported it.

A connection whose client_encoding is not UTF-8 is refused: texts that its encoding does not have could not be sent, schema names of ours would be
misread, and with SQL_ASCII texts come back as bytes. The server has told the driver, so looking costs nothing.

The search_path is the caller's and stays as it is: statements that run here name every operator, function and type with its schema.

Every parameter is cast in our statements, so that asyncpg, which wants numbers for names and a type for each, gets text.
"""

import sys
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from horsies.db.op import Query, Rows
from horsies.db.placeholders import numbered, texts
from horsies.model.errors import UnsupportedConnectionError

_PSYCOPG = ("psycopg:Connection",)
_PSYCOPG_ASYNC = ("psycopg:AsyncConnection",)
_SQLALCHEMY = ("sqlalchemy.engine:Connection", "sqlalchemy.orm:Session", "sqlalchemy.orm:scoped_session")
_SQLALCHEMY_ASYNC = (
    "sqlalchemy.ext.asyncio:AsyncConnection",
    "sqlalchemy.ext.asyncio:AsyncSession",
    "sqlalchemy.ext.asyncio:async_scoped_session",
)
_DJANGO = ("django.db.backends.base.base:BaseDatabaseWrapper", "django.utils.connection:ConnectionProxy")
_ASYNCPG = ("asyncpg.connection:Connection", "asyncpg.pool:PoolConnectionProxy")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Loan(Generic[R]):
    """A lent connection, whatever library it is of."""

    driver: object
    """The connection of psycopg or asyncpg below it."""

    is_alone: bool
    """No transaction is open and none will be: each statement would be committed by itself."""

    execute: Callable[[Query, str], R]
    """Run one query with this schema; blocking callers get its rows, asyncio callers await them."""


def borrow(connection: Any) -> Loan[Rows]:
    """For a blocking caller."""
    if _is_any(connection, _PSYCOPG):
        if connection.pgconn.pipeline_status:
            with connection.pipeline():
                pass  # what is still on its way may begin a transaction, end one, or set the encoding: at a sync it is known
        _refuse_other_encodings(connection)
        return Loan(connection, _is_alone(connection), partial(_execute_psycopg, connection))
    if _is_any(connection, _SQLALCHEMY):
        return _borrow_sqlalchemy(connection)
    if _is_any(connection, _DJANGO):
        return _borrow_django(connection)
    if _is_any(connection, _PSYCOPG_ASYNC + _SQLALCHEMY_ASYNC + _ASYNCPG):
        raise UnsupportedConnectionError(
            f"connection= is {_described(connection)}, which a blocking send cannot use; use `await ….send_async(…)`"
        )
    raise _unknown(connection)


async def borrow_async(connection: Any) -> Loan[Awaitable[Rows]]:
    """For an asyncio caller."""
    if _is_any(connection, _PSYCOPG_ASYNC):
        if connection.pgconn.pipeline_status:
            async with connection.pipeline():
                pass  # as above
        _refuse_other_encodings(connection)
        return Loan(connection, _is_alone(connection), partial(_execute_psycopg_async, connection))
    if _is_any(connection, _SQLALCHEMY_ASYNC):
        return await _borrow_sqlalchemy_async(connection)
    if _is_any(connection, _ASYNCPG):
        _refuse_other_encodings(connection)
        return Loan(connection, _is_alone(connection), partial(_execute_asyncpg, connection))
    if _is_any(connection, _PSYCOPG + _SQLALCHEMY + _DJANGO):
        raise UnsupportedConnectionError(
            f"connection= is {_described(connection)}, which would block the event loop; "
            "use `….send(…)` in blocking code, or give an async connection"
        )
    raise _unknown(connection)


# -- psycopg


def _execute_psycopg(connection: "psycopg.Connection[Any]", query: Query, schema: str) -> Rows:
    # A cursor of our own making: the connection's may return dicts, or read `$1` where we write `%(id)s`.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        # Inside a pipeline of the caller's the answer comes at its next sync, which the end of an inner one is.
        with connection.pipeline() if connection.pgconn.pipeline_status else nullcontext():
            cursor.execute(query.statement.for_schema(schema), query.params, prepare=False)
        return cursor.fetchall() if cursor.description else []


async def _execute_psycopg_async(connection: "psycopg.AsyncConnection[Any]", query: Query, schema: str) -> Rows:
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        async with connection.pipeline() if connection.pgconn.pipeline_status else nullcontext():
            await cursor.execute(query.statement.for_schema(schema), query.params, prepare=False)
        return await cursor.fetchall() if cursor.description else []


# -- SQLAlchemy


def _borrow_sqlalchemy(lent: Any) -> Loan[Rows]:
    connection = (
        lent if _is_any(lent, _SQLALCHEMY[:1]) else lent.connection()
    )  # a Session's own; begins its transaction
    driver, is_alone = _look_below(connection)
    return Loan(driver, is_alone, partial(_execute_sqlalchemy, connection))


async def _borrow_sqlalchemy_async(lent: Any) -> Loan[Awaitable[Rows]]:
    connection = lent if _is_any(lent, _SQLALCHEMY_ASYNC[:1]) else await lent.connection()
    driver, is_alone = await connection.run_sync(_look_below)
    return Loan(driver, is_alone, partial(connection.run_sync, _execute_sqlalchemy))


def _look_below(connection: Any) -> tuple[object, bool]:
    dialect = connection.dialect
    if dialect.driver not in {"psycopg", "asyncpg"}:
        raise UnsupportedConnectionError(
            f"connection= is {_described(connection)} on {dialect.name}+{dialect.driver}; sending inside a transaction "
            "of SQLAlchemy needs PostgreSQL through psycopg 3: make the engine with postgresql+psycopg://"
        )
    pooled = connection.connection
    _refuse_other_encodings(pooled.driver_connection)
    return pooled.driver_connection, pooled.dbapi_connection.autocommit and _is_alone(pooled.driver_connection)


def _execute_sqlalchemy(connection: Any, query: Query, schema: str) -> Rows:
    if connection.dialect.driver == "asyncpg":
        text, params = _as_text(query, schema)
    else:
        text, params = query.statement.for_schema(schema).decode(), dict(query.params)
    # Streaming, if the caller has chosen it for the connection, would declare a cursor for an INSERT.
    result = connection.exec_driver_sql(text, params, execution_options={"stream_results": False})
    return [tuple(row) for row in result] if result.returns_rows else []


# -- Django


def _borrow_django(connection: Any) -> Loan[Rows]:
    driver_name = getattr(getattr(connection, "Database", None), "__name__", "no database driver")
    if driver_name != "psycopg":
        raise UnsupportedConnectionError(
            f"connection= is Django's, on {driver_name}; sending inside a transaction of Django needs the ENGINE "
            "django.db.backends.postgresql with psycopg 3 installed"
        )
    connection.ensure_connection()
    driver = connection.connection
    _refuse_other_encodings(driver)
    return Loan(driver, _is_alone(driver), partial(_execute_django, connection))


def _execute_django(connection: Any, query: Query, schema: str) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(query.statement.for_schema(schema).decode(), dict(query.params))
        return cursor.fetchall() if cursor.description else []


# -- asyncpg


async def _execute_asyncpg(connection: Any, query: Query, schema: str) -> Rows:
    text, params = _as_text(query, schema)
    return [tuple(row) for row in await connection.fetch(text, *params)]


def _as_text(query: Query, schema: str) -> tuple[str, tuple[str | None, ...]]:
    """The first cast of each parameter tells asyncpg what it gets, the second one the server what to make of it."""
    text, names = numbered(query.statement.text, schema, "::pg_catalog.text")
    return text, tuple(texts(query.params, names))


# -- which is which


def _refuse_other_encodings(driver: Any) -> None:
    if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        told = driver.info.parameter_status
    else:
        told = partial(_setting_of_asyncpg, driver)
    client, server = told("client_encoding"), told("server_encoding")
    if not _is_utf8(server):
        raise UnsupportedConnectionError(
            f"connection= leads to a database with the encoding {server}, which cannot hold every text; horsies needs one with UTF8"
        )
    if not _is_utf8(client):
        raise UnsupportedConnectionError(
            f"connection= has the client_encoding {client}, in which not every text can be sent; connect with client_encoding=UTF8, "
            "or run `set client_encoding to 'UTF8'` on it"
        )


def _setting_of_asyncpg(driver: Any, name: str) -> str | None:
    return getattr(driver.get_settings(), name, None)


def _is_utf8(encoding: str | None) -> bool:
    """A pooler may not tell. asyncpg shows what it has asked for, in its own spelling."""
    return encoding is None or encoding.upper().replace("-", "") == "UTF8"


def _is_alone(driver: Any) -> bool:
    if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        return driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE
    return not driver.is_in_transaction()


def _is_any(connection: object, names: tuple[str, ...]) -> bool:
    """Whether it is of one of these classes, given as `module:Class`, as far as their modules are loaded."""
    known = (name.split(":") for name in names)
    kinds = tuple(getattr(sys.modules[module], kind) for module, kind in known if module in sys.modules)
    return isinstance(connection, kinds)


def _described(connection: object) -> str:
    kind = type(connection)
    return f"a {kind.__qualname__} of {kind.__module__.partition('.')[0]}"


def _unknown(connection: object) -> UnsupportedConnectionError:
    return UnsupportedConnectionError(
        f"connection= is {_described(connection)}; give a connection of psycopg 3, a Connection or Session of SQLAlchemy, "
        "Django's connection, an async one of these, or one of asyncpg"
    )
