"""How a connection to PostgreSQL is made: the same careful settings for every purpose."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db.pooler import PreparedStatements, nearest_moment, require_utf8
from horsies.model.config import PostgresConfig

RECONNECT_S = 1.0

_exact = psycopg.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, psycopg.pq.Format.TEXT)


class MomentLoader(Loader):
    """Reads moments that Python cannot represent (infinite, before the year 1, after 9999) as the earliest or the latest one.

    The driver raises an error for them. It comes when the statement has been committed: of a batch of claims, none would ever be run, because of
    one row that somebody wrote by hand.
    """

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        assert _exact is not None  # noqa: S101 - every release of the driver has one
        self._load = _exact(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            return self._load(data)
        except psycopg.DataError:
            return nearest_moment(bytes(data))


_adapters = AdaptersMap(psycopg.adapters)
_adapters.register_loader("timestamptz", MomentLoader)


def connect(config: PostgresConfig, purpose: str, *, url: str | None = None) -> psycopg.Connection:
    """A blocking connection; `purpose` is what `pg_stat_activity` shows."""
    connection = psycopg.connect(url or config.conninfo, **_settings(config, purpose))
    try:
        require_utf8(connection)
    except psycopg.Error:
        connection.close()
        raise
    return connection


async def connect_async(config: PostgresConfig, purpose: str) -> psycopg.AsyncConnection:
    """The same without blocking; whoever is cancelled meanwhile leaves nothing behind.

    For statements that read no moment but those that a constraint bounds: a loader in Python would cost every claim some microseconds.
    """
    settings: dict[str, Any] = {**_settings(config, purpose), "context": None}
    connection = await psycopg.AsyncConnection.connect(config.conninfo, **settings)
    try:
        require_utf8(connection)
    except psycopg.Error:
        await connection.close()
        raise
    return connection


def make_pool(
    config: PostgresConfig, preparing: PreparedStatements, *, gave_up: Callable[[ConnectionPool], None]
) -> ConnectionPool:
    """`gave_up` is called when it has failed to connect for `RECONNECT_S`; it tries again when it is checked, or asked for a connection."""
    return ConnectionPool(
        config.conninfo,
        kwargs=_settings(config, "producer"),
        configure=preparing.begin,
        check=preparing.go_on,
        reconnect_failed=gave_up,
        open=True,
        **_sizes(config),
    )


def make_async_pool(
    config: PostgresConfig,
    preparing: PreparedStatements,
    kind: type[AsyncConnectionPool],
    *,
    gave_up: Callable[[AsyncConnectionPool], Awaitable[None]],
) -> AsyncConnectionPool:
    return kind(
        config.conninfo,
        kwargs=_settings(config, "producer"),
        configure=preparing.begin_async,
        check=preparing.go_on_async,
        reconnect_failed=gave_up,
        open=False,
        **_sizes(config),
    )


def _sizes(config: PostgresConfig) -> dict[str, Any]:
    return {
        "min_size": config.pool_min_size,
        "max_size": config.pool_max_size,
        "timeout": config.connect_timeout_s,
        # The pool doubles its pause after each failed attempt, up to this span, and then gives up. By default that is five minutes.
        "reconnect_timeout": RECONNECT_S,
        "name": "horsies",
    }


def _settings(config: PostgresConfig, purpose: str) -> dict[str, Any]:
    return {
        "autocommit": True,
        "context": _adapters,
        "prepare_threshold": None,  # unless it is known that the session is ours
        "application_name": f"horsies {purpose}",
        "client_encoding": "UTF8",  # whatever the environment, the URL, the role or the database say: we write and read UTF-8
        "connect_timeout": config.connect_timeout_s,
        # A peer that vanished without a word is noticed in about half a minute, not in two hours.
        "keepalives": 1,
        "keepalives_idle": config.keepalives_idle_s,
        "keepalives_interval": config.keepalives_interval_s,
        "keepalives_count": config.keepalives_count,
        # Keepalives are silent while something waits to be acknowledged; without this a vanished peer is then noticed after 15 minutes.
        "tcp_user_timeout": 1000 * (config.keepalives_idle_s + config.keepalives_interval_s * config.keepalives_count),
    }


# --------
# The connections that the verbs of one process run on: one pool for all threads, one for each event loop.


@dataclass(frozen=True, slots=True)
class PoolStats:
    """How many connections are open, and of these free; and how many callers wait for one."""

    size: int
    available: int
    waiting: int


class ConnectionPools:
    """Each is made at the first need, and again if it is needed after it was closed."""

    def __init__(
        self,
        config: PostgresConfig,
        preparing: PreparedStatements,
        kind: type[AsyncConnectionPool] = AsyncConnectionPool,
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
                self._blocking = make_pool(self._config, self._preparing, gave_up=self._try_again)
            return self._blocking

    async def awaiting(self) -> AsyncConnectionPool:
        """For the running event loop: a pool belongs to the one that it was made in."""
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._awaiting.get(loop)
            if pool is None:
                pool = self._awaiting[loop] = make_async_pool(
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

    def pool_stats(self) -> PoolStats:
        """Of all of them together, from any thread. Nothing is opened for it."""
        with self._lock:
            pools = [*([self._blocking] if self._blocking else []), *self._awaiting.values()]
        found = [pool.get_stats() for pool in pools]
        return PoolStats(
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
