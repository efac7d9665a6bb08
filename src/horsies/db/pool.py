"""Connections to PostgreSQL, all with the same settings, and the pools of a process: one for all threads, one for each event loop."""

import asyncio
import threading
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from horsies.db.pooler import PreparedStatements, clamp_timestamp, require_utf8
from horsies.model.config import PostgresConfig

AnyPool: TypeAlias = ConnectionPool | AsyncConnectionPool

RECONNECT_S = 1.0

_strict_loader = psycopg.adapters.get_loader(psycopg.adapters.types["timestamptz"].oid, psycopg.pq.Format.TEXT)


class ClampingTimestamptzLoader(Loader):
    """Reads times that Python cannot represent (infinity, before the year 1, after 9999) as the earliest or the latest one.

    The driver raises an error for them, after the statement was committed: one hand-written row would make a whole batch of claims fail.
    """

    def __init__(self, oid: int, context: AdaptContext | None = None) -> None:
        super().__init__(oid, context)
        assert _strict_loader is not None  # noqa: S101 - every release of the driver has one
        self._load = _strict_loader(oid, context).load

    def load(self, data: Buffer) -> datetime:
        try:
            return self._load(data)
        except psycopg.DataError:
            return clamp_timestamp(bytes(data))


_adapters = AdaptersMap(psycopg.adapters)
_adapters.register_loader("timestamptz", ClampingTimestamptzLoader)


def connect(config: PostgresConfig, purpose: str, *, url: str | None = None) -> psycopg.Connection:
    """Open a blocking connection; `pg_stat_activity` shows its purpose."""
    try:
        connection = psycopg.connect(url or config.conninfo, **_connection_settings(config, purpose))
    except OSError as error:  # no file descriptor is left; services would end by anything but an error of the driver
        raise psycopg.OperationalError(f"connection failed: {error}") from error
    try:
        require_utf8(connection)
    except psycopg.Error:
        connection.close()
        raise
    return connection


async def connect_async(config: PostgresConfig, purpose: str) -> psycopg.AsyncConnection:
    """Open an asyncio connection; nothing is left open if the caller is cancelled.

    For statements that read no times except those that a constraint limits: a loader in Python would cost every claim microseconds.
    """
    settings: dict[str, Any] = {**_connection_settings(config, purpose), "context": None}
    connection = await psycopg.AsyncConnection.connect(config.conninfo, **settings)
    try:
        require_utf8(connection)
    except psycopg.Error:
        await connection.close()
        raise
    return connection


def _connection_settings(config: PostgresConfig, purpose: str) -> dict[str, Any]:
    return {
        "autocommit": True,
        "context": _adapters,
        "prepare_threshold": None,  # until it is known that the session is ours
        "application_name": f"horsies {purpose}",
        "client_encoding": "UTF8",  # whatever the environment, the URL, the role or the database set
        "connect_timeout": config.connect_timeout_s,
        # A peer that vanished silently is noticed in about half a minute instead of two hours.
        "keepalives": 1,
        "keepalives_idle": config.keepalives_idle_s,
        "keepalives_interval": config.keepalives_interval_s,
        "keepalives_count": config.keepalives_count,
        # No keepalives are sent while data waits to be acknowledged; without this, a vanished peer is then noticed after 15 minutes.
        "tcp_user_timeout": 1000 * (config.keepalives_idle_s + config.keepalives_interval_s * config.keepalives_count),
    }


@dataclass(frozen=True, slots=True)
class PoolStats:
    """How many connections are open, how many of them are free, and how many callers wait for one."""

    size: int
    available: int
    waiting: int


class ConnectionPools:
    """Makes each pool at first use, and again if it is used after it was closed."""

    def __init__(
        self,
        config: PostgresConfig,
        prepared: PreparedStatements,
        async_class: type[AsyncConnectionPool] = AsyncConnectionPool,
        *,
        purpose: str = "producer",
    ) -> None:
        self._config = config
        self._prepared = prepared
        self._async_class = async_class
        self._purpose = purpose
        self._reconnect_failed_at = -float("inf")
        self._lock = threading.Lock()
        self._blocking: ConnectionPool | None = None
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncConnectionPool] = WeakKeyDictionary()
        self._closers: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = WeakKeyDictionary()

    def blocking_pool(self) -> ConnectionPool:
        """Return the pool of the threads."""
        with self._lock:
            if self._blocking is None:
                self._blocking = ConnectionPool(
                    configure=self._prepared.configure,
                    reconnect_failed=self._on_reconnect_failed,
                    open=True,
                    **self._pool_settings(),
                )
            return self._blocking

    async def async_pool(self) -> AsyncConnectionPool:
        """Return the pool of the running event loop: a pool belongs to the loop in which it was made."""
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._by_loop.get(loop)
            if pool is None:
                pool = self._by_loop[loop] = self._async_class(
                    configure=self._prepared.configure_async,
                    reconnect_failed=self._on_reconnect_failed_async,
                    open=False,
                    **self._pool_settings(),
                )
                self._closers[loop] = loop.create_task(_close_with_loop(pool))
        await pool.open()
        return pool

    def _pool_settings(self) -> dict[str, Any]:
        return {
            "conninfo": self._config.conninfo,
            "kwargs": _connection_settings(self._config, self._purpose),
            "min_size": self._config.pool_min_size,
            "max_size": self._config.pool_max_size,
            "timeout": self._config.connect_timeout_s,
            # The pool doubles its pause after each failed attempt, up to this time, and then gives up. The default is five minutes.
            "reconnect_timeout": RECONNECT_S,
            "name": "horsies",
        }

    def _on_reconnect_failed(self, pool: ConnectionPool) -> None:
        """Make a pool that gave up try again while callers wait for it. A later caller makes it try by itself."""
        self._reconnect_failed_at = time.monotonic()
        if pool.get_stats()["requests_waiting"]:
            pool.check()

    async def _on_reconnect_failed_async(self, pool: AsyncConnectionPool) -> None:
        self._reconnect_failed_at = time.monotonic()
        if pool.get_stats()["requests_waiting"]:
            await pool.check()

    def is_exhausted(self, pool: AnyPool) -> bool:
        """Whether the pool was too small for the callers of the last `connect_timeout_s`, instead of disconnected."""
        is_disconnected = time.monotonic() - self._reconnect_failed_at < self._config.connect_timeout_s
        return pool.get_stats()["pool_size"] >= self._config.pool_max_size and not is_disconnected

    def stats(self) -> PoolStats:
        """Return the sums over all pools. Safe from any thread; opens nothing."""
        with self._lock:
            pools = [*([self._blocking] if self._blocking else []), *self._by_loop.values()]
        stats = [pool.get_stats() for pool in pools]
        return PoolStats(
            *(sum(each[key] for each in stats) for key in ("pool_size", "pool_available", "requests_waiting"))
        )

    def close(self) -> None:
        """Close the pool of the threads."""
        with self._lock:
            pool, self._blocking = self._blocking, None
        if pool:
            pool.close()

    async def close_async(self) -> None:
        """Close the pool of the running event loop."""
        loop = asyncio.get_running_loop()
        pool, closer = self._by_loop.pop(loop, None), self._closers.pop(loop, None)
        if pool and closer:
            await pool.close()
            closer.cancel()


async def _close_with_loop(pool: AsyncConnectionPool) -> None:
    """Close the pool when `asyncio.run` cancels all tasks at its end.

    A pool task that is connecting treats the cancellation as a failed connection and continues (psycopg_pool 3.3): unless the pool is
    closed, the program never ends.
    """
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await pool.close()
