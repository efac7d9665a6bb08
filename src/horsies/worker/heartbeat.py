"""The heartbeat: the regular update of one row, which says that this incarnation of the worker, and so each of its tasks, is alive.

It has a connection and a thread of its own, so that neither a busy dispatcher nor a long batch can delay it.

Each heartbeat also reads whether an operator has asked the worker to leave, which rows the database assigns to it, and which of them are to be cancelled. A claim whose COMMIT succeeded but whose
result was lost shows here as an unknown claim; so does a task that ended between the query and the comparison. The second kind is gone in the next
heartbeat, which follows soon: what is unknown twice is released.

**The worker's lock.** While the worker lives, two of its sessions hold an advisory lock: this one and the listener's. When both are gone, the maintenance
leader need not wait until the heartbeat is old. One session alone may be terminated, and is replaced at once. Behind a transaction pooler a session
belongs to no client: there no lock is taken, and none is announced.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Final, Self

from horsies.app import Horsies
from horsies.db.channels import worker_lock_scope
from horsies.db.dedicated import ThreadedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify
from horsies.db.statement import Op, Query, execute, load, one, rows
from horsies.events import HeartbeatMissed, emit, subscribers
from horsies.executor.os_process import Usage, measure_usage
from horsies.model.errors import HorsiesError
from horsies.model.task import Claim
from horsies.tasks.finish import get_held_tasks
from horsies.tasks.unknown import offer_tasks_again
from horsies.tasks.workers import ChildState, children_to_json
from horsies.worker.dispatcher import Dispatcher
from horsies.worker.service import Backoff, StoppedEarly, random_jitter
from horsies.worker.supervisor import ChildPool

CONFIRM_S: Final = 0.2
LONGEST_RETRY_S: Final = 1.0
ANNOUNCE_S, ANNOUNCE_ATTEMPTS = 1.0, 5

SQL = load(__file__)
log = logging.getLogger("horsies.worker")


class DeclaredDead(HorsiesError):  # noqa: N818 - the name says what happened
    """This incarnation is no longer registered: other workers may have its tasks."""


class Heartbeat:
    """A service: entering registers the incarnation, leaving deregisters it. Setting `requested` asks for a heartbeat at once."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        dispatcher: Dispatcher,
        pool: ChildPool,
        app: Horsies,
        requested: asyncio.Event,
        *,
        on_leave_requested: Callable[[], None],
    ) -> None:
        self._group = group
        self._dispatcher = dispatcher
        self._pool = pool
        self._app = app.name
        self._resilience = app.config.resilience
        self.interval_s = app.config.recovery.heartbeat_ms / 1000
        self._snapshot_s = app.config.recovery.snapshot_ms / 1000
        self._snapshot_at = 0.0
        self._requested = requested
        self._on_leave_requested = on_leave_requested
        self._is_asked_to_leave = False
        self._stored_children = ""
        self._children_memory_mb: Mapping[int, float | None] = {}
        self._listener = app.broker.listener
        self._lock = worker_lock_scope(app.broker.config.schema) + dispatcher.worker
        self._locked_session: int | None = None
        self._announce_attempts = ANNOUNCE_ATTEMPTS
        self._registered_tasks: Mapping[str, int] = dispatcher.offered_tasks
        self._unknown_claims: frozenset[Claim] = frozenset()
        self._registration_timeout: asyncio.Timeout | None = None
        self._usage, self._children_usage = UsageMeter(), UsageMeter()
        self._connection = ThreadedConnection(app.broker.config, "heartbeat")
        self.answered_at: float | None = None
        """When the last heartbeat was stored, on the monotonic clock; None before the first."""
        self.is_missing = False
        """Whether the last one failed."""

    # -- registration

    async def __aenter__(self) -> Self:
        try:
            try:
                async with asyncio.timeout(None) as self._registration_timeout:
                    await self._register()
            finally:
                self._registration_timeout = None  # a timeout that is over cannot be changed by a second stop request
        except BaseException as error:
            await self._connection.close(None)
            if isinstance(error, TimeoutError):
                raise StoppedEarly("asked to stop before it was registered; nothing was started") from None
            raise
        await self._warn_of_clashes()
        self._beating = self._group.create_task(self._beat_forever())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._beating.cancel()
        # After an error the database may still assign tasks to this worker: the row stays, so that they are rescued.
        deregister = rows(SQL["deregister_worker"](id=self._dispatcher.worker)) if kind is None else None
        await self._connection.close(deregister)
        self._listener().let_go(self._lock)

    def stop_registering(self) -> None:
        """Do not wait for an unreachable database: nothing of this worker is stored in it yet."""
        if self._registration_timeout is not None:
            self._registration_timeout.reschedule(asyncio.get_running_loop().time())

    async def _register(self) -> None:
        """Register, and wait if the database has become unavailable since it was opened."""
        registration = SQL["register_worker"](
            id=self._dispatcher.worker,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            processes=self._dispatcher.processes,
            concurrency=self._dispatcher.concurrency,
            queues=list(self._dispatcher.queues),
            library_version=version("horsies"),
            task_names=list(self._registered_tasks),
            signatures=list(self._registered_tasks.values()),
            app=self._app,
        )
        backoff = Backoff(self._resilience)
        while True:
            try:
                await self._connection.run(self._store_heartbeat(registration))
            except DriverError as error:
                reason = broker_error(error)
                if not reason.retryable:
                    raise reason from error
                backoff.failed(reason)
                await asyncio.sleep(backoff.left_s)
            else:
                break
        try:
            await self._connection.run(offer_tasks_again())
        except DriverError as error:
            log.debug("tasks that wait for such a worker are left to the maintenance leader: %s", broker_error(error))

    async def _warn_of_clashes(self) -> None:
        """Log which tasks workers of other apps know too. Best effort: `horsies doctor` reports the same."""
        try:
            clashes = await self._connection.run(rows(SQL["get_task_clashes"](id=self._dispatcher.worker)))
        except DriverError as error:
            log.debug("task names of other apps could not be read: %s", broker_error(error))
            return
        for app, names in clashes:
            log.warning(
                "app %r has tasks of the same name in the same queues as app %r: %s. Workers of either app may run them for the other; "
                "rename them, or give each app queues, or a schema, of its own",
                app,
                self._app,
                ", ".join(names),
            )

    # -- the loop

    async def _beat_forever(self) -> None:
        await self._acquire_lock()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_beat_s()):
                    await self._requested.wait()
            was_requested, was_missing = self._requested.is_set(), self.is_missing
            self._requested.clear()
            try:
                held = await self._run_beat(was_missing=was_missing)
            except DriverError as error:
                log.debug("a heartbeat failed: %s", broker_error(error))
                self.is_missing = True
                if subscribers:
                    emit(HeartbeatMissed())
                if was_missing or classify(error) is not ErrorKind.CONNECTION_LOST:
                    # Not long: without heartbeats the worker is declared dead, and the pauses of its other connections end with the next one.
                    pause_s = self._resilience.delay_ms(0, random_jitter()) / 1000
                    await asyncio.sleep(min(pause_s, self.interval_s, LONGEST_RETRY_S))
                # Else the session had worked and is lost: try a new one at once.
                self._requested.set()
            else:
                # A heartbeat that the dispatcher requested after a failed batch must not end the pause after that batch.
                if was_missing or not was_requested:
                    self._dispatcher.on_database_reached()
                if was_missing:
                    self._listener().retry_now()
                await self._acquire_lock()
                await self._obey(held)

    async def _obey(self, held: Sequence[Claim]) -> None:
        """Do what the rows say: of the worker, and of the tasks that it holds."""
        if self._is_asked_to_leave:
            self._on_leave_requested()
        self._dispatcher.cancel({claim.id for claim in held if claim.is_cancelled})
        await self._release_unknown_claims(held)

    def _next_beat_s(self) -> float:
        if self._unknown_claims:
            return CONFIRM_S
        # A held lock must be announced soon. After a few attempts without it, it is clear that the lock cannot be held.
        is_unannounced = self._connection.own_session is not None and self._announce_attempts > 0
        return min(self.interval_s, ANNOUNCE_S) if is_unannounced else self.interval_s

    async def _acquire_lock(self) -> None:
        """Take the worker's lock once in each session that is ours alone. Best effort: recovery also works without it."""
        if not self._listener().holds(self._lock):
            self._listener().hold(self._lock)
        session = self._connection.own_session
        if session is None or session == self._locked_session:
            return
        try:
            acquired = await self._connection.run(one(SQL["acquire_worker_lock"](name=self._lock)))
        except DriverError as error:
            log.debug("the worker's advisory lock could not be taken: %s", broker_error(error))
        else:
            self._locked_session = session if acquired == (True,) else None
            self._announce_attempts = ANNOUNCE_ATTEMPTS

    async def _release_unknown_claims(self, held: Sequence[Claim]) -> None:
        unknown = frozenset(await self._dispatcher.unknown_claims(held))
        confirmed = unknown & self._unknown_claims
        self._unknown_claims = unknown - confirmed
        if confirmed:
            log.warning("releasing %d tasks claimed by a transaction whose result was lost", len(confirmed))
            self._dispatcher.release(list(confirmed))

    # -- one heartbeat

    async def _run_beat(self, *, was_missing: bool) -> list[Claim]:
        """Run it on a connection of the dispatcher if it has none: a full server must not make a working worker look dead."""
        # Here, on the event loop: the heartbeat runs on another thread.
        children = self._pool.child_states(self._dispatcher.events.clock_offset_s)
        try:
            return await self._connection.run(self._beat(children))
        except DriverError as error:
            if not was_missing or classify(error) is not ErrorKind.CONNECTION_LOST:
                raise  # it is tried again at once, with a new connection
            held = await self._dispatcher.run_on_idle_connection(self._beat(children))
            if held is None:
                raise
            return held

    def _beat(self, children: Sequence[ChildState]) -> Op[list[Claim]]:
        worker, session = self._dispatcher.worker, self._connection.own_session
        holds_lock = session is not None and session == self._locked_session and self._listener().holds(self._lock)
        self._announce_attempts = 0 if holds_lock else self._announce_attempts - 1
        described = children_to_json(
            [replace(child, memory_mb=self._children_memory_mb.get(child.pid)) for child in children]
        )
        changed = None if described == self._stored_children else described
        heartbeat = SQL["record_heartbeat"](id=worker, holds_lock=holds_lock, children=changed)
        # In a transaction of its own: nothing slow may delay the heartbeat.
        if not (yield from self._store_heartbeat(heartbeat)):
            raise DeclaredDead(f"worker {worker} was declared dead: the machine was paused, or its network was down")
        self._stored_children = described
        # A stopping worker claims nothing, so no task waits for it; nor for a task that its children turned out not to have.
        known = self._dispatcher.offered_tasks
        updates: list[Query] = []
        if known != self._registered_tasks:
            updates.append(
                SQL["update_known_tasks"](id=worker, task_names=list(known), signatures=list(known.values()))
            )
        if time.monotonic() >= self._snapshot_at:
            self._snapshot_at = time.monotonic() + self._snapshot_s
            updates.append(self._snapshot())
        held, *_ = yield from execute(get_held_tasks(worker), *updates)
        self._registered_tasks = known
        # For the next one: to measure many processes takes a moment.
        usages = {child.pid: measure_usage(child.pid) for child in children}
        self._children_memory_mb = {pid: usage and round(usage.memory_mb, 1) for pid, usage in usages.items()}
        return [Claim(*row) for row in held]

    def _store_heartbeat(self, heartbeat: Query) -> Op[bool]:
        """Store it, and compare clocks: the statement returns the database's time. False if the worker is not registered."""
        sent_at = time.time()
        row = yield from one(heartbeat)
        self.answered_at, self.is_missing = time.monotonic(), False
        if row is not None:
            answered_at, self._is_asked_to_leave = row
            self._dispatcher.events.clock_offset_s = answered_at - (sent_at + time.time()) / 2
        return row is not None

    def _snapshot(self) -> Query:
        memory_mb, cpu_percent = self._usage.measure([os.getpid()])
        children_memory_mb, children_cpu_percent = self._children_usage.measure(self._dispatcher.child_pids)
        return SQL["insert_snapshot"](
            id=self._dispatcher.worker,
            tasks_running=self._dispatcher.running_count,
            tasks_claimed=self._dispatcher.buffered_count,
            memory_usage_mb=memory_mb,
            children_memory_mb=children_memory_mb,
            cpu_percent=cpu_percent,
            children_cpu_percent=children_cpu_percent,
            recycling_share=self._pool.recycling_costs.share,
        )


class UsageMeter:
    """Measures memory and CPU of some processes together. CPU is measured since the last call for the same process; the first returns 0."""

    def __init__(self) -> None:
        self._measured_at = 0.0
        self._last: dict[int, Usage] = {}

    def measure(self, pids: Iterable[int]) -> tuple[float, float]:
        """Return their memory in MB and the percentage of a CPU that they use. One that has died counts nothing."""
        now = time.monotonic()
        used = {pid: usage for pid in pids if (usage := measure_usage(pid))}
        cpu_s = sum(
            usage.cpu_s - last.cpu_s
            for pid, usage in used.items()
            if (last := self._last.get(pid)) and last.started == usage.started
        )
        elapsed_s = now - self._measured_at
        self._measured_at, self._last = now, used
        return sum(usage.memory_mb for usage in used.values()), 100 * cpu_s / elapsed_s
