"""A verb on the caller's own connection: what it sends is part of their transaction, and appears or vanishes with it.

Nothing is tried again. After an error their transaction is broken, and only they know what else was in it; so the error that
their library raised comes out as it is, and what they do about the errors of their own statements works for it too. A
connection that is lost at their COMMIT leaves them what it always leaves: not knowing, about the task as about the rest.

On a connection that commits each statement by itself there is no transaction to be part of: the verb gets one of its own.
"""

import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from horsies.db import faults
from horsies.db.driver import drive, drive_async
from horsies.db.pipeline import numbered, texts
from horsies.db.statement import AnyRequest, Op, Query, Request, Rows, load, rows
from horsies.model.errors import SchemaError, UnsupportedConnectionError

# --------
# Connections that callers lend us: which libraries they may come from, and how a statement is run on each.
#
# SQLAlchemy and Django keep books about the transactions of their connections, so we speak through them and not past them: a Session
# begins its transaction, Django marks it broken, and an error is the one that the library raises for its own statements.
# Neither is imported here: a connection of theirs can only exist if the caller has imported it.
#
# A connection whose client_encoding is not UTF-8 is refused: texts that its encoding does not have could not be sent, schema names of ours would be
# misread, and with SQL_ASCII texts come back as bytes. The server has told the driver, so looking costs nothing.
#
# The search_path is the caller's and stays as it is: statements that run here name every operator, function and type with its schema.
#
# Every parameter is cast in our statements, so that asyncpg, which wants numbers for names and a type for each, gets text.

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
class CallerConnection(Generic[R]):
    """A lent connection, whatever library it is of."""

    driver: object
    """The connection of psycopg or asyncpg below it."""

    is_alone: bool
    """No transaction is open and none will be: each statement would be committed by itself."""

    execute: Callable[[Query, str], R]
    """Run one query with this schema; blocking callers get its rows, asyncio callers await them."""


def adapt_connection(connection: Any) -> CallerConnection[Rows]:
    """For a blocking caller."""
    if _is_any(connection, _PSYCOPG):
        if connection.pgconn.pipeline_status:
            with connection.pipeline():
                pass  # what is still on its way may begin a transaction, end one, or set the encoding: at a sync it is known
        _refuse_other_encodings(connection)
        return CallerConnection(connection, _is_alone(connection), partial(_execute_psycopg, connection))
    if _is_any(connection, _SQLALCHEMY):
        return _borrow_sqlalchemy(connection)
    if _is_any(connection, _DJANGO):
        return _borrow_django(connection)
    if _is_any(connection, _PSYCOPG_ASYNC + _SQLALCHEMY_ASYNC + _ASYNCPG):
        raise UnsupportedConnectionError(
            f"connection= is {_described(connection)}, which a blocking send cannot use; use `await ….send_async(…)`"
        )
    raise _unknown(connection)


async def adapt_connection_async(connection: Any) -> CallerConnection[Awaitable[Rows]]:
    """For an asyncio caller."""
    if _is_any(connection, _PSYCOPG_ASYNC):
        if connection.pgconn.pipeline_status:
            async with connection.pipeline():
                pass  # as above
        _refuse_other_encodings(connection)
        return CallerConnection(connection, _is_alone(connection), partial(_execute_psycopg_async, connection))
    if _is_any(connection, _SQLALCHEMY_ASYNC):
        return await _borrow_sqlalchemy_async(connection)
    if _is_any(connection, _ASYNCPG):
        _refuse_other_encodings(connection)
        return CallerConnection(connection, _is_alone(connection), partial(_execute_asyncpg, connection))
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


def _borrow_sqlalchemy(lent: Any) -> CallerConnection[Rows]:
    connection = (
        lent if _is_any(lent, _SQLALCHEMY[:1]) else lent.connection()
    )  # a Session's own; begins its transaction
    driver, is_alone = _look_below(connection)
    return CallerConnection(driver, is_alone, partial(_execute_sqlalchemy, connection))


async def _borrow_sqlalchemy_async(lent: Any) -> CallerConnection[Awaitable[Rows]]:
    connection = lent if _is_any(lent, _SQLALCHEMY_ASYNC[:1]) else await lent.connection()
    driver, is_alone = await connection.run_sync(_look_below)
    return CallerConnection(driver, is_alone, partial(connection.run_sync, _execute_sqlalchemy))


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


def _borrow_django(connection: Any) -> CallerConnection[Rows]:
    driver_name = getattr(getattr(connection, "Database", None), "__name__", "no database driver")
    if driver_name != "psycopg":
        raise UnsupportedConnectionError(
            f"connection= is Django's, on {driver_name}; sending inside a transaction of Django needs the ENGINE "
            "django.db.backends.postgresql with psycopg 3 installed"
        )
    connection.ensure_connection()
    driver = connection.connection
    _refuse_other_encodings(driver)
    return CallerConnection(driver, _is_alone(driver), partial(_execute_django, connection))


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


SQL = load(__file__)
T = TypeVar("T")

_NO_SUCH_TABLE = ("42P01", "3F000")
_ALREADY_BROKEN = "25P02"


def run_on_caller(connection: object, verb: Callable[[], Op[T]], schema: str) -> T:
    caller = adapt_connection(connection)
    with _explained(schema):
        return drive(_whole(verb, caller), partial(_answer, caller, schema))


async def run_on_caller_async(connection: object, verb: Callable[[], Op[T]], schema: str) -> T:
    caller = await adapt_connection_async(connection)
    with _explained(schema):
        return await drive_async(_whole(verb, caller), partial(_answer_async, caller, schema))


def _whole(verb: Callable[[], Op[T]], caller: CallerConnection[Rows] | CallerConnection[Awaitable[Rows]]) -> Op[T]:
    return _in_transaction(verb()) if caller.is_alone else verb()


def _in_transaction(op: Op[T]) -> Op[T]:
    yield from rows(SQL["begin_transaction"]())
    try:
        result = yield from op
    except BaseException:
        with suppress(Exception):  # the first error tells more; a lost connection rolls back by itself
            yield from rows(SQL["roll_back_transaction"]())
        raise
    yield from rows(SQL["commit_transaction"]())
    return result


def _answer(caller: CallerConnection[Rows], schema: str, request: AnyRequest) -> list[Rows]:
    queries = _queries(request)
    names = [query.statement.name for query in queries]
    faults.raise_planted(caller.driver, names, "before")
    answer = [caller.execute(query, schema) for query in queries]
    faults.raise_planted(caller.driver, names, "after")
    return answer


async def _answer_async(caller: CallerConnection[Awaitable[Rows]], schema: str, request: AnyRequest) -> list[Rows]:
    queries = _queries(request)
    names = [query.statement.name for query in queries]
    faults.raise_planted(caller.driver, names, "before")
    answer = [await caller.execute(query, schema) for query in queries]
    faults.raise_planted(caller.driver, names, "after")
    return answer


def _queries(request: AnyRequest) -> Sequence[Query]:
    if isinstance(request, Request):
        return request.queries
    raise TypeError(f"{request.statement.name!r} is no query, and has no place in a caller's transaction")


@contextmanager
def _explained(schema: str) -> Generator[None]:
    """Say more where the server's words do not tell a sender what to change."""
    try:
        yield
    except Exception as error:
        if (code := _sqlstate(error)) in _NO_SUCH_TABLE:
            raise SchemaError(
                f"the database of this connection has no tables of horsies in its schema {schema!r}; a transactional "
                "send needs the app's own database: if it is that one, run `horsies migrate`"
            ) from error
        if code == _ALREADY_BROKEN:
            error.add_note("An earlier statement of this transaction failed: roll it back, and send in a new one.")
        raise


def _sqlstate(error: BaseException | None) -> str | None:
    """SQLAlchemy and Django raise their own errors from the driver's."""
    while error is not None:
        if code := getattr(error, "sqlstate", None):
            return str(code)
        error = error.__cause__
    return None
