"""Answer the requests of one verb: with a connection from a pool while it asks, with none while it waits."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db.drive import answer_on, answer_on_async
from horsies.db.listen import Listener
from horsies.db.op import Ask, Copy, Listen, Request, Rows, Script, Wait

LISTEN_IN_FORCE_S = 2.0


class Blocking:
    """For a blocking caller."""

    def __init__(self, pool: Callable[[], ConnectionPool], listener: Callable[[], Listener], schema: str) -> None:
        self._pool = pool
        self._listener = listener
        self._schema = schema
        self.has_waited = False
        self._borrowed: tuple[ConnectionPool, psycopg.Connection] | None = None
        self._subscribed: tuple[Listener, Listen] | None = None
        self._bell = threading.Event()

    def __call__(self, request: Request) -> list[Rows] | None:
        match request:
            case Ask() | Copy() | Script():
                if self._borrowed is None:
                    pool = self._pool()
                    self._borrowed = pool, pool.getconn()
                return answer_on(self._borrowed[1], request, self._schema)
            case Listen(channel, key):
                listener = self._listener()
                self._subscribed = listener, request
                if not listener.subscribe(channel, key, self._ring):
                    self._bell.wait(LISTEN_IN_FORCE_S)
                self._bell.clear()
            case Wait(timeout_s, deaf_timeout_s):
                self.has_waited = True
                self._give_back()
                self._bell.wait(deaf_timeout_s if self._listener().is_deaf else timeout_s)
                self._bell.clear()
        return None

    def _ring(self, _payload: str | None) -> None:
        self._bell.set()

    def _give_back(self) -> None:
        borrowed, self._borrowed = self._borrowed, None
        if borrowed:
            pool, connection = borrowed
            with suppress(psycopg.Error):
                connection.rollback()  # does nothing unless a verb failed inside its transaction
            pool.putconn(connection)  # where it came from, which may have been closed meanwhile

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        if self._subscribed:
            listener, listening = self._subscribed
            listener.unsubscribe(listening.channel, listening.key, self._ring)


class Awaiting:
    """For an asyncio caller; belongs to its event loop."""

    def __init__(
        self, pool: Callable[[], Awaitable[AsyncConnectionPool]], listener: Callable[[], Listener], schema: str
    ) -> None:
        self._pool = pool
        self._listener = listener
        self._schema = schema
        self.has_waited = False
        self._borrowed: tuple[AsyncConnectionPool, psycopg.AsyncConnection] | None = None
        self._subscribed: tuple[Listener, Listen] | None = None
        self._bell = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def __call__(self, request: Request) -> list[Rows] | None:
        match request:
            case Ask() | Copy() | Script():
                if self._borrowed is None:
                    pool = await self._pool()
                    self._borrowed = pool, await pool.getconn()
                return await answer_on_async(self._borrowed[1], request, self._schema)
            case Listen(channel, key):
                listener = self._listener()
                self._subscribed = listener, request
                if not listener.subscribe(channel, key, self._ring):
                    await self._wait(LISTEN_IN_FORCE_S)
                self._bell.clear()
            case Wait(timeout_s, deaf_timeout_s):
                self.has_waited = True
                await self._give_back()
                await self._wait(deaf_timeout_s if self._listener().is_deaf else timeout_s)
                self._bell.clear()
        return None

    async def _wait(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._bell.wait()

    def _ring(self, _payload: str | None) -> None:
        with suppress(RuntimeError):  # the loop was closed while this waiter was being thrown away
            self._loop.call_soon_threadsafe(self._bell.set)

    async def _give_back(self) -> None:
        borrowed, self._borrowed = self._borrowed, None
        if borrowed:
            pool, connection = borrowed
            with suppress(psycopg.Error):
                await connection.rollback()
            await pool.putconn(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._give_back()
        if self._subscribed:
            listener, listening = self._subscribed
            listener.unsubscribe(listening.channel, listening.key, self._ring)
