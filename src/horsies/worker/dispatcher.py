"""Exchange batches with the database and assign claimed tasks to the children.

All input arrives on the event loop and updates `PendingWork`: reports of children (`ChildReports`), notifications (`Wakeups`) and timers (`WakeupTimer`).
Then `_send_ready_batches` sends as many *batches* as there is reason for. A batch is one transaction: it stores endings, releases what will not run
here, starts buffered claims and claims into the free capacity. Batches overlap: a few are in flight, each on its own connection, each with
all that was pending when it was made. While one waits for its commit to reach the disk, the next is already under way.

Nothing is forgotten before the database has answered. A batch that fails puts its parts back; endings are fenced by claim
number, so storing one twice is harmless. The heartbeat finds what was claimed by a batch whose answer was lost.

**Notifications are hints** that any role may have sent. They decide only when to claim; what there is to claim, the database decides.

**Connections fail one by one.** A server may have no slot left for one more connection while it serves those that it has. So a connection that cannot be
made pauses alone. The batch that waited for it is sent on the next connection that is ready, or put back. A connection that has served before and
is lost is replaced at once, without a pause: one terminated session is not an outage.

**Errors in callbacks.** A batch on an open connection runs by callbacks of the event loop: an asyncio task for each would cost more than the
batch. But the loop only logs what a callback raises, and the worker would lose a batch and its connection unnoticed. So every unexpected error is
raised in the task group, which stops the worker.
"""

import asyncio
import logging
import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from horsies.db.errors import (
    DriverError,
    ErrorKind,
    LockTimeout,
    broker_error,
    classify,
    is_about_server,
    is_about_values,
)
from horsies.db.loop_connection import LoopConnection
from horsies.db.statement import Op
from horsies.events import DatabaseError, emit, subscribers
from horsies.executor.protocol import NO_ASSIGNMENT
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.task import Claim, TaskId
from horsies.model.validation import format_duration
from horsies.worker.batch import Batch, BatchResult, ClaimFrom, run_batch
from horsies.worker.child import SLOW_AFTER_S, SLOW_TOGETHER_S, Child
from horsies.worker.pending import PendingWork
from horsies.worker.quarantine import Refusal, SearchAnswer
from horsies.worker.reports import ChildReports, TaskEvents
from horsies.worker.service import Backoff, ConnectionPause, GaveUp
from horsies.worker.timeouts import TaskStopper

FINAL_BATCH_S = 5.0
"""How long the last endings may take to be stored after the shutdown has killed what ran."""
IN_FLIGHT_PATIENCE_S = 1.0
"""How long a heartbeat waits for batches in flight."""
CLAIMED_LATELY_S = 60.0
WARN_EVERY_S = 1.0
TASKS_SHOWN = 3
LOCKED_S, LOCKED_MAX_S = 0.02, 5.0
"""Due tasks that were not promoted are tried again after this, then less and less often: they may be locked, or broken for good."""
PROMOTE_EVERY_S = 0.01
"""Notifications cause at most one promotion per interval."""
DELAY_MAX_S = 86_400.0
TIMER_TOLERANCE_S = 0.001

_DELAYED = re.compile(r"later (-?[0-9]{1,19})")
T = TypeVar("T")

log = logging.getLogger("horsies.worker")


class WakeupSnapshot(NamedTuple):
    """How many notifications had arrived when a batch was made. The lanes of the batch do not include later ones, even if it is sent later."""

    received_count: int
    sequence: int


class InFlightBatch(NamedTuple):
    batch: Batch
    wakeups: WakeupSnapshot
    sent_at: float
    done: "asyncio.Future[None]"


class LostConnection(NamedTuple):
    """A connection that was lost, or could not be made."""

    error: DriverError
    in_flight: InFlightBatch | None
    """The batch that it carried, or should have carried: to be put back."""
    has_served: bool
    """It is replaced without a pause."""


class Dispatcher:
    """A service: leaving it closes its connections. `drain` is the graceful stop.

    `request_heartbeat` is called after an error that leaves open what was claimed: the heartbeat finds the claims that are not known here.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        pending: PendingWork,
        *,
        database: PostgresConfig,
        resilience: WorkerResilienceConfig,
        grace_ms: int,
        batches: int,
        coalesce: int,
        request_heartbeat: Callable[[], None],
    ) -> None:
        self._pending = pending
        self._backoff = Backoff(resilience)
        self._coalesce = coalesce
        self._notification_count = 0
        self._delay_until: float | None = None
        self._request_heartbeat = request_heartbeat
        self._grace_s = grace_ms / 1000
        self._stopper = TaskStopper(pending, self._grace_s)
        self.events = TaskEvents()
        self.wakeup_timer = WakeupTimer(
            pending,
            self._stopper,
            poll_s=resilience.notify_poll_interval_ms / 1000,
            on_timer=self._send_ready_batches,
        )
        self._wakeups = Wakeups(pending, schedule_promotion=self.wakeup_timer.schedule_promotion)
        self.reports = ChildReports(
            pending,
            self._stopper,
            self.events,
            on_change=self._send_ready_batches,
            on_deadline=self.wakeup_timer.schedule_deadline,
        )
        self._sender = BatchSender(
            group,
            database,
            batches,
            resilience=resilience,
            on_done=self._on_batch_done,
            on_lost=self._on_connection_lost,
            on_connected=self._on_connected,
        )
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._claimed_at = -math.inf
        self._claim_error: DriverError | None = None
        """Why the last claim was refused."""
        self._warn_after = 0.0

    async def __aenter__(self) -> Self:
        self._sender.open()
        self._send_ready_batches()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sender.close()
        self.wakeup_timer.close()

    # -- stopping

    async def drain(self, timeout_ms: int | None) -> None:
        """Claim no more, release what has not begun, and wait until the rest has ended and is stored."""
        self._pending.is_stopping = True
        log.info("shutdown: claiming no more tasks, %s", self._describe_wait(timeout_ms))
        for child in self._pending.children:
            if child.assignments.has_waiting:
                child.recall(NO_ASSIGNMENT)
        self._send_ready_batches()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._drained.wait()
        except TimeoutError:
            log.warning("shutdown timeout (%g s) reached with tasks still running", (timeout_ms or 0) / 1000)
            self.escalate_stop()
            self._loop.call_later(self._grace_s, self._leave_soon)
            await self._drained.wait()
        if not self._pending.is_empty:
            raise GaveUp("the database is unavailable and the time to shut down is over: not all results were stored")

    def escalate_stop(self) -> None:
        """Interrupt the running tasks. When called again, kill them and no longer wait for the database."""
        if self._stopper.is_interrupting:
            log.warning("shutdown: killing running tasks: %s", self._describe_running())
            self._stopper.kill_all()
            self._leave_soon()
        else:
            log.warning("shutdown: interrupting running tasks: %s", self._describe_running())
            self._stopper.interrupt_all()
        self._send_ready_batches()

    def _leave_soon(self) -> None:
        self._loop.call_later(FINAL_BATCH_S, self._drained.set)

    def _describe_wait(self, timeout_ms: int | None) -> str:
        count = sum(len(child.assignments.running_since()) for child in self._pending.children)
        if not count:
            return "no task is running"
        limit = "without a time limit" if timeout_ms is None else f"up to {timeout_ms / 1000:g} s"
        return f"waiting {limit} for {count} task{'' if count == 1 else 's'} to end: {self._describe_running()}"

    def _describe_running(self) -> str:
        """Name the tasks that have run for the longest."""
        running = [each for child in self._pending.children for each in child.assignments.running_since()]
        running.sort(key=lambda each: each[0])
        now = time.monotonic()
        shown = [
            f"{claim.task_name} ({claim.id}, running for {format_duration(now - began_at)})"
            for began_at, claim in running[:TASKS_SHOWN]
        ]
        more = len(running) - TASKS_SHOWN
        return (", ".join(shown) or "none") + (f" and {more} more" if more > 0 else "")

    @property
    def has_interrupted_tasks(self) -> bool:
        """Tasks were interrupted, because they did not end in time."""
        return self._stopper.has_interrupted

    # -- input from other services

    def on_notification(self, payload: str | None) -> None:
        if not self._wakeups.on_notification(payload):
            return
        # Many arrive together: read all that have arrived, then send once.
        self._notification_count += 1
        if self._notification_count >= self._coalesce:
            self._send_ready_batches()
        elif self._notification_count == 1:
            self._loop.call_soon(self._send_ready_batches)

    def cancel(self, task_ids: Collection[TaskId]) -> None:
        """Request these to stop; they are killed when their grace period is over."""
        self._stopper.cancel(task_ids)
        self.wakeup_timer.schedule_deadline()

    def on_database_reached(self) -> None:
        """End a pause that was made because the database could not be reached: another service has just reached it."""
        if self._backoff.reached():
            self._send_ready_batches()

    async def run_on_idle_connection(self, op: Op[T]) -> T | None:
        """Run this on a connection of the dispatcher, if one is idle; None if not."""
        return await self._sender.run_on_idle_connection(op)

    async def unknown_claims(self, held: Sequence[Claim]) -> list[Claim]:
        """Return those rows that this worker holds according to the database and knows nothing of."""
        # A batch in flight may just have claimed them, so its answer comes first. Not for long: the heartbeat waits for us.
        if self._pending.unknown_claims(held) and not await self._sender.wait_in_flight(IN_FLIGHT_PATIENCE_S):
            return []
        return self._pending.unknown_claims(held)

    def release(self, claims: Sequence[Claim]) -> None:
        """Release what was never assigned to a child."""
        self._pending.releases.extend(claims)
        self._send_ready_batches()

    # -- batches

    def _send_ready_batches(self) -> None:
        """Send every batch for which there is a reason, a connection and no delay."""
        self._notification_count = 0
        # Children report that they are ready before the worker is registered; what it claimed then would look like a dead worker's.
        if not self._sender.is_open:
            return
        now = time.monotonic()
        while self._may_send(now) and (batch := self._pending.next_batch(now)):
            self._delay_until = None
            self._sender.send(batch, self._wakeups.snapshot)
        if self._pending.is_stopping and self._pending.is_empty:
            self._drained.set()
        self.wakeup_timer.schedule(now, self._next_send_at(now))

    def _may_send(self, now: float) -> bool:
        if now < self._backoff.until or not self._sender.can_send(now):
            return False
        if self._pending.should_delay_batch():
            self._delay_until = self._delay_until or now + self._pending.prefetch.batch_delay_s
            return now >= self._delay_until
        self._delay_until = None
        return True

    def _next_send_at(self, now: float) -> float | None:
        """When a batch may be sent even if nothing happens until then."""
        if now < self._backoff.until:
            return self._backoff.until
        if not self._sender.can_send(now):
            return self._sender.can_send_at()  # a batch that completes earlier sends the next one itself
        # A delay that is over and led to no batch waits for one that is in flight. A timer for it would fire without end.
        times = [self._delay_until] if self._delay_until is not None and self._delay_until > now else []
        if self._pending.buffer:
            times.append(self._pending.buffer[0].until)
        if quarantined := self._pending.quarantine.waiting:
            times += [part.not_before for part in quarantined if part.not_before > now]
        return min(times, default=None)

    def _on_batch_done(self, in_flight: InFlightBatch, outcome: BatchResult | DriverError) -> None:
        if isinstance(outcome, DriverError):
            self._on_failed(in_flight.batch, outcome)
        elif in_flight.batch.search is not None:
            self._continue_search(in_flight.batch, outcome.found_ids, None)
        else:
            self._on_committed(in_flight, outcome)
        self._send_ready_batches()

    def _on_committed(self, in_flight: InFlightBatch, result: BatchResult) -> None:
        batch, sent_at = in_flight.batch, in_flight.sent_at
        self._backoff.succeeded()
        if any(result.claimed):
            self._claimed_at = time.monotonic()
        if subscribers:
            self.events.on_committed(batch, result, time.monotonic() - sent_at)
        self._wakeups.on_committed(batch, result, in_flight.wakeups, sent_at)
        # Leases count from when the claim was sent, so that they end here before they end in the database.
        lease_until = sent_at + self._pending.limits.lease_ms / 1000
        assign_tasks(self._pending, self._pending.apply(batch, result, until=lease_until))

    # -- errors

    def _on_connected(self) -> None:
        self._backoff.connected()
        self._send_ready_batches()

    def _on_connection_lost(self, lost: LostConnection) -> None:
        """Put its batch back. The worker pauses only when it has no other connection."""
        if lost.in_flight is not None:
            self._pending.put_back(lost.in_flight.batch)
            self._pending.watermarks.request_rescan()
        if subscribers:
            emit(DatabaseError(classify(lost.error).name.lower()))
        self._request_heartbeat()
        if lost.has_served:
            log.warning("database connection lost, reconnecting: %s", broker_error(lost.error))
        elif self._sender.has_session:
            log.warning(
                "database connection could not be made, continuing with the others: %s", broker_error(lost.error)
            )
        else:
            self._backoff.failed(broker_error(lost.error), unreached=True)
        self._send_ready_batches()

    def _on_failed(self, batch: Batch, error: DriverError) -> None:
        self._pending.watermarks.request_rescan()
        kind = classify(error)
        if subscribers:
            emit(DatabaseError(kind.name.lower()))
        match kind:
            case ErrorKind.CONTENTION:
                self._pending.put_back(batch)
                self._backoff.contended()
                if isinstance(error, LockTimeout):
                    # Workers hold their locks for milliseconds, so another program holds it, or a transaction was left open.
                    log.warning(
                        "batch timed out waiting for a lock that another session holds, retrying; "
                        "`select * from pg_locks where not granted` shows it while it waits: %s",
                        broker_error(error),
                    )
            case ErrorKind.CONNECTION_LOST:
                self._pending.put_back(batch)
                self._request_heartbeat()
                self._backoff.failed(broker_error(error))
            case _:
                self._on_refused(batch, error)

    def _on_refused(self, batch: Batch, error: DriverError) -> None:
        """Find the part of a rolled-back batch that was at fault: see `quarantine`."""
        refusal = Refusal(str(broker_error(error)), is_about_values(error), is_about_server(error))
        if batch.search is not None:
            self._continue_search(batch, refusal, error)
        elif batch.is_single_part:
            self._on_part_refused(batch, refusal)
        elif batch.only_claims:
            # The error may be an answer that we cannot read, of a batch that is committed.
            self._request_heartbeat()
            self._claim_error = error
            has_claimed = time.monotonic() - self._claimed_at < CLAIMED_LATELY_S
            self._pending.begin_search(batch, time.monotonic, has_claimed=has_claimed)
        else:
            log.info("batch refused by the database, sending its parts one by one: %s", refusal.message)
            self._request_heartbeat()
            self._pending.split(batch)

    def _on_part_refused(self, batch: Batch, refusal: Refusal) -> None:
        now = time.monotonic()
        pause_s = self._pending.on_part_refused(batch, refusal, now)
        if pause_s and now >= self._warn_after:  # a full disk refuses hundreds of them
            self._warn_after = now + WARN_EVERY_S
            log.warning("%s: not stored yet, retrying in %.1f s: %s", batch.describe_part(), pause_s, refusal.message)

    def _continue_search(self, batch: Batch, answer: SearchAnswer, error: DriverError | None) -> None:
        """Pass the answer to a step on to the search for a row that cannot be claimed."""
        is_found = self._pending.continue_search(batch, answer)
        reason = error or self._claim_error
        if is_found is False and reason is not None:
            self._backoff.failed(broker_error(reason))


def assign_tasks(pending: PendingWork, claims: list[Claim]) -> None:
    """Assign RUNNING claims in order of service, each to the child with the least load.

    What fits nowhere, because a child has died since the claim was sent, is released.
    """
    shares: dict[Child, list[Claim]] = {}
    if not pending.is_stopping:
        shares = {child: [] for child in pending.children if child.is_open}
    capacity: dict[Child, int] = {}
    for child in shares:
        free = pending.prefetch.child_limit_max - child.load
        capacity[child] = free if child.budget_left is None else min(free, child.budget_left)
    for claim in pending.watermarks.in_order(claims):
        free_children = [child for child in shares if capacity[child] > 0]
        if not free_children:
            pending.releases.append(claim)
            continue
        child = min(free_children, key=lambda child: child.load + len(shares[child]))
        shares[child].append(claim)
        capacity[child] -= 1
    for child, share in shares.items():
        if share:
            child.assign(share)


class Wakeups:
    """Update the watermarks, and whether there may be tasks to claim, from notifications and from the results of batches.

    `schedule_promotion` takes in how many seconds a delayed task becomes due.
    """

    def __init__(self, pending: PendingWork, *, schedule_promotion: Callable[[float], None]) -> None:
        self._pending = pending
        self._schedule_promotion = schedule_promotion
        self._received_count = 0
        self._retry_s = 0.0
        self._promote_at: float | None = None
        """When a notification causes the next promotion."""
        self._promoted_at = 0.0
        """When a notification last caused one."""

    @property
    def snapshot(self) -> WakeupSnapshot:
        return WakeupSnapshot(self._received_count, self._pending.watermarks.sequence)

    def on_notification(self, payload: str | None) -> bool:
        """Return whether there may be tasks to claim now. None: notifications may have been lost."""
        if payload is not None and (delayed := _DELAYED.fullmatch(payload)):
            self._plan_promotion(int(delayed[1]) / 1_000_000)
            return False
        if payload == "freed":
            if not self._pending.limits.caps.has_limits:
                return False  # of a cap that this worker does not have
        elif not self._pending.watermarks.add_hint(payload):
            return False
        self._received_count += 1
        self._pending.may_have_tasks = True
        return True

    def _plan_promotion(self, seconds: float) -> None:
        """Promote when the task becomes due. Forged notifications cause no more promotions than one per PROMOTE_EVERY_S."""
        now = time.monotonic()
        if self._promote_at is not None and self._promote_at <= now:
            self._promoted_at, self._promote_at = self._promote_at, None
        at = max(now + min(max(seconds, 0.0), DELAY_MAX_S), self._promoted_at + PROMOTE_EVERY_S)
        if self._promote_at is None or at < self._promote_at:
            self._promote_at = at
            self._schedule_promotion(at - now)

    def on_committed(self, batch: Batch, result: BatchResult, snapshot: WakeupSnapshot, sent_at: float) -> None:
        if result.due_s is not None:
            self._schedule_promotion(result.due_s)
        if batch.promotes:
            is_stuck = result.overdue and not result.promoted_lanes
            self._retry_s = min(max(LOCKED_S, self._retry_s * 2), LOCKED_MAX_S) if is_stuck else 0.0
            if result.overdue:
                self._schedule_promotion(self._retry_s)
        for lane in result.promoted_lanes:
            if self._pending.watermarks.add_hint(lane, is_trusted=True):
                self._pending.may_have_tasks = True
        if batch.claim_requests:
            self._on_claimed(batch, result, snapshot, sent_at)

    def _on_claimed(self, batch: Batch, result: BatchResult, snapshot: WakeupSnapshot, sent_at: float) -> None:
        watermarks, now = self._pending.watermarks, time.monotonic()
        claims = [claim for group in result.claimed for claim in group]
        # A queue that gave all that one claim may take from it may have more: the claim counts as filled.
        is_filled = any(
            request.queue_limit in Counter(claim.queue_name for claim in group).values()
            for request, group in zip(batch.claim_requests, result.claimed, strict=True)
        )
        limit = len(claims) if is_filled else sum(request.limit for request in batch.claim_requests)
        if batch.claim_from is ClaimFrom.START:
            watermarks.on_rescanned(claims, limit=limit, sent_at=snapshot.sequence, now=now, cost_s=now - sent_at)
        else:
            lanes = batch.lanes if batch.claim_from is ClaimFrom.WATERMARKS else ()
            watermarks.on_claimed(claims, lanes=lanes, limit=limit, sent_at=snapshot.sequence)
        for lane in result.waiting_lanes:
            watermarks.add_hint(lane, is_trusted=True)
        # The batch has not seen what was announced after it was made.
        if len(claims) < limit and snapshot.received_count == self._received_count:
            self._pending.may_have_tasks = batch.claim_from is ClaimFrom.WATERMARKS and watermarks.has_more_lanes


class WakeupTimer:
    """Update `PendingWork` when something becomes due because time passes, then call `on_timer`.

    One timer serves all reasons. It is only ever moved to an earlier time, because to fire too early does no harm: after each call the
    dispatcher sets it to the first time that matters then. All times are on the monotonic clock, in seconds. It must be closed.
    """

    def __init__(
        self, pending: PendingWork, stopper: TaskStopper, *, poll_s: float, on_timer: Callable[[], None]
    ) -> None:
        self._pending = pending
        self._stopper = stopper
        self._poll_s = poll_s
        self._on_timer = on_timer
        self._loop = asyncio.get_running_loop()
        self._poll_at = 0.0
        self._due_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def schedule(self, now: float, send_at: float | None) -> None:
        """Fire at the first time that matters. `send_at`: when a batch may be sent that cannot be sent now."""
        self._fire_by(min(self._times(now, send_at)), now)

    def schedule_promotion(self, in_s: float) -> None:
        """Promote what is due after `in_s` seconds."""
        now = time.monotonic()
        due_at = now + max(0.0, in_s)
        if self._due_at is None or due_at < self._due_at:
            self._due_at = due_at
            self._fire_by(due_at, now)

    def schedule_deadline(self) -> None:
        """Fire at the next deadline of the running tasks."""
        if (deadline := self._stopper.next_at) is not None:
            self._fire_by(deadline, time.monotonic())

    def _fire_by(self, at: float, now: float) -> None:
        if self._timer is None or at < self._timer_at - TIMER_TOLERANCE_S:
            if self._timer:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._loop.call_later(max(0.0, at - now), self._fire)

    def _times(self, now: float, send_at: float | None) -> Iterator[float]:
        yield self._poll_at
        if send_at is not None:
            yield send_at
        rescan_s = self._pending.watermarks.rescan_in_s(now)
        if rescan_s is not None and not self._pending.may_have_tasks:
            yield now + max(rescan_s, 0.001)
        if self._pending.prefetch.is_adaptive and any(
            child.assignments.has_waiting and not child.is_recalled for child in self._pending.children
        ):
            yield now + SLOW_AFTER_S / 2
        if self._due_at is not None:
            yield self._due_at
        if (deadline := self._stopper.next_at) is not None:
            yield deadline

    def _fire(self) -> None:
        self._timer = None
        now = time.monotonic()
        if now >= self._poll_at:
            self._poll_at = now + self._poll_s
            self._pending.watermarks.request_rescan()
            self._pending.may_have_tasks = self._pending.may_have_due_tasks = True
        if self._due_at is not None and now >= self._due_at:
            self._due_at = None
            self._pending.may_have_due_tasks = True
        if self._pending.watermarks.rescan_in_s(now) == 0.0:
            self._pending.may_have_tasks = True
        self._stopper.enforce(now)
        for child in self._pending.children:  # take back what waits behind a slow task
            if child.assignments.has_waiting:
                behind = child.stuck_behind(now, SLOW_AFTER_S, SLOW_TOGETHER_S)
                if behind is not None:
                    child.recall(behind)
        self._on_timer()


class BatchSender:
    """A few connections, each of which carries one batch at a time.

    `on_done` is called for each batch when its connection is idle again, with its result or with the error of a server that rolled it back;
    `on_lost` for each connection that is lost or cannot be made, `on_connected` for each that is made.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        database: PostgresConfig,
        count: int,
        *,
        resilience: WorkerResilienceConfig,
        on_done: Callable[[InFlightBatch, BatchResult | DriverError], None],
        on_lost: Callable[[LostConnection], None],
        on_connected: Callable[[], None],
    ) -> None:
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._pauses = {LoopConnection(database, "worker"): ConnectionPause(resilience) for _ in range(count)}
        """All connections."""
        self._idle = list(self._pauses)
        self._served: set[LoopConnection] = set()
        """Connections that have carried a batch since they were made."""
        self._waiting: deque[InFlightBatch] = deque()
        """Batches that wait for a connection that is being made."""
        self._connecting: dict[LoopConnection, asyncio.Task[None] | None] = {}
        self._on_done = on_done
        self._on_lost = on_lost
        self._on_connected = on_connected
        self._in_flight: set[asyncio.Future[None]] = set()
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self._closer = self._group.create_task(self._close_with_group())

    async def _close_with_group(self) -> None:
        """Stop sending batches as soon as the task group is cancelled."""
        try:
            await self._loop.create_future()
        finally:
            self.is_open = False

    def close(self) -> None:
        """Close all connections. No callback is called for what is in flight."""
        self.is_open = False
        self._closer.cancel()
        for connecting in self._connecting.values():
            if connecting is not None:
                connecting.cancel()
        for connection in self._pauses:
            connection.close()

    @property
    def has_session(self) -> bool:
        """At least one connection is open."""
        return any(connection.is_ready for connection in self._pauses)

    def can_send(self, now: float) -> bool:
        """Return whether a connection is idle, and is open or may be made now."""
        if not self._idle:
            return False
        if self._idle[-1].has_session:  # checked several times per task, and nearly always true
            return True
        if any(connection.is_ready or self._pauses[connection].until <= now for connection in self._idle):
            return True
        return not self.has_session  # where none is open the worker pauses as a whole, and not each connection

    def can_send_at(self) -> float | None:
        """Return when the first idle connection may be made again."""
        return min((self._pauses[connection].until for connection in self._idle), default=None)

    async def wait_in_flight(self, timeout_s: float) -> bool:
        """Return whether all batches that are in flight now are done in this time. Later ones do not matter."""
        if not self._in_flight:
            return True
        _, unanswered = await asyncio.wait(self._in_flight, timeout=timeout_s)
        return not unanswered

    def send(self, batch: Batch, wakeups: WakeupSnapshot) -> None:
        """Send it; `can_send` must have been true."""
        in_flight = InFlightBatch(batch, wakeups, time.monotonic(), self._loop.create_future())
        self._in_flight.add(in_flight.done)
        connection = self._take_ready()
        if connection is not None:
            self._submit(connection, in_flight)
            return
        self._waiting.append(in_flight)
        connection = min(self._idle, key=lambda connection: self._pauses[connection].until)
        self._idle.remove(connection)
        self._served.discard(connection)
        self._connecting[connection] = self._spawn(self._connect(connection))

    def _take_ready(self) -> LoopConnection | None:
        """Take the open connection that became idle last: the others may then stay unused."""
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].is_ready:
                return self._idle.pop(index)
        return None

    async def run_on_idle_connection(self, op: Op[T]) -> T | None:
        """Run another operation on an idle open connection; None if there is none."""
        connection = self._take_ready()
        if connection is None:
            return None
        try:
            return await connection.run(op)
        finally:
            self._idle.append(connection)
            if self.is_open:
                self._send_waiting()
                self._on_connected()

    # -- on an open connection

    def _submit(self, connection: LoopConnection, in_flight: InFlightBatch) -> None:
        try:
            connection.submit(run_batch(in_flight.batch), partial(self._on_answer, connection, in_flight))
        except Exception as error:  # noqa: BLE001 - raised in the task group
            self._spawn(_raise(error))

    def _on_answer(
        self, connection: LoopConnection, in_flight: InFlightBatch, outcome: BatchResult | Exception
    ) -> None:
        if not self.is_open:
            return
        try:
            match outcome:
                case BatchResult():
                    self._served.add(connection)
                    self._finish(connection, in_flight, outcome)
                case DriverError():
                    self._spawn(self._recover(connection, in_flight, outcome))
                case _:
                    self._spawn(_raise(outcome))
        except Exception as error:  # noqa: BLE001 - raised in the task group
            self._spawn(_raise(error))

    async def _recover(self, connection: LoopConnection, in_flight: InFlightBatch, error: DriverError) -> None:
        await connection.recover(error)
        if classify(error) is ErrorKind.CONNECTION_LOST:
            connection.close()  # it may be open, to a server that has become a standby
        if connection.is_ready:
            self._finish(connection, in_flight, error)
            return
        has_served = connection in self._served
        self._served.discard(connection)
        if not has_served:
            self._pauses[connection].begin()
        self._idle.append(connection)
        self._report_lost(LostConnection(error, in_flight, has_served=has_served))

    def _finish(self, connection: LoopConnection, in_flight: InFlightBatch, outcome: BatchResult | DriverError) -> None:
        self._idle.append(connection)
        self._send_waiting()
        self._on_done(in_flight, outcome)
        self._mark_done(in_flight)

    def _mark_done(self, in_flight: InFlightBatch) -> None:
        self._in_flight.discard(in_flight.done)
        in_flight.done.set_result(None)

    # -- without a connection

    async def _connect(self, connection: LoopConnection) -> None:
        """Connect without a batch: another connection that becomes idle takes it, and nothing is lost if this takes long or fails."""
        try:
            await connection.run(_do_nothing())
        except DriverError as error:
            del self._connecting[connection]
            self._pauses[connection].begin()
            self._idle.append(connection)
            # Each waiting batch had a connection that is being made for it. For the last of them there is none now.
            has_too_many = len(self._waiting) > len(self._connecting)
            self._report_lost(LostConnection(error, self._waiting.pop() if has_too_many else None, has_served=False))
        else:
            del self._connecting[connection]
            self._pauses[connection].succeeded()
            self._idle.append(connection)
            self._send_waiting()
            self._on_connected()

    def _send_waiting(self) -> None:
        while self._waiting and (connection := self._take_ready()) is not None:
            self._submit(connection, self._waiting.popleft())

    def _report_lost(self, lost: LostConnection) -> None:
        if self.is_open:
            self._on_lost(lost)
        if lost.in_flight is not None:
            self._mark_done(lost.in_flight)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None] | None:
        try:
            return self._group.create_task(coroutine)
        except RuntimeError:  # the group is already shutting down
            coroutine.close()
            return None


def _do_nothing() -> Op[None]:
    return
    yield  # type: ignore[unreachable]


async def _raise(error: Exception) -> None:
    raise error
