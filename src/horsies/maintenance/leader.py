"""The maintenance leader: every worker is a candidate, and the one that holds the lease does the duties in `rescue.py`, `retention.py` and `minutes.py`."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, Self, TypeVar

from horsies.db.channels import worker_lock_scope
from horsies.db.dedicated import ThreadedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify
from horsies.db.statement import Op, load, rows
from horsies.events import TasksExpired, TasksRescued, WorkerDeclaredDead, emit, subscribers
from horsies.maintenance import rescue
from horsies.maintenance.failure_detector import FailureDetector
from horsies.maintenance.isolate import FailedRows
from horsies.maintenance.minutes import MinuteRunner
from horsies.maintenance.retention import RetentionRunner
from horsies.model.config import PostgresConfig, RecoveryConfig, RetentionConfig
from horsies.tasks import unknown
from horsies.workflows.advance import RunSweep

LEASE_INTERVALS: Final = 3
LOST_NODES_EVERY: Final = 30  # passes
OFFER_EVERY, OFFER_BATCHES = 5, 20  # passes, and batches in each
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""After a duty has failed; twice as long each time."""
GONE_CHECK_S: Final = 0.5

SQL = load(__file__)

log = logging.getLogger("horsies.maintenance")
T = TypeVar("T")


class MaintenanceLeader:
    """A service of a worker. `on_retry_due` is called with the seconds until the first retry of a rescued task."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        worker: str,
        *,
        database: PostgresConfig,
        recovery: RecoveryConfig,
        retention: RetentionConfig,
        on_retry_due: Callable[[float], None],
    ) -> None:
        self._group = group
        self._worker = worker
        self._interval_s = recovery.maintenance_ms / 1000
        self._lease_ms = recovery.maintenance_ms * LEASE_INTERVALS
        self._on_retry_due = on_retry_due
        self._unknown_sweep = unknown.UnknownSweep()
        self._run_sweep = RunSweep()
        self._recovery = recovery
        self._detector = FailureDetector(recovery.dead_after_ms / 1000, gap_s=self._interval_s * 3 + 1)
        self._connection = ThreadedConnection(database, "maintenance")
        self._retention = RetentionRunner(group, database=database, retention=retention)
        self._minutes = MinuteRunner(group, database=database)
        self._lock_scope = worker_lock_scope(database.schema)
        self._passes = 0
        self._failed_rows = FailedRows()
        self._paused: dict[str, tuple[float, float]] = {}  # duties that failed: for how long, and until when
        self.is_elected = False

    async def __aenter__(self) -> Self:
        self._leading = self._group.create_task(self._lead())
        await self._retention.__aenter__()
        await self._minutes.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        self._leading.cancel()
        await self._minutes.__aexit__()
        await self._retention.__aexit__()
        await self._connection.close(rescue.release_lease(self._worker) if kind is None else None)

    async def _lead(self) -> None:
        while True:
            next_s = self._interval_s
            try:
                next_s = max(next_s, await self._run_pass())
                next_s = min(next_s, GONE_CHECK_S) if self._detector.has_gone_workers else next_s
            except DriverError as error:
                self._detector.reset()
                self.is_elected = False  # as far as we know
                level = logging.DEBUG if classify(error) is ErrorKind.CONNECTION_LOST else logging.WARNING
                log.log(level, "maintenance: could not check the workers: %s", broker_error(error))
            # With jitter, so that the candidates do not all query at the same moment.
            await asyncio.sleep(next_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter, no secret

    async def _run_pass(self) -> float:
        """Do the duties if elected. Return for how many seconds nothing is to do: a candidate waits while another's lease runs."""
        self.is_elected, left_s = await self._connection.run(rescue.acquire_lease(self._worker, self._lease_ms))
        if not self.is_elected:
            self._retention.is_leader.clear()
            self._minutes.is_leader.clear()
            self._detector.reset()
            # The interval of the other one, or a clock that was set, may make it far longer.
            return min(left_s, self._lease_ms / 1000)
        self._retention.is_leader.set()
        self._minutes.is_leader.set()
        await self._do_duties()
        return 0.0

    async def _do_duties(self) -> None:
        await self._do_or_pause("remove_dead_workers", self._remove_dead_workers, on_failure=self._detector.reset)
        failed = self._failed_rows
        rescued = await self._do(rescue.rescue_orphans, failed)
        if rescued and rescued.count:
            log.warning("maintenance: ended or released %d tasks of dead workers", rescued.count)
            if subscribers:
                emit(TasksRescued(rescued.count))
        if rescued and rescued.due_s is not None:
            self._on_retry_due(rescued.due_s)
        await self._do(rescue.release_expired_claims, failed)
        await self._do(rescue.promote_overdue_tasks, failed)
        await self._do(rescue.cancel_pending_tasks, failed)
        if (expired := await self._do(rescue.expire_tasks, failed)) and subscribers:
            emit(TasksExpired(expired))
        await self._do(unknown.set_aside_named_tasks, self._unknown_sweep)
        if self._passes % OFFER_EVERY == 0:
            await self._do(unknown.offer_tasks_again, OFFER_BATCHES)
            await self._do(rescue.end_unknown_tasks, self._recovery, failed)
        await self._do(rescue.end_overdue_workflows, failed)
        if self._passes % LOST_NODES_EVERY == 0:
            await self._do(rescue.resolve_lost_nodes, failed)
        await self._do(rescue.settle_workflows, failed, self._run_sweep)
        self._passes += 1

    async def _do(self, duty: Callable[..., Op[T]], *args: object) -> T | None:
        return await self._do_or_pause(duty.__name__, lambda: self._connection.run(duty(*args)))

    async def _do_or_pause(
        self, name: str, duty: Callable[[], Awaitable[T]], on_failure: Callable[[], None] = lambda: None
    ) -> T | None:
        """Do a duty. If it fails, it pauses for a while, so that it neither blocks the others nor fills the log."""
        pause_s, until = self._paused.get(name, (FIRST_PAUSE_S / 2, 0.0))
        if time.monotonic() < until:
            return None
        try:
            result = await duty()
        except DriverError as error:
            if classify(error) is ErrorKind.CONNECTION_LOST:
                raise
            log.warning("maintenance: could not do a duty (%s): %s", name, broker_error(error))
        except Exception:
            log.exception("maintenance: could not do a duty (%s)", name)
        else:
            self._paused.pop(name, None)
            return result
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        self._paused[name] = pause_s, time.monotonic() + pause_s
        on_failure()
        return None

    async def _remove_dead_workers(self) -> None:
        asked_at = time.monotonic()
        gone = await self._get_gone_workers()
        heartbeats = await self._connection.run(rescue.get_heartbeats())
        for worker in self._detector.observe(heartbeats, asked_at, time.monotonic(), gone):
            # The leader is never dead by its own observation: it is running this code.
            if worker != self._worker and await self._connection.run(
                rescue.remove_dead_worker(worker, heartbeats[worker], self._failed_rows)
            ):
                silent_s = time.monotonic() - self._detector.unchanged_since(worker)
                reason = "its connections are closed" if worker in gone else f"no heartbeat for {silent_s:.1f} s"
                log.warning("worker %s declared dead: %s", worker, reason)
                if subscribers:
                    emit(WorkerDeclaredDead(worker))

    async def _get_gone_workers(self) -> set[str]:
        """Return the workers that have announced a lock which no session holds. None if ours is free too: then all sessions were terminated."""
        try:
            is_held = dict(await self._connection.run(rows(SQL["get_worker_locks"](scope=self._lock_scope))))
        except DriverError as error:
            if classify(error) is ErrorKind.CONNECTION_LOST:
                raise
            log.debug("the locks of the workers could not be read: %s", broker_error(error))
            return set()
        return {worker for worker, held in is_held.items() if not held} if is_held.get(self._worker) else set()
