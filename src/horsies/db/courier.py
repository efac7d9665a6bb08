"""A worker's connection on its event loop: a whole batch goes out in one piece, and the loop is called when the answer is there.

It speaks to libpq directly. A turn of two tasks is six statements; the driver's cursors cost more time than the server takes for them, its
asyncio connection more still, and a thread beside the loop adds two hand-overs per turn. Here a statement is its text and
its parameters as text (every parameter is cast in the SQL), a batch is one write, and the results are read when all are in.

Statements are prepared when first used, if the session is ours (see `session`). A name counts as prepared only after a batch that
went well; names are never used twice, so one that was prepared in vain does no harm.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar, cast

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from horsies.db import faults
from horsies.db.connect import connect_async
from horsies.db.drive import drive_async
from horsies.db.op import Ask, Op, Query, Request, Rows, Statement, rows
from horsies.db.placeholders import numbered, texts
from horsies.db.session import BACKEND_PID, Preparing
from horsies.model.config import PostgresConfig

T = TypeVar("T")

_WHO_SERVES = Statement("who_serves", BACKEND_PID)
_FAILED = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)


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
            if self._session is not None and self._session.is_broken:
                self.close()  # found out while nobody used it: nothing is lost, so nobody need be told
            session = self._session or await self._open()
            return await drive_async(op, session.answer)
        except psycopg.Error as error:
            if self._preparing.has_failed(error):
                self.close()
            await self._clean()
            raise
        except BaseException:
            self.close()
            raise

    async def _open(self) -> "_Session":
        """On the loop, every step of it: a thread that waits for a silent server would keep a worker from leaving."""
        connection = await connect_async(self._config, self._purpose)
        try:
            session = self._session = _Session(connection, self._config.schema)
        except OSError as error:  # no descriptor is left
            connection.pgconn.finish()
            raise psycopg.OperationalError(str(error)) from error
        ((process,),) = await drive_async(rows(_WHO_SERVES()), session.answer)
        session.prepares = self._preparing.is_worthwhile(connection, process)
        return session

    async def _clean(self) -> None:
        """After an error the connection is idle again, or gone."""
        if self._session is not None:
            try:
                await self._session.roll_back()
            except psycopg.Error:
                self.close()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Whoever waits for an answer gets an error now."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


@dataclass(slots=True)
class _Exchange:
    """A batch on its way."""

    answered: asyncio.Future[list[pq.abc.PGresult]]
    results: list[pq.abc.PGresult] = field(default_factory=list["pq.abc.PGresult"])

    @property
    def error(self) -> psycopg.Error | None:
        """Of the first statement that failed, so far."""
        failed = next((result for result in self.results if result.status in _FAILED), None)
        return None if failed is None else error_from_result(failed)


class _Session:
    def __init__(self, connection: psycopg.AsyncConnection, schema: str) -> None:
        self.prepares = False  # unless it is known that the session is ours
        self._connection = connection
        self._pgconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self._pgconn.enter_pipeline_mode()
        self._schema = schema
        self._prepared: dict[str, bytes] = {}
        self._names = count(1)
        self._loop = asyncio.get_running_loop()
        # A descriptor of our own: libpq closes its one when the connection breaks, and the next connection may get that number while
        # the loop still watches it for us.
        self._socket = os.dup(self._pgconn.socket)
        self._loop.add_reader(self._socket, self._readable)
        self._exchange: _Exchange | None = None

    @property
    def is_broken(self) -> bool:
        return self._pgconn.status == pq.ConnStatus.BAD

    async def answer(self, request: Request) -> list[Rows]:
        queries = cast("Ask", request).queries
        names = [query.statement.name for query in queries]
        faults.strike(self._connection, names, "before")
        rows = await self._ask(queries)
        faults.strike(self._connection, names, "after")
        return rows

    async def roll_back(self) -> None:
        if self._pgconn.transaction_status != pq.TransactionStatus.IDLE:
            self._pgconn.send_query_params(b"rollback", None)
            await self._exchanged()

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        os.close(self._socket)
        self._pgconn.finish()
        self._fail(psycopg.OperationalError("the connection was closed"))

    # -- out

    async def _ask(self, queries: Sequence[Query]) -> list[Rows]:
        new: dict[str, bytes] = {}
        prepares = [self._send(query, new) for query in queries]
        results = iter(await self._exchanged())
        self._prepared |= new
        rows: list[Rows] = []
        for is_prepared_now in prepares:
            if is_prepared_now:
                next(results)
            rows.append(self._rows(next(results)))
        return rows

    def _send(self, query: Query, new: dict[str, bytes]) -> bool:
        """True: its preparation comes first, and is answered as well."""
        text, names = numbered(query.statement.text, self._schema)
        values = [None if value is None else value.encode() for value in texts(query.params, names)]
        if not self.prepares:
            self._pgconn.send_query_params(text.encode(), values)
            return False
        name = self._prepared.get(text) or new.get(text)
        is_new = name is None
        if name is None:
            name = new[text] = b"horsies_%d" % next(self._names)
            self._pgconn.send_prepare(name, text.encode())
        self._pgconn.send_query_prepared(name, values)
        return is_new

    async def _exchanged(self) -> list[pq.abc.PGresult]:
        """The results of all that was sent; the error of the first that failed."""
        self._pgconn.pipeline_sync()
        exchange = self._exchange = _Exchange(self._loop.create_future())
        self._flush()
        return await exchange.answered

    def _flush(self) -> None:
        try:
            is_full = self._pgconn.flush()
        except psycopg.Error as error:
            self._fail(error)
            return
        if is_full:
            self._loop.add_writer(self._socket, self._flush)
        else:
            self._loop.remove_writer(self._socket)

    # -- in

    def _readable(self) -> None:
        try:
            self._pgconn.consume_input()
            while self._exchange and not self._pgconn.is_busy():
                self._take_in(self._exchange, self._pgconn.get_result())
        except psycopg.Error as error:
            self._loop.remove_reader(self._socket)
            self._fail(error)

    def _take_in(self, exchange: _Exchange, result: "pq.abc.PGresult | None") -> None:
        if result is None:  # between two statements
            return
        if result.status != pq.ExecStatus.PIPELINE_SYNC:
            exchange.results.append(result)
            return
        self._exchange = None
        if exchange.answered.done():
            return
        if error := exchange.error:
            exchange.answered.set_exception(error)
        else:
            exchange.answered.set_result(exchange.results)

    def _fail(self, error: psycopg.Error) -> None:
        """If the server has said why it closes the connection, that tells more than that it is closed."""
        exchange, self._exchange = self._exchange, None
        if exchange and not exchange.answered.done():
            exchange.answered.set_exception(exchange.error or error)

    def _rows(self, result: "pq.abc.PGresult") -> Rows:
        if not result.nfields:
            return []
        transformer = Transformer(self._connection)
        transformer.set_pgresult(result)
        return cast("Rows", transformer.load_rows(0, result.ntuples, cast("Callable[..., object]", tuple)))
