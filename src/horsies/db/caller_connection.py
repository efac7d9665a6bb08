"""Operations on the caller's own connection: they are part of the caller's transaction, and are committed or rolled back with it.

Nothing is retried. After an error the transaction has failed, and only the caller knows what else was in it. So the error of the caller's
library is raised unchanged, and the caller can handle it like that of its own statements. If the connection is lost at the COMMIT,
the caller does not know whether the task was sent, just as for its own rows. On a connection in autocommit mode there is no
transaction to be part of: the operation gets one of its own.

SQLAlchemy and Django track the transactions of their connections, so statements go through them: a Session begins its transaction,
Django marks it as failed, and errors are those that the library raises for its own statements. Neither is imported here: a
connection of theirs can only exist if the caller has imported it.

A connection whose client_encoding is not UTF-8 is refused: text that its encoding lacks could not be sent, our schema names would be
misread, and with SQL_ASCII text is returned as bytes. The driver knows the encoding, so the check needs no round trip.

The search_path is the caller's and is not changed: statements that run here qualify every operator, function and type with its
schema. Every parameter is cast in our statements, so asyncpg, which wants numbered parameters and a type for each, gets text.
"""

import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeGuard, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from horsies.db import faults
from horsies.db.driver import drive, drive_async
from horsies.db.pipeline import number_parameters
from horsies.db.statement import AnyRequest, Op, Query, Request, Rows, load, rows, to_text
from horsies.model.errors import SchemaError, UnsupportedConnectionError

SQL = load(__file__)
R = TypeVar("R")
T = TypeVar("T")

_SQLALCHEMY = ("sqlalchemy.engine:Connection", "sqlalchemy.orm:Session", "sqlalchemy.orm:scoped_session")
_SQLALCHEMY_ASYNC = (
    "sqlalchemy.ext.asyncio:AsyncConnection",
    "sqlalchemy.ext.asyncio:AsyncSession",
    "sqlalchemy.ext.asyncio:async_scoped_session",
)
_DJANGO = ("django.db.backends.base.base:BaseDatabaseWrapper", "django.utils.connection:ConnectionProxy")
_ASYNCPG = ("asyncpg.connection:Connection", "asyncpg.pool:PoolConnectionProxy")

_UNDEFINED_TABLE_OR_SCHEMA = ("42P01", "3F000")
_IN_FAILED_TRANSACTION = "25P02"


def run_on_caller(connection: object, verb: Callable[[], Op[T]], schema: str) -> T:
    caller = _adapt(connection)

    def execute(request: AnyRequest) -> list[Rows]:
        queries = _queries_of(request)
        faults.raise_planted(caller.driver, queries, "before")
        results = [caller.execute(query, schema) for query in queries]
        faults.raise_planted(caller.driver, queries, "after")
        return results

    with _explain_errors(schema):
        op = _in_transaction(verb()) if caller.needs_transaction else verb()
        return drive(op, execute)


async def run_on_caller_async(connection: object, verb: Callable[[], Op[T]], schema: str) -> T:
    caller = await _adapt_async(connection)

    async def execute(request: AnyRequest) -> list[Rows]:
        queries = _queries_of(request)
        faults.raise_planted(caller.driver, queries, "before")
        results = [await caller.execute(query, schema) for query in queries]
        faults.raise_planted(caller.driver, queries, "after")
        return results

    with _explain_errors(schema):
        op = _in_transaction(verb()) if caller.needs_transaction else verb()
        return await drive_async(op, execute)


def _in_transaction(op: Op[T]) -> Op[T]:
    yield from rows(SQL["begin_transaction"]())
    try:
        result = yield from op
    except BaseException:
        with suppress(Exception):  # the first error says more; a lost connection is rolled back by the server
            yield from rows(SQL["roll_back_transaction"]())
        raise
    yield from rows(SQL["commit_transaction"]())
    return result


@dataclass(frozen=True, slots=True)
class CallerConnection(Generic[R]):
    """A caller's connection of any library."""

    driver: object
    """The connection of psycopg or asyncpg below it."""

    needs_transaction: bool
    """No transaction is open and none will begin by itself: each statement would be committed alone."""

    execute: Callable[[Query, str], R]
    """Run one query with this schema; blocking callers get its rows, asyncio callers await them."""


def _queries_of(request: AnyRequest) -> Sequence[Query]:
    if isinstance(request, Request):
        return request.queries
    raise TypeError(f"{request.statement.name!r} is not a query and cannot run in a caller's transaction")


@contextmanager
def _explain_errors(schema: str) -> Generator[None]:
    """Add what to change where the server's message does not say it."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error  # SQLAlchemy and Django raise their own errors from the driver's
        while cause is not None and not getattr(cause, "sqlstate", None):
            cause = cause.__cause__
        sqlstate = getattr(cause, "sqlstate", None)
        if sqlstate in _UNDEFINED_TABLE_OR_SCHEMA:
            raise SchemaError(
                f"the database of this connection has no tables of horsies in its schema {schema!r}; a transactional "
                "send needs the app's own database: if it is that one, run `horsies migrate`"
            ) from error
        if sqlstate == _IN_FAILED_TRANSACTION:
            error.add_note("An earlier statement of this transaction failed: roll it back, and send in a new one.")
        raise


def _is_psycopg(connection: Any) -> "TypeGuard[psycopg.Connection[Any]]":
    return isinstance(connection, psycopg.Connection)


def _is_psycopg_async(connection: Any) -> "TypeGuard[psycopg.AsyncConnection[Any]]":
    return isinstance(connection, psycopg.AsyncConnection)


def _adapt(connection: Any) -> CallerConnection[Rows]:
    if _is_psycopg(connection):
        if connection.pgconn.pipeline_status:
            with connection.pipeline():
                pass  # pending statements may begin or end a transaction, or set the encoding: a sync makes that known
        return CallerConnection(connection, _check_driver(connection), partial(_execute_psycopg, connection))
    if _is_any(connection, _SQLALCHEMY):
        is_session = not _is_any(connection, _SQLALCHEMY[:1])
        below = connection.connection() if is_session else connection  # a Session begins its transaction with this
        return CallerConnection(*_look_below(below), partial(_execute_sqlalchemy, below))
    if _is_any(connection, _DJANGO):
        name = getattr(getattr(connection, "Database", None), "__name__", "no database driver")
        if name != "psycopg":
            raise UnsupportedConnectionError(
                f"connection= is Django's, on {name}; sending inside a transaction of Django needs the ENGINE "
                "django.db.backends.postgresql with psycopg 3 installed"
            )
        connection.ensure_connection()
        driver = connection.connection
        return CallerConnection(driver, _check_driver(driver), partial(_execute_django, connection))
    if _is_psycopg_async(connection) or _is_any(connection, _SQLALCHEMY_ASYNC + _ASYNCPG):
        raise UnsupportedConnectionError(
            f"connection= is {_describe(connection)}, which a blocking send cannot use; use `await ….send_async(…)`"
        )
    raise _unknown(connection)


async def _adapt_async(connection: Any) -> CallerConnection[Awaitable[Rows]]:
    if _is_psycopg_async(connection):
        if connection.pgconn.pipeline_status:
            async with connection.pipeline():
                pass  # as above
        return CallerConnection(connection, _check_driver(connection), partial(_execute_psycopg_async, connection))
    if _is_any(connection, _SQLALCHEMY_ASYNC):
        is_session = not _is_any(connection, _SQLALCHEMY_ASYNC[:1])
        below = await connection.connection() if is_session else connection
        driver, needs_transaction = await below.run_sync(_look_below)
        return CallerConnection(driver, needs_transaction, partial(below.run_sync, _execute_sqlalchemy))
    if _is_any(connection, _ASYNCPG):
        return CallerConnection(connection, _check_driver(connection), partial(_execute_asyncpg, connection))
    if _is_psycopg(connection) or _is_any(connection, _SQLALCHEMY + _DJANGO):
        raise UnsupportedConnectionError(
            f"connection= is {_describe(connection)}, which would block the event loop; "
            "use `….send(…)` in blocking code, or give an async connection"
        )
    raise _unknown(connection)


def _is_any(connection: object, names: tuple[str, ...]) -> bool:
    """Whether it is an instance of one of these classes, given as `module:Class`, as far as their modules are loaded."""
    pairs = (name.split(":") for name in names)
    classes = tuple(getattr(sys.modules[module], name) for module, name in pairs if module in sys.modules)
    return isinstance(connection, classes)


def _describe(connection: object) -> str:
    kind = type(connection)
    return f"a {kind.__qualname__} of {kind.__module__.partition('.')[0]}"


def _unknown(connection: object) -> UnsupportedConnectionError:
    return UnsupportedConnectionError(
        f"connection= is {_describe(connection)}; give a connection of psycopg 3, a Connection or Session of SQLAlchemy, "
        "Django's connection, an async one of these, or one of asyncpg"
    )


def _look_below(connection: Any) -> tuple[object, bool]:
    """Return the driver's connection below one of SQLAlchemy, and whether it needs a transaction."""
    dialect = connection.dialect
    if dialect.driver not in {"psycopg", "asyncpg"}:
        raise UnsupportedConnectionError(
            f"connection= is {_describe(connection)} on {dialect.name}+{dialect.driver}; sending inside a transaction "
            "of SQLAlchemy needs PostgreSQL through psycopg 3: make the engine with postgresql+psycopg://"
        )
    pooled = connection.connection
    is_in_autocommit = _check_driver(pooled.driver_connection)
    return pooled.driver_connection, pooled.dbapi_connection.autocommit and is_in_autocommit


def _check_driver(driver: Any) -> bool:
    """Refuse a connection whose encoding is not UTF-8. Return whether no transaction is open and none will begin by itself."""
    if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        status = driver.info.parameter_status
        client, server = status("client_encoding"), status("server_encoding")
        is_in_autocommit = driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE
    else:
        settings = driver.get_settings()
        client, server = (getattr(settings, name, None) for name in ("client_encoding", "server_encoding"))
        is_in_autocommit = not driver.is_in_transaction()
    if not _is_utf8(server):
        raise UnsupportedConnectionError(
            f"connection= leads to a database with the encoding {server}, which cannot hold every text; horsies needs one with UTF8"
        )
    if not _is_utf8(client):
        raise UnsupportedConnectionError(
            f"connection= has the client_encoding {client}, in which not every text can be sent; connect with client_encoding=UTF8, "
            "or run `set client_encoding to 'UTF8'` on it"
        )
    return is_in_autocommit


def _is_utf8(encoding: str | None) -> bool:
    """A pooler may not report it. asyncpg returns what it has requested, in its own spelling."""
    return encoding is None or encoding.upper().replace("-", "") == "UTF8"


def _execute_psycopg(connection: "psycopg.Connection[Any]", query: Query, schema: str) -> Rows:
    # Our own cursor: the connection's may return dicts, or read `$1` where we write `%(id)s`.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        # Inside a pipeline of the caller the result comes at its next sync, which the end of a nested one is.
        with connection.pipeline() if connection.pgconn.pipeline_status else nullcontext():
            cursor.execute(query.statement.for_schema(schema), query.params, prepare=False)
        return cursor.fetchall() if cursor.description else []


async def _execute_psycopg_async(connection: "psycopg.AsyncConnection[Any]", query: Query, schema: str) -> Rows:
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        async with connection.pipeline() if connection.pgconn.pipeline_status else nullcontext():
            await cursor.execute(query.statement.for_schema(schema), query.params, prepare=False)
        return await cursor.fetchall() if cursor.description else []


def _execute_sqlalchemy(connection: Any, query: Query, schema: str) -> Rows:
    if connection.dialect.driver == "asyncpg":
        text, params = _to_asyncpg(query, schema)
    else:
        text, params = query.statement.for_schema(schema).decode(), dict(query.params)
    # Streaming, if the caller has chosen it for the connection, would declare a cursor for an INSERT.
    result = connection.exec_driver_sql(text, params, execution_options={"stream_results": False})
    return [tuple(row) for row in result] if result.returns_rows else []


def _execute_django(connection: Any, query: Query, schema: str) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(query.statement.for_schema(schema).decode(), dict(query.params))
        return cursor.fetchall() if cursor.description else []


async def _execute_asyncpg(connection: Any, query: Query, schema: str) -> Rows:
    text, params = _to_asyncpg(query, schema)
    return [tuple(row) for row in await connection.fetch(text, *params)]


def _to_asyncpg(query: Query, schema: str) -> tuple[str, tuple[str | None, ...]]:
    """Cast each parameter twice: first to text, for asyncpg, then by our SQL, for the server."""
    text, names = number_parameters(query.statement.text, schema, "::pg_catalog.text")
    return text, tuple(None if (value := query.params[name]) is None else to_text(value) for name in names)
