"""The drivers of operations, one blocking and one asyncio. Every statement passes through here."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db import faults
from horsies.db.pipeline import copy_chunks, execute, execute_async
from horsies.db.statement import AnyRequest, Copy, Rows, Script, render, render_script

R = TypeVar("R")
T = TypeVar("T")


def drive(op: Generator[R, Any, T], handle: Callable[[R], Any]) -> T:
    """Run an operation to its end, blocking."""
    try:
        request = next(op)
        while True:
            try:
                result = handle(request)
            except BaseException as error:  # noqa: BLE001 - the operation may handle it; if not, it is raised again here
                request = op.throw(error)
            else:
                request = op.send(result)
    except StopIteration as end:
        return end.value


async def drive_async(op: Generator[R, Any, T], handle: Callable[[R], Awaitable[Any]]) -> T:
    """Run an operation to its end, awaiting."""
    try:
        request = next(op)
        while True:
            try:
                result = await handle(request)
            except BaseException as error:  # noqa: BLE001 - as above
                request = op.throw(error)
            else:
                request = op.send(result)
    except StopIteration as end:
        return end.value


def execute_on(connection: psycopg.Connection, request: AnyRequest, schema: str) -> list[Rows]:
    """Execute one request on a blocking connection."""
    if isinstance(request, Script):
        connection.execute(render_script(request.statement.text, schema).encode())
        return []
    if isinstance(request, Copy):
        faults.raise_planted(connection, [request.statement.name], "before")
        # Without parameters a percent sign is not a placeholder, so it is not doubled.
        text = render(request.statement.text, schema).encode()
        with connection.cursor() as cursor, cursor.copy(text) as copy:
            for chunk in copy_chunks(request.lines):
                copy.write(chunk)
        faults.raise_planted(connection, [request.statement.name], "after")
        return []
    faults.raise_planted(connection, request.names, "before")
    results = execute(connection, request.framed_queries, schema, request.after_commit)
    faults.raise_planted(connection, request.names, "after")
    return request.without_frame(results)


async def execute_on_async(connection: psycopg.AsyncConnection, request: AnyRequest, schema: str) -> list[Rows]:
    """Execute one request on an asyncio connection."""
    if isinstance(request, Script):
        await connection.execute(render_script(request.statement.text, schema).encode())
        return []
    if isinstance(request, Copy):
        faults.raise_planted(connection, [request.statement.name], "before")
        text = render(request.statement.text, schema).encode()
        async with connection.cursor() as cursor, cursor.copy(text) as copy:
            for chunk in copy_chunks(request.lines):
                await copy.write(chunk)
        faults.raise_planted(connection, [request.statement.name], "after")
        return []
    faults.raise_planted(connection, request.names, "before")
    results = await execute_async(connection, request.framed_queries, schema, request.after_commit)
    faults.raise_planted(connection, request.names, "after")
    return request.without_frame(results)


class PooledSession:
    """Executes the requests of one operation on one connection of a pool, taken at the first of them."""

    def __init__(self, pool: Callable[[], ConnectionPool], schema: str) -> None:
        self._pool = pool
        self._schema = schema
        self._taken: tuple[ConnectionPool, psycopg.Connection] | None = None

    def __call__(self, request: AnyRequest) -> list[Rows]:
        if self._taken is None:
            pool = self._pool()
            self._taken = pool, pool.getconn()
        return execute_on(self._taken[1], request, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._taken is not None:
            pool, connection = self._taken
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:  # the operation failed in a transaction
                with suppress(psycopg.Error):
                    connection.rollback()
            pool.putconn(connection)  # the pool it came from: the broker may have closed that and made another


class AsyncPooledSession:
    """The same for an asyncio caller; belongs to its event loop."""

    def __init__(self, pool: Callable[[], Awaitable[AsyncConnectionPool]], schema: str) -> None:
        self._pool = pool
        self._schema = schema
        self._taken: tuple[AsyncConnectionPool, psycopg.AsyncConnection] | None = None

    async def __call__(self, request: AnyRequest) -> list[Rows]:
        if self._taken is None:
            pool = await self._pool()
            self._taken = pool, await pool.getconn()
        return await execute_on_async(self._taken[1], request, self._schema)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._taken is not None:
            pool, connection = self._taken
            with suppress(psycopg.Error):
                await connection.rollback()
            await pool.putconn(connection)
