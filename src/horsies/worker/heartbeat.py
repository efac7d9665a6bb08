"""The heartbeat: one row says that this incarnation of the worker is alive, for all of its tasks at once.

It has a connection and a thread of its own, so that neither a busy pump nor a long turn can silence it.

Each beat also asks which rows the database thinks are ours, and which of them were asked to stop. A claim whose COMMIT was answered to
nobody shows here as a stranger; so does a task that ended between the question and the look at our books. The second kind is gone when
we look again, so what is still a stranger at the next beat, which comes soon then, is given back.
"""

import asyncio
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from horsies.db.channels import worker_lock_scope
from horsies.db.dedicated import ThreadedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify
from horsies.db.listener import Listener
from horsies.db.statement import Op, Query, Rows, execute, load, one, rows
from horsies.events import HeartbeatMissed, emit, subscribers
from horsies.model.config import PostgresConfig, RecoveryConfig, WorkerResilienceConfig
from horsies.model.errors import HorsiesError
from horsies.model.task import Claim
from horsies.tasks.claim import claims_from_rows
from horsies.tasks.release import get_held_tasks
from horsies.tasks.unknown import offer_tasks_again
from horsies.worker.dispatcher import Dispatcher
from horsies.worker.pending import PendingWork
from horsies.worker.service import Backoff, NothingStarted

if TYPE_CHECKING:
    import psutil

# --------
# What a worker and its children use of the machine, as numbers for a snapshot.

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    memory_mb: float = 0.0
    cpu_percent: float = 0.0


class HealthSnapshots:
    """CPU is measured since the last look at the same process; the first look at one says 0."""

    def __init__(self) -> None:
        import psutil  # noqa: PLC0415 - children import this room's neighbours and need none of it

        self._psutil = psutil
        self._parent = psutil.Process()
        self._children: dict[int, psutil.Process] = {}

    def parent(self) -> Usage:
        return self._usage(self._parent)

    def children(self, pids: Iterable[int]) -> Usage:
        """All of them together; one that died meanwhile counts nothing."""
        wanted = set(pids)
        self._children = {pid: process for pid, process in self._children.items() if pid in wanted}
        usages = [self._usage(process) for pid in wanted if (process := self._process(pid))]
        return Usage(sum(usage.memory_mb for usage in usages), sum(usage.cpu_percent for usage in usages))

    def _process(self, pid: int) -> "psutil.Process | None":
        try:
            return self._children.setdefault(pid, self._psutil.Process(pid))
        except self._psutil.Error:
            return None

    def _usage(self, process: "psutil.Process") -> Usage:
        try:
            return Usage(process.memory_info().rss / MB, process.cpu_percent())
        except self._psutil.Error:
            return Usage()


LOOK_AGAIN_S = 0.2
LONGEST_RETRY_S = 1.0
HURRY_S, HURRIES = 1.0, 5

SQL = load(__file__)
T = TypeVar("T")
log = logging.getLogger("horsies.worker")


class DeclaredDead(HorsiesError):  # noqa: N818 - it says what happened
    """This incarnation is no longer registered: its tasks may belong to others by now."""


class Heartbeat:
    """A service: entering registers the incarnation, leaving strikes it off.

    `in_doubt` asks for a beat as soon as the database answers: something may have been claimed that nobody knows of.

    While the worker lives, two of its sessions hold an advisory lock: this one and the listener's. When both are gone the keeper need not wait until the
    heartbeat has stood still for long. One alone may have been ended by somebody, and is made anew at once. Behind a pooler a session is nobody's: there
    no lock is taken, and none is announced.
    """

    def __init__(  # noqa: PLR0913 - what it registers, and whom it tells
        self,
        group: asyncio.TaskGroup,
        pending: PendingWork,
        dispatcher: Dispatcher,
        *,
        database: PostgresConfig,
        resilience: WorkerResilienceConfig,
        recovery: RecoveryConfig,
        in_doubt: asyncio.Event,
        listener: Callable[[], Listener],
        app: str,
    ) -> None:
        self._group = group
        self._pending = pending
        self._dispatcher = dispatcher
        self._resilience = resilience
        self.beat_s = recovery.heartbeat_ms / 1000
        self._snapshot_s = recovery.snapshot_ms / 1000
        self._snapshot_at = 0.0
        self._in_doubt = in_doubt
        self._listener = listener
        self._app = app
        self._lock = worker_lock_scope(database.schema) + pending.worker
        self._locked_in: int | None = None
        self._registered: Mapping[str, int] = dict(pending.known_tasks.signatures)
        self._hurries_left = HURRIES
        self._unknown_claims: frozenset[Claim] = frozenset()
        self._patience: asyncio.Timeout | None = None
        self._health = HealthSnapshots()
        self._link = ThreadedConnection(database, "heartbeat")
        self.answered_at: float | None = None
        """When the database has last taken a sign of life, on the monotonic clock; None before the first."""
        self.is_missing = False
        """The last one was not taken."""

    async def __aenter__(self) -> Self:
        try:
            await self._register_patiently()
        except BaseException:
            await self._link.close(None)
            raise
        await self._warn_of_clashes()
        self._beating = self._group.create_task(self._beat_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        # After an error tasks may still be ours by the database's account: the row stays, for whoever recovers them.
        await self._link.close(rows(SQL["deregister_worker"](id=self._pending.worker)) if kind is None else None)
        self._listener().let_go(self._lock)

    async def _beat_for_ever(self) -> None:
        await self._take_lock()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_beat_s()):
                    await self._in_doubt.wait()
            is_asked_for, was_missing = self._in_doubt.is_set(), self.is_missing
            self._in_doubt.clear()
            try:
                held = await self._run_beat(was_missing=was_missing)
            except DriverError as error:
                log.debug("a heartbeat failed: %s", broker_error(error))
                self.is_missing = True
                if subscribers:
                    emit(HeartbeatMissed())
                if was_missing or classify(error) is not ErrorKind.CONNECTION_LOST:
                    await asyncio.sleep(self._retry_s())
                # Else the session has served before and is gone: a new one is tried at once.
                self._in_doubt.set()
            else:
                self._tell_others(was_missing=was_missing, is_asked_for=is_asked_for)
                await self._take_lock()
                self._dispatcher.cancel({row[0] for row in held if row[-1]})
                await self._find_unknown_claims(claims_from_rows([row[:-1] for row in held]))

    async def _run_beat(self, *, was_missing: bool) -> Rows:
        """On a connection of the pump's if there is none for it: a full server must not make a worker look dead that works."""
        try:
            return await self._link.run(self._beat())
        except DriverError as error:
            if not was_missing or classify(error) is not ErrorKind.CONNECTION_LOST:
                raise  # it is tried again at once, with a new connection
            held = await self._dispatcher.run_on_idle_connection(self._beat())
            if held is None:
                raise
            return held

    async def _take_lock(self) -> None:
        """Once in each session that is ours alone. What it is good for can be done without."""
        if not self._listener().holds(self._lock):
            self._listener().hold(self._lock)
        session = self._link.own_session
        if session is None or session == self._locked_in:
            return
        try:
            taken = await self._link.run(one(SQL["acquire_worker_lock"](name=self._lock)))
        except DriverError as error:
            log.debug("the worker's advisory lock could not be taken: %s", broker_error(error))
        else:
            self._locked_in = session if taken == (True,) else None
            self._hurries_left = HURRIES

    @property
    def _holds_lock(self) -> bool:
        """In both sessions."""
        session = self._link.own_session
        return session is not None and session == self._locked_in and self._listener().holds(self._lock)

    def _next_beat_s(self) -> float:
        if self._unknown_claims:
            return LOOK_AGAIN_S
        # What is held has to be announced; a few beats later it is known not to be held, and nobody hurries any longer.
        is_unannounced = self._link.own_session is not None and self._hurries_left > 0
        return min(self.beat_s, HURRY_S) if is_unannounced else self.beat_s

    def _retry_s(self) -> float:
        """Short, however long the pauses of others are: the worker is taken for dead without it, and they end theirs when it is answered."""
        delay_s = self._resilience.delay_ms(0, random.uniform(-1, 1)) / 1000  # noqa: S311 - jitter, no secret
        return min(delay_s, self.beat_s, LONGEST_RETRY_S)

    def _tell_others(self, *, was_missing: bool, is_asked_for: bool) -> None:
        """The database answers. A beat that the pump itself has asked for after a failed turn must not end the pause after that turn."""
        if was_missing or not is_asked_for:
            self._dispatcher.on_database_reached()
        if was_missing:
            self._listener().retry_now()

    async def _find_unknown_claims(self, held: Sequence[Claim]) -> None:
        found = frozenset(await self._dispatcher.unknown_claims(held))
        certain = found & self._unknown_claims
        self._unknown_claims = found - certain
        if certain:
            log.warning("giving back %d tasks whose claim was answered to nobody", len(certain))
            self._dispatcher.release(list(certain))

    def _beat(self) -> Op[Rows]:
        worker = self._pending.worker
        # Alone: nothing that takes long may hold up the sign of life, and together they would be one transaction.
        holds_lock = self._holds_lock
        self._hurries_left = 0 if holds_lock else self._hurries_left - 1
        if not (yield from self._sign_of_life(SQL["record_heartbeat"](id=worker, holds_lock=holds_lock))):
            raise DeclaredDead(f"worker {worker} was declared dead: the machine was paused, or the network away")
        # One that is stopping takes nothing more, and a task that its children do not have is not waited for here.
        known = {} if self._pending.is_stopping else dict(self._pending.known_tasks.signatures)
        changed = [] if known == self._registered else [self._change_tasks(known)]
        held, *_ = yield from execute(get_held_tasks(worker), *changed, *self._snapshots())
        self._registered = known
        return held

    def _change_tasks(self, known: Mapping[str, int]) -> Query:
        return SQL["update_known_tasks"](
            id=self._pending.worker, task_names=list(known), signatures=list(known.values())
        )

    def _sign_of_life(self, sign: Query) -> Op[bool]:
        """Whether it was taken. The answer is what the database's clock says."""
        asked_at = time.time()
        row = yield from one(sign)
        self.answered_at, self.is_missing = time.monotonic(), False
        if row is not None:
            self._dispatcher.events.clock_offset_s = row[0] - (asked_at + time.time()) / 2
        return row is not None

    def _snapshots(self) -> list[Query]:
        now = time.monotonic()
        if now < self._snapshot_at:
            return []
        self._snapshot_at = now + self._snapshot_s
        parent, children = self._health.parent(), self._health.children([m.pid for m in list(self._pending.children)])
        snapshot = SQL["insert_snapshot"](
            id=self._pending.worker,
            tasks_running=self._pending.running_count,
            tasks_claimed=len(self._pending.buffer),
            memory_usage_mb=parent.memory_mb,
            children_memory_mb=children.memory_mb,
            cpu_percent=parent.cpu_percent,
            children_cpu_percent=children.cpu_percent,
        )
        return [snapshot]

    def stop_registering(self) -> None:
        """Told to stop: a database that cannot be reached is not waited for, because there is nothing of ours in it yet."""
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    async def _register_patiently(self) -> None:
        try:
            async with asyncio.timeout(None) as self._patience:
                await self._register()
        except TimeoutError:
            raise NothingStarted("told to stop before it was registered; nothing was begun") from None
        finally:
            self._patience = None

    async def _register(self) -> None:
        """An outage between the first connection and this one is ridden out like any other."""
        backoff = Backoff(self._resilience)
        while True:
            try:
                await self._link.run(self._sign_of_life(self._registration()))
            except DriverError as error:
                reason = broker_error(error)
                if not reason.retryable:
                    raise reason from error
                backoff.failed(reason)
                await asyncio.sleep(backoff.left_s)
            else:
                break
        try:
            await self._link.run(offer_tasks_again())
        except DriverError as error:
            log.debug("what waits for a worker like this one is left to the keeper: %s", broker_error(error))

    async def _warn_of_clashes(self) -> None:
        """Say which tasks workers of other apps know too. Best effort: `horsies doctor` says the same."""
        try:
            clashes = await self._link.run(rows(SQL["get_task_clashes"](id=self._pending.worker)))
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

    def _registration(self) -> Query:
        return SQL["register_worker"](
            id=self._pending.worker,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            processes=self._pending.prefetch.processes,
            concurrency=self._pending.prefetch.concurrency,
            queues=list(self._pending.watermarks.queues),
            library_version=version("horsies"),
            task_names=list(self._registered),
            signatures=list(self._registered.values()),
            app=self._app,
        )
