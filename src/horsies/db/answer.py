"""Answer the requests of one verb with a connection from a pool: the same one for all of them."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db.drive import answer_on, answer_on_async
from horsies.db.op import Request, Rows


class Blocking:
    """For a blocking caller."""

    def __init__(self, pool: Callable[[], ConnectionPool], schema: str) -> None:
        self._pool = pool
        self._schema = schema
        self._borrowed: tuple[ConnectionPool, psycopg.Connection] | None = None

    def __call__(self, request: Request) -> list[Rows]:
        if self._borrowed is None:
            pool = self._pool()
            self._borrowed = pool, pool.getconn()
        return answer_on(self._borrowed[1], request, self._schema)

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


class Awaiting:
    """For an asyncio caller; belongs to its event loop."""

    def __init__(self, pool: Callable[[], Awaitable[AsyncConnectionPool]], schema: str) -> None:
        self._pool = pool
        self._schema = schema
        self._borrowed: tuple[AsyncConnectionPool, psycopg.AsyncConnection] | None = None

    async def __call__(self, request: Request) -> list[Rows]:
        if self._borrowed is None:
            pool = await self._pool()
            self._borrowed = pool, await pool.getconn()
        return await answer_on_async(self._borrowed[1], request, self._schema)

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
