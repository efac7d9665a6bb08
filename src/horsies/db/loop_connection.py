"""A worker's connection on its event loop: a batch is sent in one piece, and the loop calls back when the results are there.

A thread beside the loop would add two hand-overs to every batch, and the driver's own asyncio connection costs more than its
blocking one. `pipeline.py` has the protocol.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import psycopg
from psycopg import pq

from horsies.db.driver import drive_async
from horsies.db.pipeline import Pipeline
from horsies.db.pool import connect_async
from horsies.db.pooler import GENERIC_PLANS, UNLIMITED, PreparedStatements, apply_session_settings
from horsies.db.statement import AnyRequest, Op, Request, Rows, Statement
from horsies.model.config import PostgresConfig

T = TypeVar("T")

ROLLBACK = Statement("rollback", "rollback")
SESSION_SETTINGS = Statement(
    "apply_session_settings",
    apply_session_settings(
        {
            **GENERIC_PLANS,
            **UNLIMITED,
            # A bitmap scan needs a sort, which looks cheap while a table is empty.
            "enable_bitmapscan": "off",
            # The rest is what each transaction sets in a session that is not ours (`worker/batch.sql`), except the limit on idling in a
            # transaction: one that is sent in one piece never idles.
            "lock_timeout": "10s",
            "statement_timeout": "%(statement_timeout_ms)s::pg_catalog.text",
        },
        backend_pid="%(backend_pid)s::pg_catalog.int4",
    ),
)


class LoopConnection:
    """One request at a time. Opened at first use, discarded when it breaks."""

    def __init__(self, config: PostgresConfig, purpose: str) -> None:
        self._config = config
        self._purpose = purpose
        self._prepared = PreparedStatements()
        self._pgconn: pq.abc.PGconn | None = None  # while it is connected; it may have broken since
        self._under_way: tuple[Op[Any], Callable[[Any], None]] | None = None
        """The operation whose request was sent, and what to call with its result."""
        self.has_own_session = False
        """Its session is ours, and not one of a pooler, which may lead to another server at the next transaction."""

    async def run(self, op: Op[T]) -> T:
        """Run an operation. After its own errors the connection is usable; one that is broken, or was cancelled midway, is closed."""
        try:
            if not self.is_ready:
                self.close()  # it broke while it was idle: no result is lost, so there is no error to raise
                await self._open()
            return await drive_async(op, self._execute)
        except psycopg.Error as error:
            await self.recover(error)
            raise
        except BaseException:
            self.close()
            raise

    @property
    def is_ready(self) -> bool:
        """Whether it has a connection that is not known to be broken, so that `submit` may be called."""
        return self._pgconn is not None and self._pgconn.status != pq.ConnStatus.BAD

    def submit(self, op: Op[T], on_done: Callable[[T | Exception], None]) -> None:
        """Send an operation of one request now; the loop calls `on_done` with its result, never before this returns. An asyncio task for each
        batch would cost too much.

        Call only when it is ready, and not again before `on_done`; after a database error call `recover` first.
        """
        self._under_way = op, on_done
        try:
            self._pipeline.send(cast("Request", next(op)), self._config.schema)
            if self._pgconn is not None and self._pgconn.flush():
                self._loop.add_writer(self._socket, self._on_writable)
        except psycopg.Error as error:
            # Delivered in this round of the loop; nothing else can be submitted before the next one.
            self._loop.call_soon(self._deliver, error)
        except BaseException:
            self._under_way = None
            self.close()
            raise

    async def recover(self, error: psycopg.Error) -> None:
        """Make the connection idle after an error, or close it."""
        if self._prepared.has_failed(error):
            self.close()
        try:
            if self._pgconn is not None and self._pgconn.transaction_status != pq.TransactionStatus.IDLE:
                await self._execute(Request((ROLLBACK(),)))
        except psycopg.Error:
            self.close()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it. A request under way gets an error now."""
        pgconn, self._pgconn = self._pgconn, None
        if pgconn is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            os.close(self._socket)
            pgconn.finish()
            self._deliver(psycopg.OperationalError("the connection was closed"))

    async def _open(self) -> None:
        """Connect on the loop: a thread that waits for an unresponsive server would delay the exit of a worker."""
        connection = await connect_async(self._config, self._purpose)
        self._loop = asyncio.get_running_loop()
        try:
            connection.pgconn.enter_pipeline_mode()
            self._pipeline = Pipeline(connection)
            # Our own descriptor: libpq closes its own when the connection breaks, and the next connection may get that number while the
            # loop still watches it for us.
            self._socket = os.dup(connection.pgconn.socket)
            self._loop.add_reader(self._socket, self._on_readable)
        except OSError as error:  # no file descriptor is left
            connection.pgconn.finish()
            raise psycopg.OperationalError(str(error)) from error
        self._pgconn = connection.pgconn
        timeout_ms, reported = self._config.statement_timeout_ms, connection.info.backend_pid
        settings = SESSION_SETTINGS(statement_timeout_ms=timeout_ms, backend_pid=reported)
        ((row,),) = await self._execute(Request((settings,)))
        # If the session is ours, the settings apply to it, and a batch needs no frame.
        self.has_own_session = self._prepared.enable_if_ours(connection, row[0])
        self._pipeline.needs_frames = not self.has_own_session

    async def _execute(self, request: AnyRequest) -> list[Rows]:
        future: asyncio.Future[list[Rows]] = self._loop.create_future()

        def resolve(results: list[Rows] | Exception) -> None:
            if future.done():  # it was cancelled
                return
            if isinstance(results, Exception):
                future.set_exception(results)
            else:
                future.set_result(results)

        self.submit(_one_request(request), resolve)
        return await future

    def _on_writable(self) -> None:
        try:
            if self._pgconn is not None and self._pgconn.flush():
                return
        except psycopg.Error as error:
            self._loop.remove_writer(self._socket)
            self._deliver(error)
        else:
            self._loop.remove_writer(self._socket)

    def _on_readable(self) -> None:
        try:
            if (results := self._pipeline.receive()) is not None:
                self._deliver(results)
        except Exception as error:  # noqa: BLE001 - the loop, which has called us, would only log it
            if self._pgconn is not None and not self.is_ready:
                self._loop.remove_reader(self._socket)
            self._deliver(error)

    def _deliver(self, results: list[Rows] | Exception) -> None:
        """Resume the operation that is under way, and pass its result on. After an error there is none; late results are ignored."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        op, on_done = under_way
        outcome: object = AssertionError("a submitted operation may make only one request")
        try:
            if isinstance(results, Exception):
                op.throw(results)
            else:
                op.send(results)
        except StopIteration as end:
            outcome = end.value
        except Exception as error:  # noqa: BLE001 - the caller of `submit` decides
            outcome = error
        on_done(outcome)


def _one_request(request: AnyRequest) -> Op[list[Rows]]:
    results: list[Rows] = yield request
    return results
