"""`PostgresBroker`: the pools, the listener and the drivers of one process, under one name."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from horsies.db import connect, migrate
from horsies.db.channels import Channel
from horsies.db.drive import answer_on, answer_on_async, drive, drive_async
from horsies.db.link import Link
from horsies.db.listen import Listener
from horsies.db.load import load
from horsies.db.op import Ask, Listen, Op, Request, Rows, Script, Wait, rows
from horsies.db.trouble import Trouble, broker_error, trouble_of
from horsies.model.config import PostgresConfig, WorkerResilienceConfig

ATTEMPTS = 5
LISTEN_IN_FORCE_S = 2.0

SQL = load(__file__)
T = TypeVar("T")


class PostgresBroker:
    """Runs verbs against one database. Made cheaply; connects at the first need; belongs to one process."""

    def __init__(
        self,
        config: PostgresConfig,
        *,
        resilience: WorkerResilienceConfig | None = None,
        first_listen_test_s: float = 1.0,
    ) -> None:
        self.config = config
        self._resilience = resilience or WorkerResilienceConfig()
        self._first_listen_test_s = first_listen_test_s
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Nothing is shared with the process we were forked from, whose sockets these are; it alone closes them."""
        self._lock = threading.Lock()
        self._pool: ConnectionPool | None = None
        self._async_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncConnectionPool] = WeakKeyDictionary()
        self._listener: Listener | None = None

    @classmethod
    def connect_with(cls, config: PostgresConfig) -> Self:
        """A broker without an app, for provisioning scripts; fails at once when the database cannot be reached."""
        broker = cls(config)
        broker.run(lambda: rows(SQL["ping"]()))
        return broker

    # -- verbs

    def run(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        """Run a verb, blocking. `again` is the verb for a second try when the outcome of the first is unknown."""
        for attempt in range(ATTEMPTS):
            try:
                with _Blocking(self) as answer:
                    return drive(verb(), answer)
            except psycopg.Error as error:
                verb = self._next_try(error, verb, again, attempt)
                time.sleep(_pause_s(attempt))
        raise AssertionError("the last attempt returns or raises")

    async def run_async(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        """The same for asyncio."""
        for attempt in range(ATTEMPTS):
            try:
                async with _Awaiting(self) as answer:
                    return await drive_async(verb(), answer)
            except psycopg.Error as error:
                verb = self._next_try(error, verb, again, attempt)
                await asyncio.sleep(_pause_s(attempt))
        raise AssertionError("the last attempt returns or raises")

    def _next_try(
        self,
        error: psycopg.Error,
        verb: Callable[[], Op[T]],
        again: Callable[[], Op[T]] | None,
        attempt: int,
    ) -> Callable[[], Op[T]]:
        trouble = trouble_of(error)
        follow_up = verb if trouble is Trouble.EXPECTED else again if trouble is Trouble.LOST else None
        if follow_up is None or attempt + 1 == ATTEMPTS or isinstance(error, PoolTimeout):
            raise broker_error(self._explain(error)) from error
        return follow_up

    def _explain(self, error: psycopg.Error) -> psycopg.Error:
        """A pool that ran out of time does not say why; one direct attempt does."""
        if isinstance(error, PoolTimeout):
            try:
                connect.connect(self.config, "producer").close()
            except psycopg.Error as reason:
                return reason
        return error

    # -- schema

    def migrate(self) -> list[str]:
        """Bring the schema to this library's version. Returns the migrations applied, oldest first."""
        link = Link(self.config, "migrations", url=self.config.listen_conninfo)
        try:
            return link.run(migrate.migrate(self.config.schema))
        except psycopg.Error as error:
            raise broker_error(error) from error
        finally:
            link.close()

    async def migrate_async(self) -> list[str]:
        return await asyncio.to_thread(self.migrate)

    def ensure_schema_initialized(self) -> None:
        self.migrate()

    async def ensure_schema_initialized_async(self) -> None:
        await self.migrate_async()

    # -- what the verbs run on

    def pool(self) -> ConnectionPool:
        with self._lock:
            if self._pool is None:
                self._pool = connect.make_pool(self.config)
            return self._pool

    async def async_pool(self) -> AsyncConnectionPool:
        """A pool belongs to the event loop it was made in."""
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._async_pools.get(loop)
            if pool is None:
                pool = self._async_pools[loop] = connect.make_async_pool(self.config)
        await pool.open()
        return pool

    def listener(self) -> Listener:
        with self._lock:
            if self._listener is None:
                self._listener = Listener(
                    self.config,
                    notify=self._notify,
                    resilience=self._resilience,
                    first_test_s=self._first_listen_test_s,
                )
            return self._listener

    def _notify(self, channel: Channel, payload: str) -> None:
        with self.pool().connection() as connection:
            text = SQL["notify"].for_schema(self.config.schema)
            connection.execute(text, {"channel": channel.name_in(self.config.schema), "payload": payload})

    # -- the end

    def close(self) -> None:
        """Close what blocking callers used. Safe to call twice; the broker works again if it is used again."""
        with self._lock:
            listener, self._listener = self._listener, None
            pool, self._pool = self._pool, None
        if listener:
            listener.close()
        if pool:
            pool.close()

    async def close_async(self) -> None:
        """Close also the pool of the running event loop."""
        pool = self._async_pools.pop(asyncio.get_running_loop(), None)
        if pool:
            await pool.close()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Blocking:
    """Answers the requests of one verb for a blocking caller; holds no connection while it waits."""

    def __init__(self, broker: PostgresBroker) -> None:
        self._broker = broker
        self._connection: psycopg.Connection | None = None
        self._listening: Listen | None = None
        self._bell = threading.Event()

    def __call__(self, request: Request) -> list[Rows] | None:
        match request:
            case Ask() | Script():
                if self._connection is None:
                    self._connection = self._broker.pool().getconn()
                return answer_on(self._connection, request, self._broker.config.schema)
            case Listen(channel, key):
                self._listening = request
                if not self._broker.listener().subscribe(channel, key, self._ring):
                    self._bell.wait(LISTEN_IN_FORCE_S)
                self._bell.clear()
            case Wait(timeout_s, deaf_timeout_s):
                self._give_back()
                self._bell.wait(deaf_timeout_s if self._broker.listener().is_deaf else timeout_s)
                self._bell.clear()
        return None

    def _ring(self, _payload: str | None) -> None:
        self._bell.set()

    def _give_back(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            with suppress(psycopg.Error):
                connection.rollback()  # does nothing unless a verb failed inside its transaction
            self._broker.pool().putconn(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        if self._listening:
            self._broker.listener().unsubscribe(self._listening.channel, self._listening.key, self._ring)


class _Awaiting:
    """The same for an asyncio caller."""

    def __init__(self, broker: PostgresBroker) -> None:
        self._broker = broker
        self._connection: psycopg.AsyncConnection | None = None
        self._listening: Listen | None = None
        self._bell = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def __call__(self, request: Request) -> list[Rows] | None:
        match request:
            case Ask() | Script():
                if self._connection is None:
                    self._connection = await (await self._broker.async_pool()).getconn()
                return await answer_on_async(self._connection, request, self._broker.config.schema)
            case Listen(channel, key):
                self._listening = request
                if not self._broker.listener().subscribe(channel, key, self._ring):
                    await self._wait(LISTEN_IN_FORCE_S)
                self._bell.clear()
            case Wait(timeout_s, deaf_timeout_s):
                await self._give_back()
                await self._wait(deaf_timeout_s if self._broker.listener().is_deaf else timeout_s)
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
        connection, self._connection = self._connection, None
        if connection:
            with suppress(psycopg.Error):
                await connection.rollback()
            await (await self._broker.async_pool()).putconn(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._give_back()
        if self._listening:
            self._broker.listener().unsubscribe(self._listening.channel, self._listening.key, self._ring)


def _pause_s(attempt: int) -> float:
    """Short and growing: a producer is somebody's web request, not a worker that can wait out an outage."""
    return random.uniform(0.5, 1.0) * 0.02 * 3**attempt  # noqa: S311 - jitter, no secret
