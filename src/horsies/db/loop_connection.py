"""A worker's connection on its event loop: a whole batch goes out in one piece, and the loop is called when the answer is there.

A thread beside the loop would add two hand-overs to every turn, and the driver's own asyncio connection costs more than its blocking
one. What is said, and how, is in `dialogue`.
"""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar, cast

import psycopg
from psycopg import pq

from horsies.db import faults
from horsies.db.driver import drive_async
from horsies.db.pipeline import Pipeline
from horsies.db.pool import connect_async
from horsies.db.pooler import CUSTOM_PLANS, UNLIMITED, PreparedStatements, apply_session_settings
from horsies.db.statement import AnyRequest, Op, Request, Rows, Statement, rows
from horsies.model.config import PostgresConfig

T = TypeVar("T")
OnDone: TypeAlias = list[Rows] | Exception

ROLLBACK = Statement("rollback", "rollback")
SESSION_SETTINGS = Statement(
    "settle_in",
    apply_session_settings(
        {
            **CUSTOM_PLANS,
            **UNLIMITED,
            # Bitmaps need a sort, which looks cheap while a table is empty.
            "enable_bitmapscan": "off",
            # The rest is what a transaction would have to say for itself each time (`worker/batch.sql`) in a session that is not ours; but for
            # the limit on idling in it, which nobody does in what is said in one piece.
            "lock_timeout": "10s",
            "statement_timeout": "%(statement_timeout_ms)s::pg_catalog.text",
        },
        greeted="%(greeted)s::pg_catalog.int4",
    ),
)


class LoopConnection:
    """One exchange at a time. Opened at the first need, thrown away when it breaks."""

    def __init__(self, config: PostgresConfig, purpose: str) -> None:
        self._config = config
        self._purpose = purpose
        self._preparing = PreparedStatements()
        self._session: _Session | None = None

    async def run(self, op: Op[T]) -> T:
        """The verb's own errors leave the connection in order; a broken one, or one that was given up midway, is closed."""
        try:
            if self._session is not None and self._session.is_broken:
                self.close()  # found out while nobody used it: nothing is lost, so nobody need be told
            session = self._session or await self._open()
            return await drive_async(op, session.answer)
        except psycopg.Error as error:
            await self.recover(error)
            raise
        except BaseException:
            self.close()
            raise

    @property
    def has_session(self) -> bool:
        """It has connected. The connection may have broken since."""
        return self._session is not None

    @property
    def is_ready(self) -> bool:
        """It has a connection, as far as it knows: something can be posted."""
        return self._session is not None and not self._session.is_broken

    def post(self, op: Op[T], on_done: Callable[[T | Exception], None]) -> None:
        """The same for a verb of one request, said at once: where there is one for every task, an asyncio task for each of them costs too much.

        Only when it is ready, and again only after it has landed; after an error of the database, `recover` first.
        """
        try:
            cast("_Session", self._session).post(next(op), lambda answer: on_done(_concluded(op, answer)))
        except BaseException:
            self.close()
            raise

    async def recover(self, error: psycopg.Error) -> None:
        """After an error the connection is idle again, or gone."""
        if self._preparing.has_failed(error):
            self.close()
        await self._clean()

    async def _open(self) -> "_Session":
        """On the loop, every step of it: a thread that waits for a silent server would keep a worker from leaving."""
        connection = await connect_async(self._config, self._purpose)
        try:
            session = self._session = _Session(connection, self._config.schema)
        except OSError as error:  # no descriptor is left
            connection.pgconn.finish()
            raise psycopg.OperationalError(str(error)) from error
        timeout_ms, greeted = self._config.statement_timeout_ms, connection.info.backend_pid
        settling = rows(SESSION_SETTINGS(statement_timeout_ms=timeout_ms, greeted=greeted))
        ((process, *_),) = await drive_async(settling, session.answer)
        session.is_ours = self._preparing.found(connection, process)
        return session

    async def _clean(self) -> None:
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


class _Session:
    def __init__(self, connection: psycopg.AsyncConnection, schema: str) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._pgconn.enter_pipeline_mode()
        self._pipeline = Pipeline(connection)
        self._schema = schema
        self.is_ours = False
        """And settled in: what is said together needs no frame."""
        self._loop = asyncio.get_running_loop()
        # A descriptor of our own: libpq closes its one when the connection breaks, and the next connection may get that number while
        # the loop still watches it for us.
        self._socket = os.dup(self._pgconn.socket)
        self._loop.add_reader(self._socket, self._readable)
        self._answered: Callable[[OnDone], None] | None = None

    @property
    def is_broken(self) -> bool:
        return self._pgconn.status == pq.ConnStatus.BAD

    async def answer(self, request: AnyRequest) -> list[Rows]:
        answered: asyncio.Future[list[Rows]] = self._loop.create_future()
        self.post(request, partial(_resolve, answered))
        return await answered

    def post(self, request: AnyRequest, answered: Callable[[OnDone], None]) -> None:
        """What was answered is told by the loop, never before this returns."""
        asked = cast("Request", request)
        try:
            faults.raise_planted(self._connection, asked.names, "before")
            self._say(asked, partial(self._received, asked, answered, is_framed=not self.is_ours))
        except psycopg.Error as error:
            self._loop.call_soon(answered, error)

    def _received(self, asked: Request, answered: Callable[[OnDone], None], answer: OnDone, *, is_framed: bool) -> None:
        if isinstance(answer, list):
            try:
                faults.raise_planted(self._connection, asked.names, "after")
                answer = asked.answers(answer) if is_framed else answer
            except psycopg.Error as error:
                answer = error
        answered(answer)

    async def roll_back(self) -> None:
        if self._pgconn.transaction_status != pq.TransactionStatus.IDLE:
            await self.answer(Request((ROLLBACK(),)))

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        os.close(self._socket)
        self._pgconn.finish()
        self._settle(psycopg.OperationalError("the connection was closed"))

    def _say(self, asked: Request, answered: Callable[[OnDone], None]) -> None:
        queries = asked.queries if self.is_ours else asked.spelled_out
        self._pipeline.say(queries, self._schema, asked.after_commit)
        if self._pgconn.flush():
            self._loop.add_writer(self._socket, self._writable)
        self._answered = answered

    def _writable(self) -> None:
        try:
            if self._pgconn.flush():
                return
        except psycopg.Error as error:
            self._loop.remove_writer(self._socket)
            self._settle(error)
        else:
            self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        try:
            if (answer := self._pipeline.receive_message()) is not None:
                self._settle(answer)
        except Exception as error:  # noqa: BLE001 - the loop, which has called us, would only log it
            if self.is_broken:
                self._loop.remove_reader(self._socket)
            self._settle(error)

    def _settle(self, outcome: OnDone) -> None:
        """Nobody waits any more for the answer to one who has heard of an error before."""
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(outcome)


def _resolve(answered: "asyncio.Future[list[Rows]]", answer: OnDone) -> None:
    """Nobody waits for the answer to one who was cancelled."""
    if answered.done():
        return
    if isinstance(answer, Exception):
        answered.set_exception(answer)
    else:
        answered.set_result(answer)


def _concluded(op: Op[T], answer: OnDone) -> T | Exception:
    try:
        if isinstance(answer, Exception):
            op.throw(answer)
        else:
            op.send(answer)
    except StopIteration as end:
        return end.value
    except Exception as error:  # noqa: BLE001 - whoever has posted it decides
        return error
    return AssertionError("a verb that is posted asks once")
