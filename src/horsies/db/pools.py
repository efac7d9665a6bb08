"""The connections that the verbs of one process run on: one pool for all threads, one for each event loop."""

import asyncio
import threading
import time
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db import connect
from horsies.db.session import Preparing
from horsies.model.config import PostgresConfig


@dataclass(frozen=True, slots=True)
class Census:
    """How many connections are open, and of these free; and how many callers wait for one."""

    size: int
    available: int
    waiting: int


class Pools:
    """Each is made at the first need, and again if it is needed after it was closed."""

    def __init__(
        self, config: PostgresConfig, preparing: Preparing, kind: type[AsyncConnectionPool] = AsyncConnectionPool
    ) -> None:
        self._config = config
        self._preparing = preparing
        self._kind = kind
        self._gave_up_at = -float("inf")
        self._lock = threading.Lock()
        self._blocking: ConnectionPool | None = None
        self._awaiting: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncConnectionPool] = WeakKeyDictionary()
        self._caretakers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()

    def blocking(self) -> ConnectionPool:
        """For threads."""
        with self._lock:
            if self._blocking is None:
                self._blocking = connect.make_pool(self._config, self._preparing, gave_up=self._try_again)
            return self._blocking

    async def awaiting(self) -> AsyncConnectionPool:
        """For the running event loop: a pool belongs to the one that it was made in."""
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._awaiting.get(loop)
            if pool is None:
                pool = self._awaiting[loop] = connect.make_async_pool(
                    self._config, self._preparing, self._kind, gave_up=self._try_again_async
                )
                self._caretakers[loop] = loop.create_task(_close_with_the_loop(pool))
        await pool.open()
        return pool

    def is_exhausted(self, pool: ConnectionPool | AsyncConnectionPool) -> bool:
        """Whether it was too small for those who waited in the last `connect_timeout_s`, and not cut off from the server."""
        is_cut_off = time.monotonic() - self._gave_up_at < self._config.connect_timeout_s
        return pool.get_stats()["pool_size"] >= self._config.pool_max_size and not is_cut_off

    def _try_again(self, pool: ConnectionPool) -> None:
        """It has given up to connect, also for those who wait already. Whoever comes later makes it try again."""
        self._gave_up_at = time.monotonic()
        if pool.get_stats()["requests_waiting"]:
            pool.check()

    async def _try_again_async(self, pool: AsyncConnectionPool) -> None:
        self._gave_up_at = time.monotonic()
        if pool.get_stats()["requests_waiting"]:
            await pool.check()

    def census(self) -> Census:
        """Of all of them together, from any thread. Nothing is opened for it."""
        with self._lock:
            pools = [*([self._blocking] if self._blocking else []), *self._awaiting.values()]
        found = [pool.get_stats() for pool in pools]
        return Census(
            *(sum(stats[key] for stats in found) for key in ("pool_size", "pool_available", "requests_waiting"))
        )

    def close(self) -> None:
        """That of the threads."""
        with self._lock:
            pool, self._blocking = self._blocking, None
        if pool:
            pool.close()

    async def close_async(self) -> None:
        """That of the running event loop."""
        loop = asyncio.get_running_loop()
        pool, caretaker = self._awaiting.pop(loop, None), self._caretakers.pop(loop, None)
        if pool and caretaker:
            await pool.close()
            caretaker.cancel()


async def _close_with_the_loop(pool: AsyncConnectionPool) -> None:
    """`asyncio.run` ends by cancelling every task and waiting for it. A worker of the pool that is connecting takes that for a failed
    connection, and goes on (psycopg_pool 3.3): somebody must tell it to stop, or the program never ends.
    """
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await pool.close()
