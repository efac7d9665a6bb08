"""The drivers of operations, one blocking and one asyncio. Every statement passes through here."""

import select
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.waiting import Ready, Wait

from horsies.db import faults
from horsies.db.pipeline import AnyConnection, Pipeline, copy_chunks
from horsies.db.statement import AnyRequest, Copy, Request, Rows, Script, render, render_script

R = TypeVar("R")
T = TypeVar("T")

_pipelines: "WeakKeyDictionary[AnyConnection, Pipeline]" = WeakKeyDictionary()


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
    """Execute one request, blocking. A connection that is abandoned in the middle of it, as by Ctrl-C, is closed."""
    if not isinstance(request, Request):
        return _execute_text(connection, request, schema)
    pgconn, results = connection.pgconn, None
    pipeline = _pipelines.get(connection) or _pipelines.setdefault(connection, Pipeline(connection))
    pgconn.enter_pipeline_mode()
    try:
        pipeline.send(request, schema)
        poll = select.poll()
        while results is None and pgconn.flush():
            poll.register(pgconn.socket, select.POLLIN | select.POLLOUT)
            poll.poll()
            results = pipeline.receive()  # reading also flushes, so all results may be there now
        poll.register(pgconn.socket, select.POLLIN)
        while results is None:
            poll.poll()
            results = pipeline.receive()
        return results
    finally:
        if pgconn.status == pq.ConnStatus.OK and pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
            pgconn.exit_pipeline_mode()
        else:
            connection.close()


async def execute_on_async(connection: psycopg.AsyncConnection, request: AnyRequest, schema: str) -> list[Rows]:
    """The same, awaiting. The driver's own pipeline would wait for the commit before it sends what comes after it."""
    if not isinstance(request, Request):
        return await _execute_text_async(connection, request, schema)
    pgconn = connection.pgconn
    pipeline = _pipelines.get(connection) or _pipelines.setdefault(connection, Pipeline(connection))
    pgconn.enter_pipeline_mode()
    try:
        pipeline.send(request, schema)
        return await connection.wait(_exchange(pgconn, pipeline))
    finally:
        if pgconn.status == pq.ConnStatus.OK and pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
            pgconn.exit_pipeline_mode()
        else:
            await connection.close()


def _exchange(pgconn: pq.abc.PGconn, pipeline: Pipeline) -> Generator[Wait, Ready | int, list[Rows]]:
    """Yield what the socket must be ready for, until all results are there."""
    while pgconn.flush():
        yield Wait.RW
        pgconn.consume_input()  # if the server's results filled its side of the connection, both sides would wait
    # Read before waiting: the results may be there already, taken in above or sent while this process was not running.
    while (results := pipeline.receive()) is None:
        yield Wait.R
    return results


def _execute_text(connection: psycopg.Connection, request: Copy | Script, schema: str) -> list[Rows]:
    statement = request.statement
    faults.raise_planted(connection, [statement()], "before")
    if isinstance(request, Script):
        connection.execute(render_script(statement.text, schema).encode())
    else:
        # Without parameters a percent sign is not a placeholder, so it is not doubled.
        with connection.cursor() as cursor, cursor.copy(render(statement.text, schema).encode()) as copy:
            for chunk in copy_chunks(request.lines):
                copy.write(chunk)
    faults.raise_planted(connection, [statement()], "after")
    return []


async def _execute_text_async(connection: psycopg.AsyncConnection, request: Copy | Script, schema: str) -> list[Rows]:
    statement = request.statement
    faults.raise_planted(connection, [statement()], "before")
    if isinstance(request, Script):
        await connection.execute(render_script(statement.text, schema).encode())
    else:
        async with connection.cursor() as cursor, cursor.copy(render(statement.text, schema).encode()) as copy:
            for chunk in copy_chunks(request.lines):
                await copy.write(chunk)
    faults.raise_planted(connection, [statement()], "after")
    return []
