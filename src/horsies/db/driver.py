"""The drivers of operations, one blocking and one asyncio. Every statement passes through here."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db import faults
from horsies.db.pipeline import copy_chunks, execute, execute_async
from horsies.db.statement import AnyRequest, Op, Request, Rows, Script, render, render_script

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
    if isinstance(request, Request):
        return execute(connection, request, schema)
    statement = request.statement
    faults.raise_planted(connection, [statement()], "before")
    if isinstance(request, Script):
        connection.execute(render_script(statement.text, schema).encode())
    else:
        # Without parameters a percent sign is not a placeholder, so it is not doubled.
        text = render(statement.text, schema).encode()
        with connection.cursor() as cursor, cursor.copy(text) as copy:
            for chunk in copy_chunks(request.lines):
                copy.write(chunk)
    faults.raise_planted(connection, [statement()], "after")
    return []


async def execute_on_async(connection: psycopg.AsyncConnection, request: AnyRequest, schema: str) -> list[Rows]:
    """Execute one request on an asyncio connection."""
    if isinstance(request, Request):
        return await execute_async(connection, request, schema)
    statement = request.statement
    faults.raise_planted(connection, [statement()], "before")
    if isinstance(request, Script):
        await connection.execute(render_script(statement.text, schema).encode())
    else:
        text = render(statement.text, schema).encode()
        async with connection.cursor() as cursor, cursor.copy(text) as copy:
            for chunk in copy_chunks(request.lines):
                await copy.write(chunk)
    faults.raise_planted(connection, [statement()], "after")
    return []


def run_pooled(op: Op[T], get_pool: Callable[[], ConnectionPool], schema: str) -> T:
    """Run an operation on one connection of a pool, taken at its first request."""
    taken: list[tuple[ConnectionPool, psycopg.Connection]] = []

    def handle(request: AnyRequest) -> list[Rows]:
        if not taken:
            pool = get_pool()
            taken.append((pool, pool.getconn()))
        return execute_on(taken[0][1], request, schema)

    try:
        return drive(op, handle)
    finally:
        for pool, connection in taken:
            if connection.pgconn.transaction_status != TransactionStatus.IDLE:  # the operation failed in a transaction
                with suppress(psycopg.Error):
                    connection.rollback()
            pool.putconn(connection)  # the pool it came from: the broker may have closed that and made another


async def run_pooled_async(op: Op[T], get_pool: Callable[[], Awaitable[AsyncConnectionPool]], schema: str) -> T:
    """The same for an asyncio caller, on a pool of its event loop."""
    taken: list[tuple[AsyncConnectionPool, psycopg.AsyncConnection]] = []

    async def handle(request: AnyRequest) -> list[Rows]:
        if not taken:
            pool = await get_pool()
            taken.append((pool, await pool.getconn()))
        return await execute_on_async(taken[0][1], request, schema)

    try:
        return await drive_async(op, handle)
    finally:
        for pool, connection in taken:
            with suppress(psycopg.Error):
                await connection.rollback()
            await pool.putconn(connection)
