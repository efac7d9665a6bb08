"""`PostgresBroker`: the pools, the listener and the drivers of one process, under one name."""

import asyncio
import atexit
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg_pool import AsyncNullConnectionPool, PoolTimeout

from horsies.db import caller_connection, migrate, pool
from horsies.db.channels import Channel
from horsies.db.driver import AsyncPooledSession, PooledSession, drive, drive_async
from horsies.db.errors import ErrorKind, broker_error, classify
from horsies.db.listener import Listener
from horsies.db.migrate import SchemaState
from horsies.db.pool import ConnectionPools
from horsies.db.pooler import CUSTOM_PLANS, PreparedStatements
from horsies.db.statement import Op, load, rows
from horsies.db.waiter import AsyncSleeper, BlockingSleeper, Waiter, WaiterHub, WaitSource
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.errors import BrokerError

# --------
# How a process parts from what is open: it is closed before the process ends, and after a fork it is left to the parent.


class Closeable(Protocol):
    def close(self) -> None: ...
    def forget_inherited(self) -> None: ...


_open: "WeakSet[Closeable]" = WeakSet()
_inherited: list[object] = []


def register(opened: Closeable) -> None:
    """Of what is called at exit, the last that was registered comes first: an embedded server is stopped after we have left it."""
    _open.add(opened)
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def abandon_after_fork(*sockets: object) -> None:
    """It alone uses and closes them: here they are kept, and never touched."""
    _inherited.append(sockets)


def _close_all() -> None:
    for opened in list(_open):
        opened.close()


def _forget_all() -> None:
    for opened in list(_open):
        opened.forget_inherited()


os.register_at_fork(after_in_child=_forget_all)


ATTEMPTS = 5
NOTIFY_POOL_S = 1.0

SQL = load(__file__)
A = TypeVar("A")
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
        self._preparing = PreparedStatements(CUSTOM_PLANS)
        self._start_afresh()
        register(self)

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self.pools = self._new_pools()
        self._listener: Listener | None = None
        self._desks: dict[WaitSource[Any], WaiterHub[Any]] = {}
        self._async_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[WaitSource[Any], WaiterHub[Any]]] = (
            WeakKeyDictionary()
        )

    def _new_pools(self) -> ConnectionPools:
        return ConnectionPools(self.config, self._preparing)

    def forget_inherited(self) -> None:
        """After a fork: these sockets are our parent's, and it alone uses and closes them."""
        abandon_after_fork(self.pools, self._listener)
        self._start_afresh()

    @classmethod
    def connect_with(cls, config: PostgresConfig) -> Self:
        """A broker without an app, for provisioning scripts; fails at once when the database cannot be reached."""
        broker = cls(config)
        try:
            broker.run(lambda: rows(SQL["ping"]()))
        except BaseException:
            broker.close()
            raise
        return broker

    # -- verbs

    def run(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        """Run a verb, blocking. `again` is the verb for a second try when the outcome of the first is unknown."""
        attempt, has_waited = 0, False
        while True:
            answer = PooledSession(self.pools.blocking, self.config.schema)
            try:
                with answer:
                    done = drive(verb(), answer)
            except PoolTimeout as error:
                is_exhausted = self.pools.is_exhausted(self.pools.blocking())
                self._insist_on_server(error, is_exhausted=is_exhausted or has_waited)
                has_waited = True  # nothing was sent, and the server is back: the same once more
            except psycopg.Error as error:
                attempt += 1
                follow_up = self._next_try(error, verb, again, attempt)
                if follow_up is None:
                    raise broker_error(error) from error
                verb = follow_up
                if classify(error) is ErrorKind.CONNECTION_LOST:
                    self.pools.blocking().check()  # its other connections are most likely gone too
                time.sleep(_pause_s(attempt))
            else:
                if attempt or has_waited:
                    self._reached()
                return done

    async def run_async(self, verb: Callable[[], Op[T]], *, again: Callable[[], Op[T]] | None = None) -> T:
        """The same for asyncio."""
        attempt, has_waited = 0, False
        while True:
            answer = AsyncPooledSession(self.pools.awaiting, self.config.schema)
            try:
                async with answer:
                    done = await drive_async(verb(), answer)
            except PoolTimeout as error:
                is_exhausted = self.pools.is_exhausted(await self.pools.awaiting())
                # It connects.
                await asyncio.to_thread(self._insist_on_server, error, is_exhausted=is_exhausted or has_waited)
                has_waited = True
            except psycopg.Error as error:
                attempt += 1
                follow_up = self._next_try(error, verb, again, attempt)
                if follow_up is None:
                    raise broker_error(error) from error
                verb = follow_up
                if classify(error) is ErrorKind.CONNECTION_LOST:
                    await (await self.pools.awaiting()).check()
                await asyncio.sleep(_pause_s(attempt))
            else:
                if attempt or has_waited:
                    self._reached()
                return done

    def run_on(self, connection: object, verb: Callable[[], Op[T]]) -> T:
        """Run a verb on the caller's own connection, inside their transaction; never tried again."""
        return caller_connection.run_on_caller(connection, verb, self.config.schema)

    async def run_on_async(self, connection: object, verb: Callable[[], Op[T]]) -> T:
        """The same for asyncio."""
        return await caller_connection.run_on_caller_async(connection, verb, self.config.schema)

    def _next_try(
        self,
        error: psycopg.Error,
        verb: Callable[[], Op[T]],
        again: Callable[[], Op[T]] | None,
        attempt: int,
    ) -> Callable[[], Op[T]] | None:
        """None: it is time to tell the caller."""
        trouble = classify(error)
        follow_up = verb if trouble is ErrorKind.CONTENTION else again if trouble is ErrorKind.CONNECTION_LOST else None
        if self._preparing.has_failed(error):
            follow_up = again or verb
        return None if attempt == ATTEMPTS else follow_up

    def _insist_on_server(self, error: PoolTimeout, *, is_exhausted: bool) -> None:
        """A pool that ran out of time does not say why; one direct attempt does. Returns when the server is there and the pool is not to blame."""
        try:
            pool.connect(self.config, "producer").close()
        except psycopg.Error as reason:
            raise broker_error(reason) from error
        if is_exhausted:
            raise BrokerError(
                f"no connection was free within {self.config.connect_timeout_s} s, though PostgreSQL can be reached now; if this happens "
                f"again, raise pool_max_size ({self.config.pool_max_size}), or do less at once",
                retryable=True,
            ) from error

    def _reached(self) -> None:
        """After a failure: whoever waits for notifications need not wait for the listener's next attempt."""
        with self._lock:
            listener = self._listener
        if listener is not None:
            listener.retry_now()

    # -- waiting

    def hub(self, subject: WaitSource[A]) -> WaiterHub[A]:
        """Where the callers of this kind wait for this: threads at one desk, each event loop at its own."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        with self._lock:
            hubs = self._desks if loop is None else self._async_desks.setdefault(loop, {})
            if subject not in hubs:
                hubs[subject] = WaiterHub(subject, self.listener)
            return hubs[subject]

    def wait(
        self,
        hub: WaiterHub[A],
        waiter: Waiter[A],
        deadline: float | None,
        is_enough: Callable[[Waiter[A]], bool] = Waiter[Any].is_answered,
    ) -> None:
        """Block until a ticket that was entered at this desk has enough, or the deadline (on the monotonic clock) has passed."""
        sleeper = BlockingSleeper(lambda step: self.run(step.verb, again=step.verb))
        drive(hub.wait_until(waiter, sleeper.wake_subscribers, deadline, is_enough), sleeper)

    async def wait_async(
        self,
        hub: WaiterHub[A],
        waiter: Waiter[A],
        deadline: float | None,
        is_enough: Callable[[Waiter[A]], bool] = Waiter[Any].is_answered,
    ) -> None:
        """The same for asyncio."""
        sleeper = AsyncSleeper(lambda step: self.run_async(step.verb, again=step.verb))
        await drive_async(hub.wait_until(waiter, sleeper.wake_subscribers, deadline, is_enough), sleeper)

    # -- schema

    def migrate(self) -> list[str]:
        """Bring the schema to this library's version. Returns the migrations applied, oldest first."""
        return migrate.prepare_schema(self.config)

    def require_schema(self) -> None:
        """Refuse a database without our schema, or with an older one; at once when it cannot be reached."""
        migrate.require_current_schema(self.config)

    async def migrate_async(self) -> list[str]:
        """The same for asyncio."""
        return await asyncio.to_thread(self.migrate)

    def ensure_schema_initialized(self) -> None:
        """The tables are there and up to date afterwards, whoever made them."""
        self.migrate()

    async def ensure_schema_initialized_async(self) -> None:
        """The same for asyncio."""
        await self.migrate_async()

    def schema_standing(self) -> SchemaState:
        """At which version the schema is, and what it lacks; nothing is changed. Says at once why the database cannot be reached."""
        return migrate.read_schema_state(self.config)

    # -- notifications

    def listener(self) -> Listener:
        """The one that listens for everybody in this process."""
        with self._lock:
            if self._listener is None:
                self._listener = Listener(
                    self.config,
                    notify=self._notify,
                    resilience=self._resilience,
                    first_test_s=self._first_listen_test_s,
                )
            return self._listener

    def _notify(self, channel: Channel, payload: str) -> int:
        """The server's process that has sent it. A pooled connection may be broken without anybody knowing: then a fresh one is made."""
        try:
            with self.pools.blocking().connection(timeout=NOTIFY_POOL_S) as connection:
                return self._notify_on(connection, channel, payload)
        except psycopg.Error as error:
            self._preparing.has_failed(error)
        with pool.connect(self.config, "producer") as connection:
            return self._notify_on(connection, channel, payload)

    def _notify_on(self, connection: psycopg.Connection, channel: Channel, payload: str) -> int:
        text = SQL["notify"].for_schema(self.config.schema)
        sent = connection.execute(text, {"channel": channel.name_in(self.config.schema), "payload": payload}).fetchone()
        return sent[1] if sent else 0

    # -- the end

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _pause_s(attempt: int) -> float:
    """Short and growing: a producer is somebody's web request, not a worker that can wait out an outage."""
    return random.uniform(0.5, 1.0) * 0.02 * 3**attempt  # noqa: S311 - jitter, no secret


# --------
# A broker for event loops that come and go, as those of tests do, and that nobody tells when they go.


class UnpooledBroker(PostgresBroker):
    """An asyncio connection lives as long as one verb: nothing stays open on a loop that ends, and no connection in the making can
    keep it from ending.
    """

    def _new_pools(self) -> ConnectionPools:
        return ConnectionPools(replace(self.config, pool_min_size=0), self._preparing, AsyncNullConnectionPool)
