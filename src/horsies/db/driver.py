"""The two drivers that answer a verb's requests: one blocking, one asyncio. Every statement passes through here."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db import faults
from horsies.db.pipeline import copy_chunks, execute, execute_async
from horsies.db.statement import AnyRequest, Copy, Request, Rows, Script, render, render_script

R = TypeVar("R")
T = TypeVar("T")


def drive(op: Generator[R, Any, T], answer: Callable[[R], Any]) -> T:
    """Run a verb to its end, blocking."""
    try:
        request = next(op)
        while True:
            try:
                reply = answer(request)
            except BaseException as error:  # noqa: BLE001 - the verb may know what to do; if not, it comes out again here
                request = op.throw(error)
            else:
                request = op.send(reply)
    except StopIteration as end:
        return end.value


async def drive_async(op: Generator[R, Any, T], answer: Callable[[R], Awaitable[Any]]) -> T:
    """Run a verb to its end, awaiting."""
    try:
        request = next(op)
        while True:
            try:
                reply = await answer(request)
            except BaseException as error:  # noqa: BLE001 - as above
                request = op.throw(error)
            else:
                request = op.send(reply)
    except StopIteration as end:
        return end.value


def execute_on(connection: psycopg.Connection, request: Request | Copy | Script, schema: str) -> list[Rows]:
    """One round trip on a blocking connection."""
    if isinstance(request, Script):
        connection.execute(render_script(request.statement.text, schema).encode())
        return []
    if isinstance(request, Copy):
        return _copy_on(connection, request, schema)
    faults.raise_planted(connection, request.names, "before")
    answers = execute(connection, request.spelled_out, schema, request.after_commit)
    faults.raise_planted(connection, request.names, "after")
    return request.answers(answers)


def _copy_on(connection: psycopg.Connection, request: Copy, schema: str) -> list[Rows]:
    names = [request.statement.name]
    faults.raise_planted(connection, names, "before")
    # Without parameters a percent sign is no placeholder, so nothing is doubled.
    text = render(request.statement.text, schema).encode()
    with connection.cursor() as cursor, cursor.copy(text) as copy:
        for piece in copy_chunks(request.lines):
            copy.write(piece)
    faults.raise_planted(connection, names, "after")
    return []


async def execute_on_async(
    connection: psycopg.AsyncConnection, request: Request | Copy | Script, schema: str
) -> list[Rows]:
    """One round trip on an asyncio connection."""
    if isinstance(request, Script):
        await connection.execute(render_script(request.statement.text, schema).encode())
        return []
    if isinstance(request, Copy):
        return await _copy_on_async(connection, request, schema)
    faults.raise_planted(connection, request.names, "before")
    answers = await execute_async(connection, request.spelled_out, schema, request.after_commit)
    faults.raise_planted(connection, request.names, "after")
    return request.answers(answers)


async def _copy_on_async(connection: psycopg.AsyncConnection, request: Copy, schema: str) -> list[Rows]:
    names = [request.statement.name]
    faults.raise_planted(connection, names, "before")
    text = render(request.statement.text, schema).encode()
    async with connection.cursor() as cursor, cursor.copy(text) as copy:
        for piece in copy_chunks(request.lines):
            await copy.write(piece)
    faults.raise_planted(connection, names, "after")
    return []


# --------
# Answer the requests of one verb with a connection from a pool: the same one for all of them.


class PooledSession:
    """For a blocking caller."""

    def __init__(self, pool: Callable[[], ConnectionPool], schema: str) -> None:
        self._pool = pool
        self._schema = schema
        self._borrowed: tuple[ConnectionPool, psycopg.Connection] | None = None

    def __call__(self, request: AnyRequest) -> list[Rows]:
        if self._borrowed is None:
            pool = self._pool()
            self._borrowed = pool, pool.getconn()
        return execute_on(self._borrowed[1], request, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._borrowed is not None:
            pool, connection = self._borrowed
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:  # a verb failed inside its transaction
                with suppress(psycopg.Error):
                    connection.rollback()
            pool.putconn(connection)  # where it came from, which may have been closed meanwhile


class AsyncPooledSession:
    """For an asyncio caller; belongs to its event loop."""

    def __init__(self, pool: Callable[[], Awaitable[AsyncConnectionPool]], schema: str) -> None:
        self._pool = pool
        self._schema = schema
        self._borrowed: tuple[AsyncConnectionPool, psycopg.AsyncConnection] | None = None

    async def __call__(self, request: AnyRequest) -> list[Rows]:
        if self._borrowed is None:
            pool = await self._pool()
            self._borrowed = pool, await pool.getconn()
        return await execute_on_async(self._borrowed[1], request, self._schema)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._borrowed is not None:
            pool, connection = self._borrowed
            with suppress(psycopg.Error):
                await connection.rollback()
            await pool.putconn(connection)
