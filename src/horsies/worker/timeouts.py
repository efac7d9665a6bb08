"""Stop running tasks: request first, kill when the grace period is over. For timeouts, cancellations and shutdowns."""

import heapq
import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count

from horsies.executor.protocol import Done, StopReason
from horsies.model.error_codes import OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.worker.child import Child
from horsies.worker.pending import PendingWork
from horsies.worker.quarantine import failed_ending

LOOP_ANSWER_S = 2.0
"""The least time in which an event loop must run after a task on it was abandoned, however short the grace period."""
SWEEP_AT_LEAST = 1_000

log = logging.getLogger("horsies.worker")


class TaskStopper:
    """Records which tasks were requested to stop and why, and so how they end."""

    def __init__(self, pending: PendingWork, grace_s: float) -> None:
        self._pending = pending
        self._grace_s = grace_s
        self._deadlines = Deadlines()
        self._requested: set[tuple[TaskId, int]] = set()
        self._interrupted: set[tuple[TaskId, int]] = set()
        self.has_interrupted = False
        self.is_interrupting = False

    @property
    def next_at(self) -> float | None:
        """When the next deadline is, on the monotonic clock."""
        return self._deadlines.next_at

    # -- reasons to stop

    def on_began(self, child: Child, assignment_no: int, claim: Claim) -> None:
        if self.is_interrupting:
            self._interrupt(child, assignment_no, claim)  # it had not begun when all were interrupted
        elif claim.timeout_ms is not None:
            at = time.monotonic() + claim.timeout_ms / 1000
            self._deadlines.add(at, Deadline(child, assignment_no, StopStage.REQUEST))

    def cancel(self, task_ids: Collection[TaskId]) -> None:
        for child in self._pending.children:
            for assignment_no, claim in child.assignments.items():
                if claim.id in task_ids:
                    self._request_stop(
                        child, assignment_no, claim, "cancel", OutcomeCode.TASK_CANCELLED, "the task was cancelled"
                    )

    def interrupt_all(self) -> None:
        """Interrupt what runs, because the worker must stop. The policy of each task decides whether it runs again."""
        self.is_interrupting = True
        for child in self._pending.children:
            for assignment_no, claim in child.assignments.running():
                self._interrupt(child, assignment_no, claim)

    def _interrupt(self, child: Child, assignment_no: int, claim: Claim) -> None:
        key = claim.id, claim.claim_no
        if key in self._interrupted:
            return
        self.has_interrupted = True
        if key in self._requested:
            return  # it was cancelled, or has timed out: it ends so, and its grace period has begun
        self._interrupted.add(key)
        self._request_stop(child, assignment_no, claim, "cancel", OutcomeCode.INTERRUPTED, "its worker was stopped")

    def kill_all(self) -> None:
        self.interrupt_all()
        for child in self._pending.children:
            child.kill()

    def _request_stop(
        self, child: Child, assignment_no: int, claim: Claim, reason: StopReason, code: str, message: str
    ) -> None:
        key = claim.id, claim.claim_no
        child.set_kill_reason(assignment_no, code, f"{message}, and it did not end within {self._grace_s:g} s")
        if key not in self._requested:
            self._requested.add(key)
            child.interrupt(assignment_no, reason)
            self._deadlines.add(time.monotonic() + self._grace_s, Deadline(child, assignment_no, StopStage.KILL))

    # -- deadlines

    def enforce(self, now: float) -> None:
        """Act on the deadlines that have passed."""
        for deadline in self._deadlines.due(now):
            child, assignment_no = deadline.child, deadline.assignment_no
            if deadline.stage is StopStage.CHECK_LOOP:
                if deadline.is_pending:
                    child.kill_blocked()
                continue
            claim = child.assignments.running_claim(assignment_no)
            if claim is None:
                continue  # it has ended
            if deadline.stage is StopStage.REQUEST:
                message = f"the task ran longer than its timeout_ms={claim.timeout_ms}"
                self._request_stop(child, assignment_no, claim, "timeout", OutcomeCode.TASK_TIMEOUT, message)
            elif self._pending.prefetch.concurrency == 1:
                child.kill()
            else:
                self._abandon(child, assignment_no)

    def _abandon(self, child: Child, assignment_no: int) -> None:
        """End a task in the database while it still runs in its child, beside others. What it returns later is fenced off."""
        # If it blocks the event loop, the others in its child cannot end either.
        answers, now = child.ping_loop(), time.monotonic()
        self.fail(*child.abandon(assignment_no))
        check_at = now + max(self._grace_s, LOOP_ANSWER_S)
        self._deadlines.add(check_at, Deadline(child, assignment_no, StopStage.CHECK_LOOP, answers))

    # -- endings

    def end(self, claim: Claim, ending: Ending) -> None:
        """Record an ending that a child reported."""
        key = claim.id, claim.claim_no
        self._requested.discard(key)
        if key in self._interrupted and ending.status is not TaskStatus.COMPLETED:
            self._interrupted.discard(key)
            error = TaskError(error_code=OutcomeCode.INTERRUPTED, message="its worker was stopped while it ran")
            self._pending.interrupted.append(failed_ending(claim, error))
        else:
            self._pending.endings.append(ending)

    def fail(self, claim: Claim, error: TaskError) -> None:
        """Record an ending that the child could not report."""
        log.warning(
            "task %s (%s) ended as %s: %s",
            claim.task_name,
            claim.id,
            error.error_code,
            error.message,
            extra={"task_id": claim.id, "task_name": claim.task_name, "attempt": claim.attempt},
        )
        key = claim.id, claim.claim_no
        self._requested.discard(key)
        if key in self._interrupted:
            self._interrupted.discard(key)
            self._pending.interrupted.append(failed_ending(claim, error))
        else:
            self._pending.endings.append(failed_ending(claim, error, may_retry=claim.retries_left))

    def forget(self, claim: Claim) -> None:
        """The task could not be run here, and is released."""
        self._requested.discard((claim.id, claim.claim_no))
        self._interrupted.discard((claim.id, claim.claim_no))


class StopStage(Enum):
    REQUEST = auto()
    """The task has timed out: request it to stop."""
    KILL = auto()
    """It was requested to stop, and its grace period is over."""
    CHECK_LOOP = auto()
    """It was abandoned, and the event loop on which it ran must have run since then."""


@dataclass(frozen=True, slots=True)
class Deadline:
    child: Child
    assignment_no: int
    stage: StopStage
    loop_answers: int = 0
    """How often the event loop had answered when the task was abandoned."""

    @property
    def is_pending(self) -> bool:
        """There may still be something to do at this deadline."""
        if self.stage is StopStage.CHECK_LOOP:
            return self.child.loop_answers == self.loop_answers and bool(self.child.load)
        return self.assignment_no in self.child.assignments


@dataclass(slots=True)
class Deadlines:
    """A heap by time, on the monotonic clock.

    Deadlines of ended tasks are harmless, so they are not removed one by one, but swept when there are many: an hour of short tasks with
    a `timeout_ms` of an hour would fill a gigabyte.
    """

    _heap: list[tuple[float, int, Deadline]] = field(default_factory=list[tuple[float, int, Deadline]])
    _number: Iterator[int] = field(default_factory=count)
    _sweep_at: int = SWEEP_AT_LEAST

    def add(self, at: float, deadline: Deadline) -> None:
        if len(self._heap) >= self._sweep_at:
            self._heap = [item for item in self._heap if item[2].is_pending]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEEP_AT_LEAST, 2 * len(self._heap))
        heapq.heappush(self._heap, (at, next(self._number), deadline))

    @property
    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[Deadline]:
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]


def ending_from_done(claim: Claim, done: Done) -> Ending:
    """Return the ending that a child reported."""
    status = TaskStatus(done.status)
    return Ending(
        claim.id,
        claim.claim_no,
        status,
        done.result,
        done.error_code,
        done.error,
        may_retry=claim.retries_left and status is TaskStatus.FAILED,
        wants_retry=done.wants_retry,
        retry_after_ms=done.retry_after_ms,
        root_id=claim.root_id,
    )
