"""The two drivers that answer a verb's requests: one blocking, one asyncio. Every statement passes through here."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

import psycopg

from horsies.db import faults
from horsies.db.op import Ask, Rows, Script, render

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


def answer_on(connection: psycopg.Connection, request: Ask | Script, schema: str) -> list[Rows]:
    """One round trip on a blocking connection."""
    if isinstance(request, Script):
        connection.execute(render(request.statement.text, schema).encode())
        return []
    names = [query.statement.name for query in request.queries]
    faults.strike(connection, names, "before")
    if len(request.queries) == 1:
        (query,) = request.queries
        cursors = [connection.execute(query.statement.for_schema(schema), query.params)]
    else:
        with connection.pipeline():
            cursors = [connection.execute(q.statement.for_schema(schema), q.params) for q in request.queries]
    answer = [cursor.fetchall() if cursor.description else [] for cursor in cursors]
    faults.strike(connection, names, "after")
    return answer


async def answer_on_async(connection: psycopg.AsyncConnection, request: Ask | Script, schema: str) -> list[Rows]:
    """One round trip on an asyncio connection."""
    if isinstance(request, Script):
        await connection.execute(render(request.statement.text, schema).encode())
        return []
    names = [query.statement.name for query in request.queries]
    faults.strike(connection, names, "before")
    if len(request.queries) == 1:
        (query,) = request.queries
        cursors = [await connection.execute(query.statement.for_schema(schema), query.params)]
    else:
        async with connection.pipeline():
            cursors = [await connection.execute(q.statement.for_schema(schema), q.params) for q in request.queries]
    answer = [await cursor.fetchall() if cursor.description else [] for cursor in cursors]
    faults.strike(connection, names, "after")
    return answer
