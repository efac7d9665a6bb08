"""A worker's connection on its event loop: a whole batch goes out in one piece, and the loop is called when the answer is there.

A thread beside the loop would add two hand-overs to every turn, and the driver's own asyncio connection costs more than its blocking
one. What is said, and how, is in `dialogue`.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import TypeVar, cast

import psycopg
from psycopg import pq

from horsies.db import faults
from horsies.db.connect import connect
from horsies.db.dialogue import Dialogue
from horsies.db.drive import drive_async
from horsies.db.op import Ask, Op, Query, Request, Rows, Statement
from horsies.db.session import Preparing
from horsies.model.config import PostgresConfig

T = TypeVar("T")

ROLLBACK = Statement("rollback", "rollback")


class Courier:
    """One exchange at a time. Opened at the first need, thrown away when it breaks."""

    def __init__(self, config: PostgresConfig, purpose: str) -> None:
        self._config = config
        self._purpose = purpose
        self._preparing = Preparing()
        self._session: _Session | None = None

    async def run(self, op: Op[T]) -> T:
        """The verb's own errors leave the connection in order; a broken one, or one that was given up midway, is closed."""
        try:
            if self._session is None:
                self._session = _Session(await self._open(), self._config.schema)
            return await drive_async(op, self._session.answer)
        except psycopg.Error as error:
            if self._preparing.has_failed(error):
                self.close()
            await self._clean()
            raise
        except BaseException:
            self.close()
            raise

    async def _open(self) -> psycopg.Connection:
        """In a thread: names are looked up and passwords checked on the way."""
        opening = asyncio.get_running_loop().run_in_executor(None, self._connect)
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise

    def _connect(self) -> psycopg.Connection:
        connection = connect(self._config, self._purpose)
        self._preparing.begin(connection)
        return connection

    async def _clean(self) -> None:
        """After an error the connection is idle again, or gone."""
        if self._session is not None:
            try:
                await self._session.roll_back()
            except psycopg.Error:
                self.close()

    def close(self) -> None:
        """Whoever waits for an answer gets an error now."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _close_unwanted(opening: "asyncio.Future[psycopg.Connection]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


class _Session:
    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._pgconn.enter_pipeline_mode()
        self._dialogue = Dialogue(connection)
        self._schema = schema
        self._loop = asyncio.get_running_loop()
        # A descriptor of our own: libpq closes its one when the connection breaks, and the next connection may get that number while
        # the loop still watches it for us.
        self._socket = os.dup(self._pgconn.socket)
        self._loop.add_reader(self._socket, self._readable)
        self._answered: asyncio.Future[list[Rows]] | None = None

    async def answer(self, request: Request) -> list[Rows]:
        queries = cast("Ask", request).queries
        names = [query.statement.name for query in queries]
        faults.strike(self._connection, names, "before")
        rows = await self._ask(queries)
        faults.strike(self._connection, names, "after")
        return rows

    async def roll_back(self) -> None:
        if self._pgconn.transaction_status != pq.TransactionStatus.IDLE:
            await self._ask([ROLLBACK()])

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        os.close(self._socket)
        self._connection.close()
        self._settle(psycopg.OperationalError("the connection was closed"))

    async def _ask(self, queries: Sequence[Query]) -> list[Rows]:
        self._dialogue.say(queries, self._schema)
        self._answered = self._loop.create_future()
        self._flush()
        return await self._answered

    def _flush(self) -> None:
        try:
            is_full = self._pgconn.flush()
        except psycopg.Error as error:
            self._settle(error)
            return
        if is_full:
            self._loop.add_writer(self._socket, self._flush)
        else:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            if (answer := self._dialogue.hear()) is not None:
                self._settle(answer)
        except psycopg.Error as error:
            if self._pgconn.status != pq.ConnStatus.OK:
                self._loop.remove_reader(self._socket)
            self._settle(error)

    def _settle(self, outcome: list[Rows] | psycopg.Error) -> None:
        """Nobody waits for the answer to one who was cancelled, or who has heard of an error before."""
        answered, self._answered = self._answered, None
        if answered is None or answered.done():
            return
        if isinstance(outcome, psycopg.Error):
            answered.set_exception(outcome)
        else:
            answered.set_result(outcome)
