"""The two drivers that answer a verb's requests: one blocking, one asyncio. Every statement passes through here."""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

import psycopg

from horsies.db import faults
from horsies.db.dialogue import converse, converse_async
from horsies.db.lines import in_pieces
from horsies.db.op import Ask, Copy, Rows, Script, render, render_script

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


def answer_on(connection: psycopg.Connection, request: Ask | Copy | Script, schema: str) -> list[Rows]:
    """One round trip on a blocking connection."""
    if isinstance(request, Script):
        connection.execute(render_script(request.statement.text, schema).encode())
        return []
    if isinstance(request, Copy):
        return _copy_on(connection, request, schema)
    faults.strike(connection, request.names, "before")
    answers = converse(connection, request.spelled_out, schema, request.afterwards)
    faults.strike(connection, request.names, "after")
    return request.answers(answers)


def _copy_on(connection: psycopg.Connection, request: Copy, schema: str) -> list[Rows]:
    names = [request.statement.name]
    faults.strike(connection, names, "before")
    # Without parameters a percent sign is no placeholder, so nothing is doubled.
    text = render(request.statement.text, schema).encode()
    with connection.cursor() as cursor, cursor.copy(text) as copy:
        for piece in in_pieces(request.lines):
            copy.write(piece)
    faults.strike(connection, names, "after")
    return []


async def answer_on_async(connection: psycopg.AsyncConnection, request: Ask | Copy | Script, schema: str) -> list[Rows]:
    """One round trip on an asyncio connection."""
    if isinstance(request, Script):
        await connection.execute(render_script(request.statement.text, schema).encode())
        return []
    if isinstance(request, Copy):
        return await _copy_on_async(connection, request, schema)
    faults.strike(connection, request.names, "before")
    answers = await converse_async(connection, request.spelled_out, schema, request.afterwards)
    faults.strike(connection, request.names, "after")
    return request.answers(answers)


async def _copy_on_async(connection: psycopg.AsyncConnection, request: Copy, schema: str) -> list[Rows]:
    names = [request.statement.name]
    faults.strike(connection, names, "before")
    text = render(request.statement.text, schema).encode()
    async with connection.cursor() as cursor, cursor.copy(text) as copy:
        for piece in in_pieces(request.lines):
            await copy.write(piece)
    faults.strike(connection, names, "after")
    return []
