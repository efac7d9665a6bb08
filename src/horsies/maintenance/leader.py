"""The keeper: every worker is a candidate, the one that holds the lease does the duties."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from horsies.db.channels import worker_lock_scope
from horsies.db.dedicated import ThreadedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify
from horsies.db.statement import Op, load, rows
from horsies.events import TasksExpired, TasksRescued, WorkerDeclaredDead, emit, subscribers
from horsies.maintenance import rescue
from horsies.maintenance.isolate import SkippedRow
from horsies.maintenance.retention import RetentionRunner
from horsies.model.config import PostgresConfig, RecoveryConfig, RetentionConfig
from horsies.tasks.unknown import UnknownSweep

# --------
# Who is dead? Judged by one observer's own unbroken watch, never by comparing clocks.
#
# A heartbeat is a value that changes. A worker is dead when *this* observer has seen its heartbeat unchanged for `dead_after_s`, asking and
# being answered all that time. If the observer was away (its connection broke, its machine was paused, the database was gone), it cannot know
# whether the silence was the worker's or its own, and begins anew. So an outage of the database, however long, kills nobody.
#
# A worker that has *announced* a lock of its sessions is dead sooner: when nobody has held that lock for `gone_after_s`, and it has not beaten meanwhile. A
# process that ends leaves no session behind, and one that lives makes lost sessions anew within a second. A machine that is cut off from its network keeps
# them, as far as the server knows, and is judged by its heartbeat alone.

GONE_AFTER_S = 2.0


@dataclass(slots=True)
class FailureDetector:
    """All moments are on the observer's monotonic clock, in seconds."""

    dead_after_s: float
    gap_s: float
    """A longer silence of the observer itself breaks the watch."""
    gone_after_s: float = GONE_AFTER_S
    _seen: dict[str, tuple[datetime, float]] = field(default_factory=dict[str, tuple[datetime, float]])
    _gone: dict[str, float] = field(default_factory=dict[str, float])
    _last_look: float | None = None

    def observe(
        self, heartbeats: Mapping[str, datetime], asked_at: float, now: float, gone: Collection[str] = ()
    ) -> list[str]:
        """One answered question. `gone`: nobody holds the lock that they have announced. Returns the workers that are dead by now."""
        if self._last_look is not None and now - self._last_look > self.gap_s:
            self.break_off()
        self._last_look = now
        # The answer is as old as the question: a heartbeat seen now for the first time stood still only from now on.
        self._seen = {
            worker: (beat, self._seen[worker][1] if worker in self._seen and self._seen[worker][0] == beat else now)
            for worker, beat in heartbeats.items()
        }
        # Of one that has beaten since the last look the sessions were gone for a moment only, if at all.
        self._gone = {
            worker: self._gone[worker] if worker in self._gone and self._seen[worker][1] <= self._gone[worker] else now
            for worker in gone
            if worker in self._seen
        }
        return [
            worker
            for worker, (_, since) in self._seen.items()
            if asked_at - since >= self.dead_after_s or asked_at - self._gone.get(worker, now) >= self.gone_after_s
        ]

    @property
    def is_alarmed(self) -> bool:
        """Somebody's sessions are gone."""
        return bool(self._gone)

    def break_off(self) -> None:
        self._seen.clear()
        self._gone.clear()
        self._last_look = None


LEASE_BEATS = 3
SEEK_EVERY = 30  # looks
OFFER_EVERY = 5  # looks
REST_S, LONGEST_REST_S = 1.0, 60.0
"""Of a duty that failed: twice as long each time."""
HURRY_S = 0.5

SQL = load(__file__)

log = logging.getLogger("horsies.maintenance")
T = TypeVar("T")


class MaintenanceLeader:
    """A service of a worker. `due_in` is told when a retry that it made becomes due."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        worker: str,
        *,
        database: PostgresConfig,
        recovery: RecoveryConfig,
        retention: RetentionConfig,
        due_in: Callable[[float], None],
    ) -> None:
        self._group = group
        self._worker = worker
        self._every_s = recovery.maintenance_ms / 1000
        self._lease_ms = recovery.maintenance_ms * LEASE_BEATS
        self._due_in = due_in
        self._sweep = UnknownSweep()
        self._patience = rescue.Patience(recovery.unknown_task_patience_ms, recovery.changed_task_patience_ms)
        self._watch = FailureDetector(recovery.dead_after_ms / 1000, gap_s=self._every_s * 3 + 1)
        self._link = ThreadedConnection(database, "keeper")
        self._retainer = RetentionRunner(group, database=database, retention=retention)
        self._lock_scope = worker_lock_scope(database.schema)
        self._looks = 0
        self._aside = SkippedRow()
        self._resting: dict[str, tuple[float, float]] = {}  # of duties that failed: for how long, and until when
        self.is_elected = False

    async def __aenter__(self) -> Self:
        self._keeping = self._group.create_task(self._keep())
        await self._retainer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeping.cancel()
        await self._retainer.__aexit__(kind, error, trace)
        await self._link.close(rescue.give_up_lease(self._worker) if kind is None else None)

    async def _keep(self) -> None:
        while True:
            next_s = self._every_s
            try:
                next_s = max(next_s, await self._look())
                next_s = min(next_s, HURRY_S) if self._watch.is_alarmed else next_s
            except DriverError as error:
                self._watch.break_off()
                self.is_elected = False  # as far as we know
                level = logging.DEBUG if classify(error) is ErrorKind.CONNECTION_LOST else logging.WARNING
                log.log(level, "the keeper could not look after the workers: %s", broker_error(error))
            # Spread out, so that candidates do not all ask at the same moment.
            await asyncio.sleep(next_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, no secret

    async def _look(self) -> float:
        """For how many seconds there is nothing more to do: a candidate need not ask while somebody else's lease runs."""
        self.is_elected, left_s = await self._link.run(rescue.take_lease(self._worker, self._lease_ms))
        self._retainer.be_on_duty(whether=self.is_elected)
        if not self.is_elected:
            self._watch.break_off()
            return min(left_s, self._lease_ms / 1000)  # others may be set, or their clock may be, to far more
        await self._do_duties()
        return 0.0

    async def _do_duties(self) -> None:
        await self._do_or_rest("bury_the_dead", self._remove_dead_workers, otherwise=self._watch.break_off)
        rescued = await self._do(rescue.rescue_orphans)
        if rescued and rescued.count:
            log.warning("ended or gave back %d tasks of dead workers", rescued.count)
            if subscribers:
                emit(TasksRescued(rescued.count))
        if rescued and rescued.due_s is not None:
            self._due_in(rescued.due_s)
        await self._do(rescue.release_overdue)
        await self._do(rescue.promote_late)
        await self._do(rescue.cancel_returned)
        if (expired := await self._do(rescue.expire)) and subscribers:
            emit(TasksExpired(expired))
        await self._do(partial(rescue.set_aside_more, self._sweep))
        if self._looks % OFFER_EVERY == 0:
            await self._do(rescue.offer_again)
            await self._do(partial(rescue.end_unknown, self._patience))
        await self._do(rescue.end_overdue_workflows)
        if self._looks % SEEK_EVERY == 0:
            await self._do(rescue.find_lost_nodes)
        await self._do(rescue.settle_workflows)
        self._looks += 1

    async def _do(self, duty: Callable[[SkippedRow], Op[T]]) -> T | None:
        return await self._do_or_rest(_name(duty), lambda: self._link.run(duty(self._aside)))

    async def _do_or_rest(
        self, name: str, duty: Callable[[], Awaitable[T]], otherwise: Callable[[], None] = lambda: None
    ) -> T | None:
        """A duty that fails must not keep the others from being done, nor fill the log: it rests for a while."""
        rest_s, until = self._resting.get(name, (REST_S / 2, 0.0))
        if time.monotonic() < until:
            return None
        try:
            done = await duty()
        except DriverError as error:
            if classify(error) is ErrorKind.CONNECTION_LOST:
                raise
            log.warning("the keeper could not do a duty (%s): %s", name, broker_error(error))
        except Exception:
            log.exception("the keeper could not do a duty (%s)", name)
        else:
            self._resting.pop(name, None)
            return done
        rest_s = min(rest_s * 2, LONGEST_REST_S)
        self._resting[name] = rest_s, time.monotonic() + rest_s
        otherwise()
        return None

    async def _remove_dead_workers(self) -> None:
        asked_at = time.monotonic()
        gone = await self._get_gone()
        heartbeats = await self._link.run(rescue.get_heartbeats())
        for worker in self._watch.observe(heartbeats, asked_at, time.monotonic(), gone):
            if worker != self._worker and await self._link.run(
                rescue.remove_dead_worker(worker, heartbeats[worker], self._aside)
            ):
                why = "its sessions are gone" if worker in gone else "its heartbeat stood still"
                log.warning("worker %s is dead: %s", worker, why)
                if subscribers:
                    emit(WorkerDeclaredDead(worker))

    async def _get_gone(self) -> set[str]:
        """Workers whose lock nobody holds, though they have announced it. Our own must be held: what ends all sessions ends ours, too."""
        try:
            is_held = dict(await self._link.run(rows(SQL["get_worker_locks"](scope=self._lock_scope))))
        except DriverError as error:
            if classify(error) is ErrorKind.CONNECTION_LOST:
                raise
            log.debug("the locks of the workers could not be read: %s", broker_error(error))
            return set()
        return {worker for worker, held in is_held.items() if not held} if is_held.get(self._worker) else set()


def _name(duty: Callable[..., object]) -> str:
    return duty.func.__name__ if isinstance(duty, partial) else duty.__name__
