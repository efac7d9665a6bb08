"""The pump: the worker's conversation with the database about tasks.

Everything that happens comes in on the event loop and is entered in the books: what children report by the clerk, notifications by the news, what time
makes due by the alarm. Then `_go` is called, which sends as many *turns* as there is reason for: one transaction each, that ends what has ended, gives back
what will not run here, starts what is buffered and claims into the free places. Turns overlap: a few are in flight, each with its own courier, each
carrying all that is on the books at that moment. While one waits for its commit to reach the disk, the next is already on its way.

Nothing is forgotten before the database has answered. A turn that fails puts back what it carried; endings are fenced by claim
number, so writing one twice is harmless. What was claimed by a turn whose answer was lost is found by the heartbeat.
"""

import asyncio
import logging
import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass
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
from horsies.worker.assignments import SLOW_AFTER_S, SLOW_TOGETHER_S
from horsies.worker.batch import Batch, BatchResult, ClaimFrom, run_batch
from horsies.worker.child import Child
from horsies.worker.pending import PendingWork
from horsies.worker.quarantine import RefusedBatch, SearchAnswer
from horsies.worker.reports import ChildReports, TaskEvents
from horsies.worker.service import Backoff, ConnectionPause, GaveUp
from horsies.worker.timeouts import TaskStopper

# --------
# The couriers: a few connections, each of which carries one turn at a time.
#
# A turn is said at once where there is a connection, and what becomes of it is told by the event loop. Only to connect, and to put a connection in order
# after an error, is an asyncio task needed: one for every turn would cost more than making it. But from what is called by the loop itself no
# error gets any further than into the log, and the worker would lack a turn and its courier for ever. So whatever else goes wrong brings
# the worker down, by way of its task group.
#
# **Connections fail one by one.** A server may have no slot left for one more connection while it serves those that it has. So a courier that cannot connect
# rests alone. The turn that waited for it leaves with the next courier that has a connection, or is handed back. A connection that has carried a
# turn before and is lost is replaced at once, without a rest: one killed session is no outage.

T = TypeVar("T")

LOCKED_S, LONGEST_S = 0.02, 5.0
"""What is due and was not promoted is looked at again so soon at first, then less and less often: it may be locked, or broken for good."""
PROMOTE_EVERY_S = 0.01
"""Notifications lead to at most one look per interval for what was put off."""
LATER_AT_MOST_S = 86_400.0

_LATER = re.compile(r"later (-?[0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class KnownWakeup:
    """How much had been heard when a turn was made. What is heard from then on is not in its lanes, even if it leaves a moment later."""

    received_count: int
    moment: int


class Wakeups:
    """`due_in` is told in how many seconds something that was put off becomes due."""

    def __init__(self, pending: PendingWork, *, due_in: Callable[[float], None]) -> None:
        self._pending = pending
        self._due_in = due_in
        self._received_count = 0
        self._again_s = 0.0
        self._promote_at: float | None = None
        """When what was put off is looked for because of a notification."""
        self._promoted_at = 0.0
        """When it last was."""

    @property
    def known(self) -> KnownWakeup:
        return KnownWakeup(self._received_count, self._pending.watermarks.moment)

    def heard(self, payload: str | None) -> bool:
        """A notification: there is something to claim, now or later. None: there may be. Whether to look now."""
        if payload is not None and (later := _LATER.fullmatch(payload)):
            self._put_off(int(later[1]) / 1_000_000)
            return False
        if payload == "freed":
            if not self._pending.limits.caps.has_limits:
                return False  # capped capacity, which this worker does not wait for
        elif not self._pending.watermarks.heard(payload):
            return False
        self._received_count += 1
        self._pending.may_have_tasks = True
        return True

    def _put_off(self, seconds: float) -> None:
        """A task becomes due then. A notification that says so too often, or too early, leads to no more looks than a clock would."""
        now = time.monotonic()
        if self._promote_at is not None and self._promote_at <= now:
            self._promoted_at, self._promote_at = self._promote_at, None
        at = max(now + min(max(seconds, 0.0), LATER_AT_MOST_S), self._promoted_at + PROMOTE_EVERY_S)
        if self._promote_at is None or at < self._promote_at:
            self._promote_at = at
            self._due_in(at - now)

    def found(self, batch: Batch, outcome: BatchResult, known: KnownWakeup, departed: float) -> None:
        """A turn was answered."""
        if outcome.due_s is not None:
            self._due_in(outcome.due_s)
        if batch.promotes:
            self._again_s = 0.0 if outcome.promoted or not outcome.overdue else self._longer()
            if outcome.overdue:
                self._due_in(self._again_s)
        for lane in outcome.promoted:
            if self._pending.watermarks.heard(lane, is_trusted=True):
                self._pending.may_have_tasks = True
        if batch.wanted:
            self._claimed(batch, outcome, known, departed)

    def _longer(self) -> float:
        return min(max(LOCKED_S, self._again_s * 2), LONGEST_S)

    def _claimed(self, batch: Batch, outcome: BatchResult, known: KnownWakeup, departed: float) -> None:
        watermarks, now = self._pending.watermarks, time.monotonic()
        claims = [claim for group in outcome.claimed for claim in group]
        asked = len(claims) if _met_a_batch(batch, outcome) else sum(wanted.limit for wanted in batch.wanted)
        if batch.claim_from is ClaimFrom.START:
            watermarks.rescanned(claims, asked=asked, sent_at=known.moment, now=now, cost_s=now - departed)
        else:
            lanes = batch.lanes if batch.claim_from is ClaimFrom.WATERMARKS else ()
            watermarks.claimed(claims, lanes=lanes, asked=asked, sent_at=known.moment)
        for lane in outcome.waiting:
            watermarks.heard(lane, is_trusted=True)
        if len(claims) < asked and known.received_count == self._received_count:
            self._pending.may_have_tasks = batch.claim_from is ClaimFrom.WATERMARKS and watermarks.are_left


def _met_a_batch(batch: Batch, outcome: BatchResult) -> bool:
    """Some queue gave all that one claim may take from it: there may be more."""
    return any(
        wanted.queue_limit in Counter(claim.queue_name for claim in claims).values()
        for wanted, claims in zip(batch.wanted, outcome.claimed, strict=True)
    )


# --------
# The alarm: what becomes due because time passes, and for no other reason.
#
# It enters in the books what time has made due, and then calls `rung`. One timer serves all reasons. It is only ever moved forward, because to ring too early
# does no harm: after each ring the pump sets it again, to the first moment that matters then.

TOLERANCE_S = 0.001


class WakeupTimer:
    """All moments are on the monotonic clock, in seconds. It must be closed, or it rings on."""

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

    def set(self, now: float, departure: float | None) -> None:
        """Ring at the first moment that matters. `departure`: when a turn may leave that cannot leave now."""
        self._wake_by(min(self._moments(now, departure)), now)

    def schedule_promotion(self, seconds: float) -> None:
        """A task that was put off becomes due then."""
        now = time.monotonic()
        due_at = now + max(0.0, seconds)
        if self._due_at is None or due_at < self._due_at:
            self._due_at = due_at
            self._wake_by(due_at, now)

    def mind_deadlines(self) -> None:
        """There may be a new one among those of the tasks that run."""
        if (deadline := self._stopper.next_at) is not None:
            self._wake_by(deadline, time.monotonic())

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _wake_by(self, moment: float, now: float) -> None:
        if self._timer is None or moment < self._timer_at - TOLERANCE_S:
            if self._timer:
                self._timer.cancel()
            self._timer_at = moment
            self._timer = self._loop.call_later(max(0.0, moment - now), self._wake)

    def _moments(self, now: float, departure: float | None) -> Iterator[float]:
        yield self._poll_at
        if departure is not None:
            yield departure
        if (rescan_s := self._pending.watermarks.rescan_in_s(now)) is not None and not self._pending.may_have_tasks:
            yield now + max(rescan_s, 0.001)
        if self._pending.prefetch.is_framed and any(
            m.assignments.has_waiting and not m.is_recalled for m in self._pending.children
        ):
            yield now + SLOW_AFTER_S / 2
        if self._due_at is not None:
            yield self._due_at
        if (deadline := self._stopper.next_at) is not None:
            yield deadline

    def _wake(self) -> None:
        self._timer = None
        now = time.monotonic()
        if now >= self._poll_at:
            self._poll_at = now + self._poll_s
            self._pending.watermarks.heard(None)
            self._pending.may_have_tasks = self._pending.promotes = True
        if self._due_at is not None and now >= self._due_at:
            self._due_at = None
            self._pending.promotes = True
        if self._pending.watermarks.rescan_in_s(now) == 0.0:
            self._pending.may_have_tasks = True
        self._stopper.enforce(now)
        self._recall_from_the_slow(now)
        self._on_timer()

    def _recall_from_the_slow(self, now: float) -> None:
        for child in self._pending.children:
            behind = child.stuck_behind(now, SLOW_AFTER_S, SLOW_TOGETHER_S) if child.assignments.has_waiting else None
            if behind is not None:
                child.recall(behind)


class InFlightBatch(NamedTuple):
    """A turn on its way."""

    batch: Batch
    known: KnownWakeup
    departed: float
    on_done: "asyncio.Future[None]"


class LostBatch(NamedTuple):
    """A connection that was lost, or could not be made."""

    error: DriverError
    flight: InFlightBatch | None
    """What it carried, or should have carried; to be put back."""
    is_first: bool
    """The connection has served before. It is made anew without a pause."""


class BatchSender:
    """`landed` is told of each turn, when its courier is idle again: what came of it, or why the server refused it. `lost` is told of each connection
    that is gone or cannot be made, and `connected` of each that is made.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        database: PostgresConfig,
        count: int,
        *,
        resilience: WorkerResilienceConfig,
        on_done: Callable[[InFlightBatch, BatchResult | DriverError], None],
        lost: Callable[[LostBatch], None],
        connected: Callable[[], None],
    ) -> None:
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._rests = {LoopConnection(database, "worker"): ConnectionPause(resilience) for _ in range(count)}
        self._idle = list(self._rests)
        self._established: set[LoopConnection] = set()
        self._waiting: deque[InFlightBatch] = deque()
        self._connecting: dict[LoopConnection, asyncio.Task[None] | None] = {}
        self._landed = on_done
        self._lost = lost
        self._connected = connected
        self._under_way: set[asyncio.Future[None]] = set()
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self._ward = self._group.create_task(self._close_with_the_group())

    def close(self) -> None:
        """What is under way is not heard of again."""
        self.is_open = False
        self._ward.cancel()
        for connecting in self._connecting.values():
            if connecting is not None:
                connecting.cancel()
        for connection in self._rests:
            connection.close()

    async def _close_with_the_group(self) -> None:
        """When the worker comes to its end by an error, its children's last words change nothing, and nothing more is claimed."""
        try:
            await self._loop.create_future()
        finally:
            self.is_open = False

    def can_send(self, now: float) -> bool:
        """One is idle and has a connection, or may make one now. Where none has a connection, none rests: then the worker pauses as a whole."""
        if not self._idle:
            return False
        if self._idle[-1].has_session:  # asked several times per task, and nearly always so
            return True
        return any(connection.is_ready or self._rests[connection].until <= now for connection in self._idle) or (
            not self.has_session
        )

    def can_send_at(self) -> float | None:
        """When the first of those that are idle and rest may connect again."""
        return min((self._rests[connection].until for connection in self._idle), default=None)

    @property
    def has_session(self) -> bool:
        """At least one has a connection."""
        return any(connection.is_ready for connection in self._rests)

    async def have_landed(self, within_s: float) -> bool:
        """Whether all that are under way now are back by then. Those that leave later do not matter."""
        if not self._under_way:
            return True
        _, unanswered = await asyncio.wait(self._under_way, timeout=within_s)
        return not unanswered

    def send(self, batch: Batch, known: KnownWakeup) -> None:
        """By one who can."""
        flight = InFlightBatch(batch, known, time.monotonic(), self._loop.create_future())
        self._under_way.add(flight.on_done)
        connection = self._take_ready()
        if connection is not None:
            self._post(connection, flight)
        else:
            self._waiting.append(flight)
            self._connect(self._take_rested())

    def _take_ready(self) -> LoopConnection | None:
        """The one that came back last."""
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].is_ready:
                return self._idle.pop(index)
        return None

    def _take_rested(self) -> LoopConnection:
        connection = min(self._idle, key=lambda connection: self._rests[connection].until)
        self._idle.remove(connection)
        return connection

    async def lend(self, op: Op[T]) -> T | None:
        """Run something else on an idle courier that has a connection; None if there is none."""
        connection = self._take_ready()
        if connection is None:
            return None
        try:
            return await connection.run(op)
        finally:
            self._idle.append(connection)
            if self.is_open:
                self._send_waiting()
                self._connected()

    # -- with a connection

    def _post(self, connection: LoopConnection, flight: InFlightBatch) -> None:
        try:
            connection.submit(run_batch(flight.batch), partial(self._answered, connection, flight))
        except Exception as error:  # noqa: BLE001 - see above
            self._attend(_fall(error))

    def _answered(self, connection: LoopConnection, flight: InFlightBatch, outcome: BatchResult | Exception) -> None:
        if not self.is_open:
            return
        try:
            match outcome:
                case BatchResult():
                    self._established.add(connection)
                    self._land(connection, flight, outcome)
                case DriverError():
                    self._attend(self._recover(connection, flight, outcome))
                case _:
                    self._attend(_fall(outcome))
        except Exception as error:  # noqa: BLE001 - see above
            self._attend(_fall(error))

    async def _recover(self, connection: LoopConnection, flight: InFlightBatch, error: DriverError) -> None:
        await connection.recover(error)
        if classify(error) is ErrorKind.CONNECTION_LOST:
            connection.close()  # it may be open, to a server that has become a standby
        if connection.is_ready:
            self._land(connection, flight, error)
            return
        is_first = connection in self._established
        self._established.discard(connection)
        if not is_first:
            self._rests[connection].begin()
        self._idle.append(connection)
        self._lose(LostBatch(error, flight, is_first=is_first))

    def _land(self, connection: LoopConnection, flight: InFlightBatch, outcome: BatchResult | DriverError) -> None:
        self._idle.append(connection)
        self._send_waiting()
        self._landed(flight, outcome)
        self._forget(flight)

    def _forget(self, flight: InFlightBatch) -> None:
        self._under_way.discard(flight.on_done)
        flight.on_done.set_result(None)

    # -- without one

    def _connect(self, connection: LoopConnection) -> None:
        self._established.discard(connection)
        self._connecting[connection] = None
        self._connecting[connection] = self._attend(self._open(connection))

    async def _open(self, connection: LoopConnection) -> None:
        """Without a turn: one that becomes free meanwhile takes it along, and nothing is lost if this takes long or fails."""
        try:
            await connection.run(_nothing())
        except DriverError as error:
            del self._connecting[connection]
            self._rests[connection].begin()
            self._idle.append(connection)
            # Each that waits has one that connects for it. For the last of them there is none now.
            flight = self._waiting.pop() if len(self._waiting) > len(self._connecting) else None
            self._lose(LostBatch(error, flight, is_first=False))
        else:
            del self._connecting[connection]
            self._rests[connection].succeeded()
            self._idle.append(connection)
            self._send_waiting()
            self._connected()

    def _send_waiting(self) -> None:
        while self._waiting and (connection := self._take_ready()) is not None:
            self._post(connection, self._waiting.popleft())

    def _lose(self, loss: LostBatch) -> None:
        if self.is_open:
            self._lost(loss)
        if loss.flight is not None:
            self._forget(loss.flight)

    def _attend(self, journey: Coroutine[None, None, None]) -> asyncio.Task[None] | None:
        try:
            return self._group.create_task(journey)
        except RuntimeError:  # the group is coming to its end already
            journey.close()
            return None


def _nothing() -> Op[None]:
    """Only connects."""
    return
    yield  # type: ignore[unreachable]


async def _fall(error: Exception) -> None:
    raise error


# --------
# Hand out what is RUNNING in the database to the children that run it.


def assign_tasks(pending: PendingWork, claims: list[Claim]) -> None:
    """In order of service, always to the child with the least before it. What fits nowhere, because a child has died meanwhile, goes back."""
    shares: dict[Child, list[Claim]] = {}
    if not pending.is_stopping:
        shares = {child: [] for child in pending.children if child.is_open}
    capacity = {child: _capacity(pending, child) for child in shares}
    for claim in pending.watermarks.in_order(claims):
        free = [child for child in shares if capacity[child] > 0]
        if not free:
            pending.releases.append(claim)
            continue
        child = min(free, key=lambda child: child.load + len(shares[child]))
        shares[child].append(claim)
        capacity[child] -= 1
    for child, share in shares.items():
        if share:
            child.assign(share)


def _capacity(pending: PendingWork, child: Child) -> int:
    capacity = pending.prefetch.most - child.load
    return capacity if child.budget_left is None else min(capacity, child.budget_left)


FINAL_BATCH_S = 5.0
ANSWER_S = 1.0
CLAIMED_LATELY_S = 60.0
WARN_EVERY_S = 1.0
TASKS_SHOWN = 3

log = logging.getLogger("horsies.worker")


class Dispatcher:
    """A service: leaving closes its connections; `drain` is what a graceful stop waits for."""

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
        self._unread = 0
        self._gather_until: float | None = None
        self._request_heartbeat = request_heartbeat
        self._grace_s = grace_ms / 1000
        self._stopper = TaskStopper(pending, self._grace_s)
        self.events = TaskEvents()
        self.wakeup_timer = WakeupTimer(
            pending, self._stopper, poll_s=resilience.notify_poll_interval_ms / 1000, on_timer=self._go
        )
        self._news = Wakeups(pending, due_in=self.wakeup_timer.schedule_promotion)
        self.reports = ChildReports(
            pending, self._stopper, self.events, entered=self._go, armed=self.wakeup_timer.mind_deadlines
        )
        self._sender = BatchSender(
            group,
            database,
            batches,
            resilience=resilience,
            on_done=self._landed,
            lost=self._lost,
            connected=self._connected,
        )
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._claimed_at = -math.inf
        self._claim_error: DriverError | None = None
        """Why the last claim was refused."""
        self._warn_after = 0.0

    async def __aenter__(self) -> Self:
        self._sender.open()
        self._go()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sender.close()
        self.wakeup_timer.close()

    async def drain(self, timeout_ms: int | None) -> None:
        """Claim no more, give back what has not begun, and wait until the rest has ended and is written down."""
        self._pending.is_stopping = True
        log.info("stopping: no more claims; %s", self._describe_wait(timeout_ms))
        for child in self._pending.children:
            if child.assignments.has_waiting:
                child.recall(NO_ASSIGNMENT)
        self._go()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._drained.wait()
        except TimeoutError:
            log.warning("what still runs had %d ms to end", timeout_ms)
            self.escalate_stop()
            self._loop.call_later(self._grace_s, self._leave_soon)
            await self._drained.wait()
        if not self._pending.is_empty:
            raise GaveUp("the database is away and it is time to leave: what has ended here could not be written down")

    def escalate_stop(self) -> None:
        """Stop what runs: softly at first, by a kill when asked again, and then not even the database is waited for."""
        if self._stopper.is_interrupting:
            log.warning("killing what still runs: %s", self._describe_running())
            self._stopper.kill_all()
            self._leave_soon()
        else:
            log.warning("interrupting what still runs: %s", self._describe_running())
            self._stopper.interrupt_all()
        self._go()

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
            f"{claim.task_name} ({claim.id}, running for {format_duration(now - at)})"
            for at, claim in running[:TASKS_SHOWN]
        ]
        more = len(running) - TASKS_SHOWN
        return (", ".join(shown) or "nothing") + (f" and {more} more" if more > 0 else "")

    def _leave_soon(self) -> None:
        """The last endings still get a moment to be written down."""
        self._loop.call_later(FINAL_BATCH_S, self._drained.set)

    @property
    def has_interrupted_tasks(self) -> bool:
        """Tasks were interrupted, because they did not end in time."""
        return self._stopper.has_interrupted

    # -- what happens

    def on_notification(self, payload: str | None) -> None:
        """A notification."""
        if self._news.heard(payload):
            self._go_soon()

    def cancel(self, task_ids: Collection[TaskId]) -> None:
        """These are asked to stop, and killed when their grace is over."""
        self._stopper.cancel(task_ids)
        self.wakeup_timer.mind_deadlines()

    def on_database_reached(self) -> None:
        """Somebody else has just reached the database: a pause because it was away is over."""
        if self._backoff.reached():
            self._go()

    async def run_on_idle_connection(self, op: Op[T]) -> T | None:
        """Run this on a connection of ours, if one is idle; None if not."""
        return await self._sender.lend(op)

    # -- what the database says is ours

    async def unknown_claims(self, held: Sequence[Claim]) -> list[Claim]:
        """Of the rows that the database says are ours, those we know nothing of."""
        # A turn under way may just have claimed them: its answer comes first. Not for long: this is the heartbeat's time.
        if self._unknown(held) and not await self._sender.have_landed(within_s=ANSWER_S):
            return []
        return self._unknown(held)

    def _unknown(self, held: Sequence[Claim]) -> list[Claim]:
        remembered = self._pending.remembered()
        return [claim for claim in held if (claim.id, claim.claim_no) not in remembered]

    def release(self, claims: Sequence[Claim]) -> None:
        """Give back what no child was ever handed."""
        self._pending.releases.extend(claims)
        self._go()

    # -- turns

    def _go_soon(self) -> None:
        """Notifications come in crowds: take in what has arrived, then look once."""
        self._unread += 1
        if self._unread >= self._coalesce:
            self._go()
        elif self._unread == 1:
            self._loop.call_soon(self._go)

    def _go(self) -> None:
        """Send every turn there is a reason, a connection and a good moment for.

        Children report that they are ready before the worker is registered: what it claimed then would be taken for an orphan's.
        """
        self._unread = 0
        if not self._sender.is_open:
            return
        now = time.monotonic()
        while self._may_send(now) and (batch := self._pending.next_batch(now)):
            self._gather_until = None
            self._sender.send(batch, self._news.known)
        if self._pending.is_stopping and self._pending.is_empty:
            self._drained.set()
        self.wakeup_timer.set(now, self._next_departure(now))

    def _may_send(self, now: float) -> bool:
        if now < self._backoff.until or not self._sender.can_send(now):
            return False
        if self._pending.should_gather():
            self._gather_until = self._gather_until or now + self._pending.prefetch.gather_s
            return now >= self._gather_until
        self._gather_until = None
        return True

    def _next_departure(self, now: float) -> float | None:
        """When a turn may leave, though nothing has happened by then."""
        if now < self._backoff.until:
            return self._backoff.until
        if not self._sender.can_send(now):
            return self._sender.can_send_at()  # and whoever comes back looks for what has become due meanwhile
        # What is over has not led to a turn: what waits, waits for one that is in flight.
        moments = [self._gather_until] if self._gather_until is not None and self._gather_until > now else []
        if self._pending.buffer:
            moments.append(self._pending.buffer[0].until)
        if quarantined := self._pending.quarantine.waiting:
            moments += [suspect.not_before for suspect in quarantined if suspect.not_before > now]
        return min(moments, default=None)

    def _landed(self, flight: InFlightBatch, outcome: BatchResult | DriverError) -> None:
        if isinstance(outcome, DriverError):
            self._failed(flight.batch, outcome)
        else:
            self._arrived(flight, outcome)
        self._go()

    def _arrived(self, flight: InFlightBatch, outcome: BatchResult) -> None:
        batch, departed = flight.batch, flight.departed
        if batch.search is not None:
            self._searched(batch, outcome.found, None)
            return
        self._backoff.succeeded()
        if any(outcome.claimed):
            self._claimed_at = time.monotonic()
        if subscribers:
            self.events.turned(batch, outcome, time.monotonic() - departed)
        self._news.found(batch, outcome, flight.known, departed)
        assign_tasks(
            self._pending, self._pending.apply(batch, outcome, until=departed + self._pending.limits.lease_ms / 1000)
        )

    # -- trouble

    def _connected(self) -> None:
        self._backoff.connected()
        self._go()

    def _lost(self, loss: LostBatch) -> None:
        """A connection was lost, or could not be made. The worker pauses only when it has no other."""
        if loss.flight is not None:
            self._pending.put_back(loss.flight.batch)
            self._pending.watermarks.heard(None)
        if subscribers:
            emit(DatabaseError(classify(loss.error).name.lower()))
        self._request_heartbeat()
        if loss.is_first:
            log.warning("a database connection was lost, connecting again: %s", broker_error(loss.error))
        elif self._sender.has_session:
            log.warning("a database connection is missing, the others go on: %s", broker_error(loss.error))
        else:
            self._backoff.failed(broker_error(loss.error), unreached=True)
        self._go()

    def _failed(self, batch: Batch, error: DriverError) -> None:
        self._pending.watermarks.heard(None)
        trouble = classify(error)
        if subscribers:
            emit(DatabaseError(trouble.name.lower()))
        match trouble:
            case ErrorKind.CONTENTION:
                self._pending.put_back(batch)
                self._backoff.contended()
                if isinstance(error, LockTimeout):
                    # Ours hold theirs for milliseconds, so it is somebody else who does: a stranger, or a transaction left open.
                    log.warning(
                        "a batch waited in vain for a lock that another session holds, trying again; "
                        "`select * from pg_locks where not granted` shows it while it waits: %s",
                        broker_error(error),
                    )
            case ErrorKind.CONNECTION_LOST:
                self._pending.put_back(batch)
                self._request_heartbeat()
                self._backoff.failed(broker_error(error))
            case _:
                self._refused(batch, error)

    def _refused(self, batch: Batch, error: DriverError) -> None:
        """The server has rolled it back, and says why. Some part of it was at fault: see `quarantine`."""
        refusal = RefusedBatch(str(broker_error(error)), is_about_values(error), is_about_server(error))
        if batch.search is not None:
            self._searched(batch, refusal, error)
        elif batch.is_alone:
            self._refused_alone(batch, refusal)
        elif batch.only_claims:
            # What was answered may be what we cannot read: then it is committed.
            self._request_heartbeat()
            self._claim_error = error
            has_claimed = time.monotonic() - self._claimed_at < CLAIMED_LATELY_S
            self._pending.begin_search(batch, time.monotonic, has_claimed=has_claimed)
        else:
            log.info("the database refused a batch, its parts are sent again one by one: %s", refusal.words)
            self._request_heartbeat()
            self._pending.take_apart(batch)

    def _refused_alone(self, batch: Batch, refusal: RefusedBatch) -> None:
        now = time.monotonic()
        rest_s = self._pending.refused_alone(batch, refusal, now)
        if rest_s and now >= self._warn_after:  # a full disk refuses hundreds of them
            self._warn_after = now + WARN_EVERY_S
            log.warning(
                "%s cannot be stored yet, trying again in %.1f s: %s", batch.name_of_part, rest_s, refusal.words
            )

    def _searched(self, batch: Batch, answer: SearchAnswer, error: DriverError | None) -> None:
        """A step in the search for a row that cannot be claimed was answered."""
        is_found = self._pending.continue_search(batch, answer)
        if is_found is False:
            reason = error or self._claim_error
            if reason is not None:
                self._backoff.failed(broker_error(reason))
