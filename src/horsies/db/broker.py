"""`PostgresBroker`: the pools, the listener and the waiters of one process.

A process closes its brokers before it ends. After a fork the child forgets the connections that it inherited: they belong to the
parent, which alone uses and closes them.
"""

import asyncio
import atexit
import os
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Self, TypeAlias, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncNullConnectionPool, PoolTimeout

from horsies.db import caller_connection, migrate
from horsies.db.channels import Channel
from horsies.db.driver import drive, drive_async, execute_on, execute_on_async
from horsies.db.errors import ErrorKind, broker_error, classify
from horsies.db.listener import Listener, ListenerTimings
from horsies.db.migrate import SchemaState
from horsies.db.pool import AnyPool, ConnectionPools, connect
from horsies.db.pooler import GENERIC_PLANS, PreparedStatements
from horsies.db.statement import Op, load, rows
from horsies.db.waiter import LoopReader, ThreadFuture, ThreadReader, WaiterTimings, WaitSource
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.errors import BrokerError

ATTEMPTS = 5
NOTIFY_POOL_S = 1.0

SQL = load(__file__)
A = TypeVar("A")
T = TypeVar("T")
Verb: TypeAlias = Callable[[], Op[T]]
"""Makes an operation, and another one for each attempt."""

_brokers: "WeakSet[PostgresBroker]" = WeakSet()
_inherited: list[object] = []  # kept and never touched: collecting them would close the parent's sockets


class PostgresBroker:
    """Runs operations on one database. Cheap to make; connects at first use; belongs to one process."""

    def __init__(
        self,
        config: PostgresConfig,
        *,
        resilience: WorkerResilienceConfig | None = None,
        listener_timings: ListenerTimings | None = None,
        waiter_timings: WaiterTimings | None = None,
        purpose: str = "producer",
        statement_timeout_ms: int = 0,
    ) -> None:
        """`purpose` is what `pg_stat_activity` shows. `statement_timeout_ms` holds for pooled connections, unless a pooler shares them; 0: that of the role."""
        self.config = config
        self.purpose = purpose
        # Without one, that of the role stays.
        limits = {"statement_timeout": str(statement_timeout_ms)} if statement_timeout_ms else {}
        self._settings = {**GENERIC_PLANS, **limits}
        self.listener_timings = listener_timings or ListenerTimings()
        self.waiter_timings = waiter_timings or WaiterTimings()
        self._resilience = resilience or WorkerResilienceConfig()
        self._reset()
        _brokers.add(self)
        # Registered last, called first: an embedded server is stopped after its clients have disconnected.
        atexit.unregister(_close_all)
        atexit.register(_close_all)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._prepared = PreparedStatements(self._settings)
        self.pools = self._make_pools()
        self._listener: Listener | None = None
        self._reader = ThreadReader(self.listener, partial(PostgresBroker.run, self), self.waiter_timings)
        self._loop_readers: dict[asyncio.AbstractEventLoop, LoopReader] = {}

    def _make_pools(self) -> ConnectionPools:
        return ConnectionPools(self.config, self._prepared, purpose=self.purpose)

    def abandon_after_fork(self) -> None:
        """Start without connections in a forked child."""
        _inherited.append((self.pools, self._listener))
        self._reset()

    @classmethod
    def connect_with(cls, config: PostgresConfig) -> Self:
        """Make a broker without an app, for provisioning scripts; fail at once if the database cannot be reached."""
        broker = cls(config)
        try:
            broker.run(lambda: rows(SQL["ping"]()))
        except BaseException:
            broker.close()
            raise
        return broker

    # -- operations

    def run(self, verb: Verb[T], *, again: Verb[T] | None = None) -> T:
        """Run an operation, blocking. `again` makes the one for a second attempt when the outcome of the first is unknown."""
        attempt, has_waited = 0, False
        while True:
            pool = self.pools.blocking_pool()
            try:
                connection = pool.getconn()
                try:
                    result = drive(verb(), partial(execute_on, connection, schema=self.config.schema))
                finally:
                    if connection.pgconn.transaction_status != TransactionStatus.IDLE:  # it failed in a transaction
                        with suppress(psycopg.Error):
                            connection.rollback()
                    pool.putconn(connection)
            except PoolTimeout as error:
                self._explain_pool_timeout(error, pool, has_waited=has_waited)
                has_waited = True  # nothing was sent, and the server is back: run the same operation once more
            except psycopg.Error as error:
                attempt += 1
                verb = self._next_attempt(error, verb, again, attempt)
                if classify(error) is ErrorKind.CONNECTION_LOST:
                    pool.check()  # its other connections are most likely lost, too
                time.sleep(_pause_s(attempt))
            else:
                if attempt or has_waited:
                    self._on_reached()
                return result

    async def run_async(self, verb: Verb[T], *, again: Verb[T] | None = None) -> T:
        """The same for asyncio."""
        attempt, has_waited = 0, False
        while True:
            try:
                pool = await self.pools.async_pool()
                connection = await pool.getconn()
                try:
                    result = await drive_async(verb(), partial(execute_on_async, connection, schema=self.config.schema))
                finally:
                    with suppress(psycopg.Error):
                        await connection.rollback()
                    await pool.putconn(connection)
            except PoolTimeout as error:
                pool = await self.pools.async_pool()
                # In a thread, because it connects.
                await asyncio.to_thread(self._explain_pool_timeout, error, pool, has_waited=has_waited)
                has_waited = True
            except psycopg.Error as error:
                attempt += 1
                verb = self._next_attempt(error, verb, again, attempt)
                if classify(error) is ErrorKind.CONNECTION_LOST:
                    await (await self.pools.async_pool()).check()
                await asyncio.sleep(_pause_s(attempt))
            else:
                if attempt or has_waited:
                    self._on_reached()
                return result

    def run_on(self, connection: object, verb: Verb[T]) -> T:
        """Run an operation on the caller's own connection, inside its transaction; never retried."""
        return caller_connection.run_on_caller(connection, verb, self.config.schema)

    async def run_on_async(self, connection: object, verb: Verb[T]) -> T:
        """The same for asyncio."""
        return await caller_connection.run_on_caller_async(connection, verb, self.config.schema)

    def _next_attempt(self, error: psycopg.Error, verb: Verb[T], again: Verb[T] | None, attempt: int) -> Verb[T]:
        """Return what to run next, or raise the error for the caller."""
        kind = classify(error)
        follow_up = verb if kind is ErrorKind.CONTENTION else again if kind is ErrorKind.CONNECTION_LOST else None
        if self._prepared.has_failed(error):
            follow_up = again or verb
        if follow_up is None or attempt == ATTEMPTS:
            raise broker_error(error) from error
        return follow_up

    def _explain_pool_timeout(self, error: PoolTimeout, pool: AnyPool, *, has_waited: bool) -> None:
        """Connect once to find out why a pool timed out. Return if the server is available and the pool is large enough."""
        is_exhausted = has_waited or self.pools.is_exhausted(pool)
        try:
            connect(self.config, self.purpose).close()
        except psycopg.Error as reason:
            raise broker_error(reason) from error
        if is_exhausted:
            raise BrokerError(
                f"no connection was free within {self.config.connect_timeout_s} s, though PostgreSQL can be reached now; if this happens "
                f"again, raise pool_max_size ({self.config.pool_max_size}), or do less at once",
                retryable=True,
            ) from error

    def _on_reached(self) -> None:
        """After a failure: waiters need not wait for the listener's next attempt."""
        with self._lock:
            listener = self._listener
        if listener is not None:
            listener.retry_now()

    # -- waiting: times are on the monotonic clock. Before `first_read_at` only a notification causes a read.

    def wait(
        self, source: WaitSource[A], ids: Iterable[str], deadline: float | None, first_read_at: float = 0.0
    ) -> dict[str, ThreadFuture[A]]:
        """Wait until there is an answer for each id: a final one, that of a last read at the deadline, or an error."""
        with self._reader.register(source, ids, deadline, first_read_at) as waiter:
            self._reader.wait(waiter)
            return waiter.futures

    async def wait_async(
        self, source: WaitSource[A], ids: Iterable[str], deadline: float | None, first_read_at: float = 0.0
    ) -> dict[str, asyncio.Future[A]]:
        """The same for asyncio."""
        async with self.waiting_async(source, ids, deadline, first_read_at) as futures:
            await asyncio.wait(futures.values())
            return futures

    def as_completed(
        self, source: WaitSource[A], ids: Iterable[str], deadline: float | None
    ) -> Generator[tuple[str, ThreadFuture[A]]]:
        """Yield each id with its future as soon as that is complete."""
        with self._reader.register(source, ids, deadline) as waiter:
            yield from self._reader.completed(waiter)

    @asynccontextmanager
    async def waiting_async(
        self, source: WaitSource[A], ids: Iterable[str], deadline: float | None, first_read_at: float = 0.0
    ) -> AsyncGenerator[dict[str, asyncio.Future[A]]]:
        """Return a future for each id. They are completed within the context."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._loop_readers:
                self._loop_readers = {each: of for each, of in self._loop_readers.items() if not each.is_closed()}
                self._loop_readers[loop] = LoopReader(
                    self.listener, partial(PostgresBroker.run_async, self), self.waiter_timings
                )
            reader = self._loop_readers[loop]
        with reader.register(source, ids, deadline, first_read_at) as waiter:
            reader.start()
            try:
                yield waiter.futures
            finally:
                for future in waiter.futures.values():  # asyncio logs an exception that was not retrieved
                    if future.done() and not future.cancelled():
                        future.exception()

    # -- schema

    def migrate(self) -> list[str]:
        """Bring the schema to this library's version. Return the migrations applied, oldest first."""
        return migrate.prepare_schema(self.config)

    async def migrate_async(self) -> list[str]:
        """The same for asyncio."""
        return await asyncio.to_thread(self.migrate)

    def ensure_schema_initialized(self) -> None:
        """Make sure that the tables exist and are up to date."""
        self.migrate()

    async def ensure_schema_initialized_async(self) -> None:
        """The same for asyncio."""
        await self.migrate_async()

    def require_schema(self) -> None:
        """Refuse a database without our schema, or with an older one; fail at once if it cannot be reached."""
        migrate.require_current_schema(self.config)

    def schema_state(self) -> SchemaState:
        """Return the version of the schema and what it lacks; change nothing. Fail at once if the database cannot be reached."""
        return migrate.read_schema_state(self.config)

    # -- notifications

    def listener(self) -> Listener:
        """Return the listener of this process."""
        with self._lock:
            if self._listener is None:
                self._listener = Listener(
                    self.config, notify=self._notify, resilience=self._resilience, timings=self.listener_timings
                )
            return self._listener

    def _notify(self, channel: Channel, payload: str) -> int:
        """Return the id of the server process that has sent it. If the pooled connection is broken, use a new one."""
        params = {"channel": channel.name_in(self.config.schema), "payload": payload}
        try:
            with self.pools.blocking_pool().connection(timeout=NOTIFY_POOL_S) as connection:
                return self._notify_on(connection, params)
        except psycopg.Error as error:
            self._prepared.has_failed(error)
        with connect(self.config, "producer") as connection:
            return self._notify_on(connection, params)

    def _notify_on(self, connection: psycopg.Connection, params: dict[str, str]) -> int:
        sent = connection.execute(SQL["notify"].for_schema(self.config.schema), params).fetchone()
        return sent[1] if sent else 0

    # -- closing

    def close(self) -> None:
        """Close what blocking callers used. Safe to call twice; the broker works again if it is used again."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener:
            listener.close()  # before the pool: a self-test under way would open another one
        self.pools.close()

    async def close_async(self) -> None:
        """Close also the pool of the running event loop."""
        await self.pools.close_async()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _pause_s(attempt: int) -> float:
    """Short and growing: a producer is in the middle of a web request and cannot wait for the end of an outage."""
    return random.uniform(0.5, 1.0) * 0.02 * 3**attempt  # noqa: S311 - jitter, not a secret


def _close_all() -> None:
    for broker in list(_brokers):
        broker.close()


def _abandon_all() -> None:
    for broker in list(_brokers):
        broker.abandon_after_fork()


os.register_at_fork(after_in_child=_abandon_all)


class UnpooledBroker(PostgresBroker):
    """For event loops that end without notice, as in tests: an asyncio connection lives as long as one operation.

    So nothing stays open on a loop that ends, and no connection attempt can keep it from ending.
    """

    def _make_pools(self) -> ConnectionPools:
        return ConnectionPools(replace(self.config, pool_min_size=0), self._prepared, AsyncNullConnectionPool)
