"""Exchange batches with the database and assign claimed tasks to the children.

`Dispatcher` owns all that a worker knows about its tasks (`plan.DispatcherState`). Everything arrives on the event loop, as a notification, a report of a
child, a timer, or a report of the connections. Each updates the state; then batches are sent as long as `plan_batch` has one. A batch is one
transaction: it stores endings, releases what will not run here, starts buffered claims and claims into the free capacity. Batches overlap: a few are in
flight, each on its own connection, each with all that was pending when it was made. While one waits for its commit to reach the disk, the next is already
under way.

Nothing is forgotten before the database has answered. A batch that fails puts its parts back; endings are fenced by claim
number, so storing one twice is harmless. The heartbeat finds what was claimed by a batch whose answer was lost.

**Notifications are hints** that any role may have sent. They decide only when to claim; what there is to claim, the database decides.

**Stopping a task**, for a timeout, a cancellation or a shutdown: request it first, kill its child when the grace period is over. A child that runs others
beside it is not killed: the task is abandoned, and what it returns later is fenced off.
"""

import asyncio
import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeVar

from horsies.db.channels import ALL_KEYS
from horsies.db.errors import (
    DriverError,
    ErrorKind,
    LockTimeout,
    broker_error,
    classify,
    is_about_server,
    is_about_values,
)
from horsies.db.listen_group import ListenGroup
from horsies.db.statement import Op
from horsies.events import (
    BatchCommitted,
    DatabaseError,
    TaskEnded,
    TaskRetried,
    TasksClaimed,
    TaskStarted,
    emit,
    subscribers,
)
from horsies.executor.protocol import NO_ASSIGNMENT, Done, StopReason
from horsies.model.attempt_log import KeptLines
from horsies.model.config import WorkerResilienceConfig
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.result import TaskError
from horsies.model.status import Misfit, TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.model.text import plural
from horsies.model.validation import format_duration
from horsies.tasks.claim import Caps, ClaimFrom, Lane
from horsies.tasks.unknown import UnfitClaim, UnfitOutcome, unknown_task_claim
from horsies.worker.batch import (
    Batch,
    BatchResult,
    ending_from_done,
    failed_ending,
    serialization_error,
)
from horsies.worker.batch_sender import BatchDone, BatchSender, ConnectionLost, ConnectionMade, SenderReport
from horsies.worker.child import (
    SLOW_AFTER_S,
    SLOW_TOGETHER_S,
    Child,
    ChildExited,
    ChildReport,
    ReportsRead,
    TaskBegan,
    TaskDone,
    TaskLogged,
    TaskProgress,
    TasksReturned,
)
from horsies.worker.plan import (
    BATCH_DELAY_S,
    PREFETCH_BATCH_DELAY_S,
    BufferedClaim,
    ClaimKey,
    Deadline,
    DispatcherState,
    Refusal,
    SearchAnswer,
    Sent,
    StopStage,
    find_bad_rows,
    held_claims,
    is_drained,
    is_full,
    next_wakeup,
    plan_assignments,
    plan_batch,
    should_delay_batch,
    simplify,
    split_batch,
    surplus_lane,
)
from horsies.worker.service import Backoff, GaveUp, random_jitter

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
LOAD_FAILURES_MAX = 3
DEATHS_MAX = 3
SKIPPED_S = 60.0
SKIPPED_MAX = 1_000
AVOIDED_S = 10.0
"""How long a worker leaves to others what it cannot run. Then it claims it again: the others may be gone."""
LOOP_ANSWER_S = 2.0
"""The least time in which an event loop must run after a task on it was abandoned, however short the grace period."""

_DELAYED = re.compile(r"later (-?[0-9]{1,19})")
T = TypeVar("T")

log = logging.getLogger("horsies.worker")


class Dispatcher:
    """A service: leaving it closes its connections. `drain` is the graceful stop.

    `request_heartbeat` is called after an error that leaves open what was claimed: the heartbeat finds the claims that are not known here.
    """

    def __init__(
        self,
        state: DispatcherState,
        sender: BatchSender,
        *,
        resilience: WorkerResilienceConfig,
        grace_ms: int,
        coalesce: int,
        request_heartbeat: Callable[[], None],
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._sender = sender
        self._resilience = resilience
        self._backoff = Backoff(resilience, clock=clock)
        self._poll_s = resilience.notify_poll_interval_ms / 1000
        self._grace_s = grace_ms / 1000
        self._coalesce = coalesce
        self._unsent_notifications = 0
        self._request_heartbeat = request_heartbeat
        self._loop = loop
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._drained = asyncio.Event()
        self._batch_ended = asyncio.Event()
        self._claimed_at = -math.inf
        self._claim_error: DriverError | None = None
        """Why the last claim was refused."""
        self._warn_after = 0.0
        self.events = TaskEvents()
        self.group: ListenGroup | None = None
        """The workers with which this one shares notifications."""
        self.on_surplus: Callable[[Lane | None], None] | None = None
        """Called with a lane in which there may be more tasks than this worker can take, and with None if there are not."""

    async def __aenter__(self) -> Self:
        self._sender.open(self.on_sender_report)
        self._send_ready_batches()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sender.close()
        if self._timer:
            self._timer.cancel()

    # -- the three inputs

    def on_notification(self, payload: str | None) -> None:
        """Handle a notification about tasks to claim. None: notifications may have been lost."""
        state = self._state
        if payload is not None and (delayed := _DELAYED.fullmatch(payload)):
            self._plan_promotion(int(delayed[1]) / 1_000_000)
            return
        if payload == "freed":
            if not state.limits.caps.has_limits:
                return  # of a cap that this worker does not have
        elif not state.watermarks.add_hint(payload):
            return
        elif payload is None or payload == ALL_KEYS:
            state.may_have_new_caps = True
        state.notifications += 1
        state.may_have_tasks = True
        # Many arrive together: read all that have arrived, then send once.
        self._unsent_notifications += 1
        if self._unsent_notifications >= self._coalesce:
            self._send_ready_batches()
        elif self._unsent_notifications == 1:
            self._loop.call_soon(self._send_ready_batches)

    def on_child_report(self, child: Child, report: ChildReport) -> None:  # noqa: C901, PLR0912 - one case for each kind
        """Handle what a child reports. Batches are sent when all that has arrived from it was reported."""
        state = self._state
        match report:
            case TaskDone(claim, done):
                if done.duration_us:  # otherwise it was cancelled before it began
                    state.prefetch.observe(done.duration_us)
                if state.progress:
                    state.progress.pop((claim.id, claim.claim_no), None)
                if state.stops_requested:
                    self._add_stopped(child, claim, done)
                elif done.misfit is Misfit.NONE:
                    ending = ending_from_done(claim, done, child.pid)
                    state.endings.append(self._with_log(ending, claim) if state.logs else ending)
                else:
                    self._add_unfit(claim, done)
                if self.group is not None and self.group.slot is None:
                    state.may_have_tasks = True  # it is not notified of tasks, so it looks whenever there is room
                if subscribers:
                    self.events.on_done(claim, done)
            case TaskBegan(assignment_no, claim):
                if state.is_interrupting:
                    self._interrupt(child, assignment_no, claim)  # it had not begun when all were interrupted
                elif claim.timeout_ms is not None:
                    at = self._clock() + claim.timeout_ms / 1000
                    self._add_deadline(at, Deadline(child, assignment_no, StopStage.REQUEST))
                if subscribers:
                    self.events.on_began(claim)
            case ReportsRead():
                self._send_ready_batches()
            case TaskProgress(claim, fraction, message):
                state.progress[claim.id, claim.claim_no] = json.dumps({"fraction": fraction, "message": message})
            case TaskLogged(claim, lines):
                state.logs.setdefault((claim.id, claim.claim_no), KeptLines()).add(lines)
            case TasksReturned(claims):
                state.stops_requested.difference_update([(claim.id, claim.claim_no) for claim in claims])
                state.releases.extend(claims)
            case ChildExited():
                self._on_child_exited(child, report)
                self._send_ready_batches()

    def on_timer(self) -> None:
        """Do what has become due because time has passed."""
        state, now = self._state, self._clock()
        self._timer = None
        if now >= state.poll_at:
            state.poll_at = now + self._poll_s
            state.watermarks.request_rescan()
            state.may_have_tasks = state.may_have_due_tasks = state.may_have_new_caps = True
        if now >= state.due_at:
            state.due_at = math.inf
            state.may_have_due_tasks = True
        if state.watermarks.is_rescan_wanted and state.watermarks.rescan_not_before <= now:
            state.may_have_tasks = True
        for deadline in state.deadlines.due(now):
            self._enforce(deadline)
        for child in state.children:  # take back what waits behind a slow task
            if child.assignments.has_waiting:
                behind = child.stuck_behind(now, SLOW_AFTER_S, SLOW_TOGETHER_S)
                if behind is not None:
                    child.recall(behind)
        self._send_ready_batches()

    # -- requests of other services

    def promote_in(self, seconds: float) -> None:
        """Promote what is due after this time."""
        now = self._clock()
        self._state.due_at = min(self._state.due_at, now + max(0.0, seconds))
        self._fire_by(self._state.due_at, now)

    def cancel(self, task_ids: Collection[TaskId]) -> None:
        """Request these to stop; they are killed when their grace period is over."""
        for child in self._state.children if task_ids else ():
            for assignment_no, claim in child.assignments.items():
                if claim.id in task_ids:
                    message = "the task was cancelled"
                    self._request_stop(child, assignment_no, claim, "cancel", OutcomeCode.TASK_CANCELLED, message)

    def release(self, claims: Sequence[Claim]) -> None:
        """Release what was never assigned to a child."""
        self._state.releases.extend(claims)
        self._send_ready_batches()

    def on_database_reached(self) -> None:
        """End a pause that was made because the database could not be reached: another service has just reached it."""
        if self._backoff.reached():
            self._send_ready_batches()

    async def run_on_idle_connection(self, op: Op[T]) -> T | None:
        """Run this on a connection of the dispatcher, if one is idle; None if not."""
        return await self._sender.run_on_idle_connection(op)

    async def unknown_claims(self, held: Sequence[Claim]) -> list[Claim]:
        """Return those rows that this worker holds according to the database and knows nothing of."""
        unknown, in_flight = self._unknown(held), list(self._state.in_flight)
        # A batch in flight may just have claimed them, so its answer comes first. Not for long: the heartbeat waits for us.
        try:
            async with asyncio.timeout(IN_FLIGHT_PATIENCE_S):
                while unknown and any(batch in self._state.in_flight for batch in in_flight):
                    self._batch_ended.clear()
                    await self._batch_ended.wait()
        except TimeoutError:
            return []
        return self._unknown(unknown)

    def _unknown(self, claims: Sequence[Claim]) -> list[Claim]:
        if not claims:
            return []
        known = {(held.id, held.claim_no) for held in held_claims(self._state)}
        return [claim for claim in claims if (claim.id, claim.claim_no) not in known]

    @property
    def worker(self) -> str:
        return self._state.worker

    @property
    def queues(self) -> Sequence[str]:
        return self._state.watermarks.queues

    @property
    def caps(self) -> Caps:
        return self._state.limits.caps

    @property
    def notifications(self) -> int:
        """How many notifications have arrived that announce tasks."""
        return self._state.notifications

    @property
    def processes(self) -> int:
        return self._state.prefetch.processes

    @property
    def concurrency(self) -> int:
        return self._state.prefetch.concurrency

    @property
    def offered_tasks(self) -> dict[str, int]:
        """The tasks that other workers may leave to this one, with their signatures: none when it stops."""
        return {} if self._state.is_stopping else dict(self._state.known_tasks.signatures)

    @property
    def is_full(self) -> bool:
        """Whether no child can be assigned one more task. Other threads may ask, too."""
        return is_full(self._state)

    @property
    def running_count(self) -> int:
        return sum(child.load for child in self._state.children)

    @property
    def buffered_count(self) -> int:
        return len(self._state.buffer)

    @property
    def child_pids(self) -> list[int]:
        return [child.pid for child in list(self._state.children)]

    @property
    def has_interrupted_tasks(self) -> bool:
        """Tasks were interrupted, because they did not end in time."""
        return self._state.has_interrupted

    # -- shutdown

    async def drain(self, timeout_ms: int | None) -> None:
        """Claim no more, release what has not begun, and wait until the rest has ended and is stored."""
        state = self._state
        state.is_stopping = True
        log.info("shutdown: claiming no more tasks, %s", self._describe_wait(timeout_ms))
        for child in state.children:
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
        if not is_drained(state):
            raise GaveUp("the database is unavailable and the time to shut down is over: not all results were stored")

    def escalate_stop(self) -> None:
        """Interrupt the running tasks. When called again, kill them and no longer wait for the database."""
        state = self._state
        is_second = state.is_interrupting
        action = "killing" if is_second else "interrupting"
        log.warning("shutdown: %s running tasks: %s", action, self._describe_running())
        state.is_interrupting = True
        for child in state.children:
            # The policy of each task decides whether it runs again.
            for assignment_no, claim in child.assignments.running():
                self._interrupt(child, assignment_no, claim)
            if is_second:
                child.kill()
        if is_second:
            self._leave_soon()
        self._send_ready_batches()

    def _leave_soon(self) -> None:
        self._loop.call_later(FINAL_BATCH_S, self._drained.set)

    def _describe_wait(self, timeout_ms: int | None) -> str:
        count = sum(len(child.assignments.running_since()) for child in self._state.children)
        if not count:
            return "no task is running"
        limit = "without a time limit" if timeout_ms is None else f"up to {timeout_ms / 1000:g} s"
        return f"waiting {limit} for {plural(count, 'task')} to end: {self._describe_running()}"

    def _describe_running(self) -> str:
        """Name the tasks that have run for the longest."""
        running = [each for child in self._state.children for each in child.assignments.running_since()]
        running.sort(key=lambda each: each[0])
        now = self._clock()
        shown = [
            f"{claim.task_name} ({claim.id}, running for {format_duration(now - began_at)})"
            for began_at, claim in running[:TASKS_SHOWN]
        ]
        more = len(running) - TASKS_SHOWN
        return (", ".join(shown) or "none") + (f" and {more} more" if more > 0 else "")

    # -- stopping tasks

    def _interrupt(self, child: Child, assignment_no: int, claim: Claim) -> None:
        state, key = self._state, (claim.id, claim.claim_no)
        if key in state.stops_by_shutdown:
            return
        state.has_interrupted = True
        if key in state.stops_requested:
            return  # it was cancelled, or has timed out: it ends so, and its grace period has begun
        state.stops_by_shutdown.add(key)
        self._request_stop(child, assignment_no, claim, "shutdown", OutcomeCode.INTERRUPTED, "its worker was stopped")

    def _request_stop(
        self, child: Child, assignment_no: int, claim: Claim, reason: StopReason, code: str, message: str
    ) -> None:
        key = claim.id, claim.claim_no
        child.set_kill_reason(assignment_no, code, f"{message}, and it did not end within {self._grace_s:g} s")
        if key not in self._state.stops_requested:
            self._state.stops_requested.add(key)
            child.interrupt(assignment_no, reason)
            self._add_deadline(self._clock() + self._grace_s, Deadline(child, assignment_no, StopStage.KILL))

    def _add_deadline(self, at: float, deadline: Deadline) -> None:
        self._state.deadlines.add(at, deadline)
        self._fire_by(at, self._clock())

    def _enforce(self, deadline: Deadline) -> None:
        """Act on a deadline that has passed."""
        child, assignment_no = deadline.child, deadline.assignment_no
        if deadline.stage is StopStage.CHECK_LOOP:
            if deadline.is_pending:
                child.kill_blocked()
            return
        claim = child.assignments.running_claim(assignment_no)
        if claim is None:
            if (
                deadline.stage is StopStage.KILL and deadline.is_pending
            ):  # it has not begun yet: it may, and ignore the request
                self._add_deadline(self._clock() + max(self._grace_s, LOOP_ANSWER_S), deadline)
            return
        if deadline.stage is StopStage.REQUEST:
            message = f"the task ran longer than its timeout_ms={claim.timeout_ms}"
            self._request_stop(child, assignment_no, claim, "timeout", OutcomeCode.TASK_TIMEOUT, message)
        elif self.concurrency == 1:
            child.kill()
        else:
            # End it in the database while it still runs in its child. If it blocks the event loop, the others there cannot end either.
            answers = child.ping_loop()
            self._add_failure(child, *child.abandon(assignment_no))
            check_at = self._clock() + max(self._grace_s, LOOP_ANSWER_S)
            self._add_deadline(check_at, Deadline(child, assignment_no, StopStage.CHECK_LOOP, answers))

    # -- endings

    def _add_stopped(self, child: Child, claim: Claim, done: Done) -> None:
        """Add what a child reported while tasks were requested to stop: this one may be one of them."""
        state, key = self._state, (claim.id, claim.claim_no)
        state.stops_requested.discard(key)
        is_interrupted = key in state.stops_by_shutdown
        state.stops_by_shutdown.discard(key)
        if done.misfit is not Misfit.NONE:
            self._add_unfit(claim, done)
        elif is_interrupted and done.status != TaskStatus.COMPLETED.value:
            error = TaskError(error_code=OutcomeCode.INTERRUPTED, message="its worker was stopped while it ran")
            state.interrupted.append(self._with_log(failed_ending(claim, error, child_pid=child.pid), claim))
        else:
            state.endings.append(self._with_log(ending_from_done(claim, done, child.pid), claim))

    def _with_log(self, ending: Ending, claim: Claim) -> Ending:
        """Add what the attempt has logged, if it keeps logs."""
        kept = self._state.logs.pop((claim.id, claim.claim_no), None)
        return ending if kept is None else ending._replace(log=kept.to_stored(claim.attempt))

    def _add_failure(self, child: Child, claim: Claim, error: TaskError) -> None:
        """Add an ending that the child could not report."""
        log.warning(
            "task %s (%s) ended as %s: %s",
            claim.task_name,
            claim.id,
            error.error_code,
            error.message,
            extra={"task_id": claim.id, "task_name": claim.task_name, "attempt": claim.attempt},
        )
        state, key = self._state, (claim.id, claim.claim_no)
        state.stops_requested.discard(key)
        if key in state.stops_by_shutdown:
            state.stops_by_shutdown.discard(key)
            state.interrupted.append(self._with_log(failed_ending(claim, error, child_pid=child.pid), claim))
        else:
            ending = failed_ending(claim, error, may_retry=claim.retries_left, child_pid=child.pid)
            state.endings.append(self._with_log(ending, claim))

    def _add_unfit(self, claim: Claim, done: Done) -> None:
        """Add a claim that its child could not run."""
        state = self._state
        signature = state.known_tasks.signatures.get(claim.task_name)
        if done.misfit is not Misfit.UNKNOWN:
            log.info("task %s (%s) cannot be run by this worker: %s", claim.task_name, claim.id, done.misfit.name)
            state.unfit.append(UnfitClaim(claim, done.misfit, signature, done.error_code or "", done.error or "{}"))
            return
        if signature is not None:
            log.warning("task %s: child processes do not have it, leaving it to other workers", claim.task_name)
            state.known_tasks.forget(claim.task_name)
        state.unfit.append(unknown_task_claim(claim))

    def _on_child_exited(self, child: Child, report: ChildExited) -> None:
        """End what had begun with its error. Release the rest without an attempt, unless children have died with it several times.

        If nothing had begun, any of those that waited may be to blame for the death. Otherwise one of the running tasks is, or one that had a slot
        and was about to begin; not those that had none.
        """
        state = self._state
        for claim, error in report.begun:
            self._add_failure(child, claim, error)
        blamed = len(report.waiting) if not report.begun else max(0, self.concurrency - len(report.begun))
        for place, claim in enumerate(report.waiting):
            deaths = claim.child_deaths
            if place < blamed and not state.is_stopping:
                deaths += 1
                if deaths >= DEATHS_MAX:
                    message = f"{deaths} child processes died one after another before they began this task"
                    self._add_failure(
                        child, claim, TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message=message)
                    )
                    continue
            state.releases.append(claim._replace(child_deaths=deaths))

    # -- sending batches

    def _send_ready_batches(self) -> None:
        """Send every batch for which there is a reason, a connection and no delay."""
        self._unsent_notifications = 0
        # Children report that they are ready before the worker is registered; what it claimed then would look like a dead worker's.
        if not self._sender.is_open:
            return
        state, now = self._state, self._clock()
        if state.buffer or state.unread:
            self._release_unstarted(now)
        while True:
            state.blocked_until = max(self._backoff.until, self._sender.can_send_at())
            if state.blocked_until > now:
                break
            delay_s = PREFETCH_BATCH_DELAY_S if state.prefetch.is_adaptive else BATCH_DELAY_S
            state.delay_until = (state.delay_until or now + delay_s) if should_delay_batch(state) else 0.0
            if state.delay_until > now or (batch := plan_batch(state, now)) is None:
                break
            state.delay_until = 0.0
            self._take(batch, now)
            self._sender.send(batch)
        if state.is_stopping and is_drained(state):
            self._drained.set()
        self._fire_by(next_wakeup(state, now), now)
        if self.on_surplus is not None:
            self.on_surplus(surplus_lane(state))

    def _release_unstarted(self, now: float) -> None:
        """Release claims whose leases end here, before another worker has to take the rows; all that waits when the worker stops."""
        state = self._state
        while state.buffer and (state.is_stopping or state.buffer[0].until <= now):
            state.releases.append(state.buffer.popleft().claim)
        while state.is_stopping and state.unread:
            state.releases.append(state.unread.popleft())

    def _fire_by(self, at: float, now: float) -> None:
        """Let the timer fire at this time or earlier. It is only ever moved to an earlier time: to fire too early does no harm."""
        if self._timer is None or at < self._timer_at - TIMER_TOLERANCE_S:
            if self._timer:
                self._timer.cancel()
            self._timer_at = at
            self._timer = self._loop.call_later(max(0.0, at - now), self.on_timer)

    def _take(self, batch: Batch, now: float) -> None:  # noqa: C901 - one branch for each kind of part
        """Move what a planned batch carries out of the state, into the batch."""
        state = self._state
        state.in_flight[batch] = Sent(now, state.notifications, state.watermarks.sequence)
        if batch.is_single_part:
            state.quarantine.remove(batch)
            return
        if batch.search is not None:
            state.search_step = None
            return
        if batch.loads:
            for _ in batch.loads:
                state.unread.popleft()
            return
        waiting: list[Ending] = []
        for ending in batch.endings:
            while (first := state.endings.popleft()) is not ending:
                waiting.append(first)  # for a batch that advances its workflow
            state.may_have_tasks = state.may_have_tasks or ending.root_id is not None
        state.endings.extendleft(reversed(waiting))
        for _ in batch.starts:
            state.buffer.popleft()
        if batch.claim_requests and batch.claim_from is ClaimFrom.START:
            state.limits.caps.in_flight.since = "0"  # rows may have been changed by hand
        if batch.unfit:
            del state.unfit[: len(batch.unfit)]
        state.interrupted, state.releases, state.progress, state.unsettled = [], [], {}, set()
        state.may_have_due_tasks = False

    def _put_back(self, batch: Batch) -> None:
        """Keep all that it carried: it failed, or its outcome is not known."""
        state = self._state
        if batch.is_single_part:
            state.quarantine.append(batch)
            return
        state.search_step = state.search_step or batch.search
        state.unread.extendleft(reversed(batch.loads))
        state.endings.extendleft(reversed(batch.endings))
        state.interrupted.extend(batch.interrupted)
        state.releases.extend(batch.releases)
        state.unfit.extend(batch.unfit)
        state.releases.extend(batch.starts)  # whether or not they were started: their user code has not run
        for task_id, claim_no, text in batch.progress:
            state.progress.setdefault((task_id, claim_no), text)  # a later report wins
        state.may_have_due_tasks = state.may_have_due_tasks or batch.promotes
        state.unsettled.update(batch.unsettled)

    # -- answers

    def on_sender_report(self, report: SenderReport) -> None:
        """Handle the answer to a batch, or what has happened to a connection."""
        match report:
            case BatchDone(batch, outcome):
                sent = self._state.in_flight.pop(batch)
                self._batch_ended.set()
                if isinstance(outcome, DriverError):
                    self._on_failed(batch, outcome)
                elif batch.search is not None:
                    self._continue_search(outcome.found_ids, None)
                else:
                    self._on_committed(batch, sent, outcome)
            case ConnectionLost():
                self._on_connection_lost(report)
            case ConnectionMade():
                self._backoff.connected()
        self._send_ready_batches()

    def _on_committed(self, batch: Batch, sent: Sent, result: BatchResult) -> None:  # noqa: C901, PLR0912 - one branch for each kind of part
        state, now = self._state, self._clock()
        if self._backoff.failures:
            self._backoff.succeeded()
        if subscribers:
            self.events.on_committed(batch, result, now - sent.at)
        for each in result.failed:
            extra = {"task_id": each.task_id, "task_name": each.task_name, "attempt": each.attempt}
            log.info("task %s: %s", each.task_name, each.describe(), extra=extra)
        if result.in_flight_from is not None:
            state.limits.caps.in_flight.since = result.in_flight_from
        if result.due_s is not None:
            self.promote_in(result.due_s)
        if batch.promotes:
            self._on_promoted(result)
        state.unsettled.update(result.unsettled)
        runnable = [claim for claim in batch.starts if claim.id in result.started]
        # The lease was lost, or the queue is at its cap: what is still held is released.
        state.releases.extend([claim for claim in batch.starts if claim.id not in result.started])
        for each in batch.unfit:
            self._on_set_aside(each, result.unfit_outcomes.get(each.id), sent.at)
        if batch.claim_requests:
            state.claims_separately = False
            runnable += self._on_claimed(batch, sent, result, now)
            if result.caps_set_at_run_time is not None:
                self._update_caps(result.caps_set_at_run_time)
                state.may_have_new_caps = sent.notifications != state.notifications
        if any([claim.is_unread for claim in runnable]):  # noqa: C419 - a generator takes longer
            state.unread.extend([claim for claim in state.watermarks.in_order(runnable) if claim.is_unread])
            runnable = [claim for claim in runnable if not claim.is_unread]
        if batch.loads:
            runnable += self._on_loaded(batch, result)
        if runnable:
            shares, rest = plan_assignments(state, runnable)
            state.releases.extend(rest)  # a child has died since the claim was sent
            for child, share in shares.items():
                child.assign(share)

    def _on_promoted(self, result: BatchResult) -> None:
        state, is_stuck = self._state, result.overdue and not result.promoted_lanes
        state.promotion_retry_s = min(max(LOCKED_S, state.promotion_retry_s * 2), LOCKED_MAX_S) if is_stuck else 0.0
        if result.overdue:
            self.promote_in(state.promotion_retry_s)
        for lane in result.promoted_lanes:
            if state.watermarks.add_hint(lane, is_trusted=True):
                state.may_have_tasks = True

    def _on_claimed(self, batch: Batch, sent: Sent, result: BatchResult, now: float) -> list[Claim]:
        """Update where to claim from next, and whether there may be more. Return what is RUNNING and known here; the rest is buffered, or unfit."""
        state, watermarks, runnable = self._state, self._state.watermarks, list[Claim]()
        claims = [claim for group in result.claimed for claim in group]
        self._claimed_at = now if claims else self._claimed_at
        limit = sum([request.limit for request in batch.claim_requests])
        # A queue that gave all that one claim may take from it may have more: the claim counts as filled.
        if state.limits.max_claim_batch and any(
            request.queue_limit in Counter(claim.queue_name for claim in group).values()
            for request, group in zip(batch.claim_requests, result.claimed, strict=True)
        ):
            limit = len(claims)
        if batch.claim_from is ClaimFrom.START:
            watermarks.on_rescanned(claims, limit=limit, sent_at=sent.hints, now=now, cost_s=now - sent.at)
        else:
            lanes = batch.lanes if batch.claim_from is ClaimFrom.WATERMARKS else ()
            watermarks.on_claimed(claims, lanes=lanes, limit=limit, sent_at=sent.hints)
        for lane in result.waiting_lanes:
            watermarks.add_hint(lane, is_trusted=True)
        # The batch has not seen what was announced after it was made.
        if len(claims) < limit and sent.notifications == state.notifications:
            state.may_have_tasks = batch.claim_from is ClaimFrom.WATERMARKS and watermarks.has_more_lanes
        # From when it was sent, so that leases end here before they end in the database.
        names, until = state.known_tasks.signatures, sent.at + state.limits.lease_ms / 1000
        for request, group in zip(batch.claim_requests, result.claimed, strict=True):
            known = [claim for claim in group if claim.task_name in names]
            if len(known) < len(group):
                state.unfit += [unknown_task_claim(claim) for claim in group if claim.task_name not in names]
            if request.status is TaskStatus.RUNNING:
                runnable += known
            else:
                state.buffer.extend([BufferedClaim(claim, until) for claim in watermarks.in_order(known)])
        return runnable

    def _update_caps(self, found: Mapping[str, int]) -> None:
        """Count the tasks of the queues that an operator has capped, and no longer those of others, from the next batch on."""
        state, caps = self._state, self._state.limits.caps
        if found == caps.set_at_run_time:
            return
        state.limits = replace(state.limits, caps=replace(caps, set_at_run_time=found))
        capped = ", ".join(f"{name}={cap}" for name, cap in sorted(found.items()))
        log.info("caps of queues set at run time: %s", capped or "none any more")
        if found.keys() != caps.set_at_run_time.keys():
            # The claim has skipped a queue that was not counted; or sleeping lanes are those of claims that were limited.
            state.watermarks.request_rescan()
            state.may_have_tasks = True

    def _on_loaded(self, batch: Batch, result: BatchResult) -> list[Claim]:
        """Return the claims whose payload has been read."""
        state, loaded = self._state, list[Claim]()
        for claim in batch.loads:
            payload = result.payloads.get(claim.id)
            if payload is None:
                state.releases.append(claim)  # it was ended, or claimed, by another worker
            elif payload.is_too_large:
                error = serialization_error(
                    f"its arguments and the results that it takes have {payload.bytes:,} bytes, and the limit is {MOST_BYTES:,}; "
                    "store the data elsewhere and pass a reference to it"
                )
                state.endings.append(failed_ending(claim, error))
            elif payload.args is None:
                state.unread.append(claim)  # it did not fit into this batch
            else:
                loaded.append(claim._replace(args=payload.args, inputs=payload.inputs))
        return loaded

    def _on_set_aside(self, unfit: UnfitClaim, outcome: UnfitOutcome | None, now: float) -> None:
        if outcome is UnfitOutcome.NO_WORKER:
            claim = unfit.claim
            extra = {"task_id": claim.id, "task_name": claim.task_name, "attempt": claim.attempt}
            log.warning("task %s failed: %s", claim.task_name, unfit.error_code, extra=extra)
            self._state.endings.append(unfit.ending)
        elif outcome is not None:
            # Also where no worker can run it: the queue may have more of it, and to skip a row is far cheaper than to set it aside.
            self._state.known_tasks.avoid(unfit, now + AVOIDED_S)

    def _plan_promotion(self, seconds: float) -> None:
        """Promote when a task becomes due. Forged notifications cause no more promotions than one per PROMOTE_EVERY_S."""
        state, now = self._state, self._clock()
        if state.notified_due_at <= now:
            state.notified_promotion_at, state.notified_due_at = state.notified_due_at, math.inf
        at = max(now + min(max(seconds, 0.0), DELAY_MAX_S), state.notified_promotion_at + PROMOTE_EVERY_S)
        if at < state.notified_due_at:
            state.notified_due_at = at
            self.promote_in(at - now)

    # -- errors

    def _on_connection_lost(self, lost: ConnectionLost) -> None:
        """Put its batch back. The worker pauses only when it has no other connection."""
        if lost.batch is not None:
            del self._state.in_flight[lost.batch]
            self._batch_ended.set()
            self._put_back(lost.batch)
            self._state.watermarks.request_rescan()
        if subscribers:
            emit(DatabaseError(classify(lost.error).name.lower()))
        self._request_heartbeat()
        error = broker_error(lost.error)
        if lost.has_served:
            log.warning("database connection lost, reconnecting: %s", error)
        elif self._sender.has_session:
            log.warning("database connection could not be made, continuing with the others: %s", error)
        else:
            self._backoff.failed(error, unreached=True)

    def _on_failed(self, batch: Batch, error: DriverError) -> None:
        self._state.watermarks.request_rescan()
        kind = classify(error)
        if subscribers:
            emit(DatabaseError(kind.name.lower()))
        match kind:
            case ErrorKind.CONTENTION:
                self._put_back(batch)
                self._backoff.contended()
                if isinstance(error, LockTimeout):
                    # Workers hold their locks for milliseconds, so another program holds it, or a transaction was left open.
                    log.warning(
                        "batch timed out waiting for a lock that another session holds, retrying; "
                        "`select * from pg_locks where not granted` shows it while it waits: %s",
                        broker_error(error),
                    )
            case ErrorKind.CONNECTION_LOST:
                self._put_back(batch)
                self._request_heartbeat()
                self._backoff.failed(broker_error(error))
            case _:
                self._on_refused(batch, error)

    def _on_refused(self, batch: Batch, error: DriverError) -> None:
        """Find the part of a rolled-back batch that was at fault: see `plan`."""
        state = self._state
        refusal = Refusal(str(broker_error(error)), is_about_values(error), is_about_server(error))
        if batch.search is not None:
            self._continue_search(refusal, error)
        elif batch.is_single_part:
            self._on_part_refused(batch, refusal)
        elif batch.only_claims:
            # The error may be an answer that we cannot read, of a batch that is committed.
            self._request_heartbeat()
            self._claim_error = error
            if state.search is None:  # else begun for another claim that was in flight at the same time
                has_claimed = self._clock() - self._claimed_at < CLAIMED_LATELY_S
                widest = max(batch.claim_requests, key=lambda request: request.limit)
                state.search = find_bad_rows(widest, batch.lanes, has_claimed=has_claimed)
                state.search_step = next(state.search)
        else:
            log.info("batch refused by the database, sending its parts one by one: %s", refusal.message)
            self._request_heartbeat()
            state.quarantine.extend(split_batch(batch))
            state.claims_separately = state.claims_separately or bool(batch.claim_requests)

    def _on_part_refused(self, part: Batch, refusal: Refusal) -> None:
        """Give up a part that was refused alone, or send it again: in a simpler form at once, or as it is after a pause."""
        state, now = self._state, self._clock()
        # A payload that cannot be read is not tried without end: its task occupies a slot.
        gives_up_load = refusal.is_about_values or (not refusal.is_about_server and part.failures >= LOAD_FAILURES_MAX)
        if part.progress or (part.loads and gives_up_load):
            error = serialization_error(f"its arguments cannot be read. {refusal.message}")
            state.endings.extend([failed_ending(claim, error) for claim in part.loads])
        elif part.unfit and refusal.is_about_values:
            state.endings.extend([each.ending for each in part.unfit])
        elif (simpler := simplify(part, refusal)) is not None:
            if any(ending.log for ending in (*part.endings, *part.interrupted)):
                log.warning("%s: storing it without its log lines: %s", part.describe_part(), refusal.message)
            state.quarantine.append(simpler)
        else:
            pause_s = self._resilience.delay_ms(part.failures, random_jitter()) / 1000
            state.quarantine.append(replace(part, failures=part.failures + 1, not_before=now + pause_s))
            if now >= self._warn_after:  # a full disk refuses hundreds of them
                self._warn_after = now + WARN_EVERY_S
                log.warning(
                    "%s: not stored yet, retrying in %.1f s: %s", part.describe_part(), pause_s, refusal.message
                )

    def _continue_search(self, answer: SearchAnswer, error: DriverError | None) -> None:
        """Pass the answer to a step on to the search for a row that cannot be claimed."""
        state = self._state
        if state.search is None:
            return
        try:
            state.search_step = state.search.send(answer)
        except StopIteration as end:
            state.search, found = None, end.value
        else:
            return
        for task_id, refusal, is_ended in found:
            if not is_ended:
                now = self._clock()
                state.skipped = {skipped: until for skipped, until in state.skipped.items() if until > now}
                if len(state.skipped) >= SKIPPED_MAX:
                    del state.skipped[min(state.skipped, key=state.skipped.__getitem__)]
                state.skipped[task_id] = now + SKIPPED_S
            log.warning(
                "task %s cannot be claimed, %s: %s",
                task_id,
                "ended as FAILED" if is_ended else f"skipped for {SKIPPED_S:g} s",
                refusal.message,
                extra={"task_id": task_id},
            )
        reason = error or self._claim_error
        if not found and reason is not None:
            self._backoff.failed(broker_error(reason))


# -- events


@dataclass(slots=True)
class _Attempt:
    claim: Claim
    began_at: float | None = None
    duration_s: float | None = None

    def length_s(self) -> float:
        """Return the duration that its child measured; without one, the time since it began."""
        if self.duration_s is not None:
            return self.duration_s
        return 0.0 if self.began_at is None else time.monotonic() - self.began_at


class TaskEvents:
    """Emit what becomes of the tasks of this worker, once it is committed.

    Children begin and end tasks, but only a committed batch decides whether a task has ended, is retried, or belongs to another worker by now. So what
    events need of a claim is kept from the batch that made it to the batch that ends it. Without subscribers nothing is called here.
    """

    def __init__(self) -> None:
        self.clock_offset_s = 0.0
        """How far the clock of the database is ahead of ours, as measured by the heartbeat."""
        self._attempts: dict[ClaimKey, _Attempt] = {}

    def on_began(self, claim: Claim) -> None:
        attempt = self._attempts.setdefault((claim.id, claim.claim_no), _Attempt(claim))
        attempt.began_at = time.monotonic()
        wait_s = max(0.0, time.time() + self.clock_offset_s - claim.enqueued_at.timestamp())
        emit(TaskStarted(claim.id, claim.task_name, claim.queue_name, claim.attempt, wait_s))

    def on_done(self, claim: Claim, done: Done) -> None:
        attempt = self._attempts.setdefault((claim.id, claim.claim_no), _Attempt(claim))
        attempt.duration_s = done.duration_us / 1_000_000

    def on_committed(self, batch: Batch, result: BatchResult, duration_s: float) -> None:
        claims = [claim for group in result.claimed for claim in group]
        for claim in claims:
            self._attempts[claim.id, claim.claim_no] = _Attempt(claim)
        for (task_name, queue_name), count in Counter((claim.task_name, claim.queue_name) for claim in claims).items():
            emit(TasksClaimed(task_name, queue_name, count))
        for ending in (*batch.endings, *batch.interrupted):
            attempt = self._attempts.pop((ending.id, ending.claim_no), None)
            if attempt is None or ending.id not in result.ended:
                continue  # claimed before there were subscribers; or released, or no longer held
            claim, length_s = attempt.claim, attempt.length_s()
            task = claim.id, claim.task_name, claim.queue_name, claim.attempt
            delay_s = result.retried.get(ending.id)
            if delay_s is None:
                emit(TaskEnded(*task, ending.status.value, ending.error_code, length_s))
            else:
                emit(TaskRetried(*task, ending.error_code, length_s, delay_s))
        for released in (*batch.releases, *batch.unfit):
            if result.unfit_outcomes.get(released.id) is not UnfitOutcome.NO_WORKER:  # that is ended by a later batch
                self._attempts.pop((released.id, released.claim_no), None)
        emit(BatchCommitted(len(result.ended), len(claims), duration_s))
