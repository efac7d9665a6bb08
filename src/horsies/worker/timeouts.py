"""Stopping tasks that run: asked first, killed when their grace is over. For time-outs, cancellations and shutdowns alike."""

import heapq
import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count

from horsies.executor.protocol import Done, StopReason
from horsies.model.codec import encode_error
from horsies.model.error_codes import OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.worker.child import Child
from horsies.worker.pending import PendingWork

# --------
# Who must be stopped when: soft stops at a task's time-out, kills when its grace is over.

SWEEP_AT_LEAST = 1_000


class StopStage(Enum):
    ASK = auto()
    """Its time is over: it is asked to stop."""
    KILL = auto()
    """It was asked, and its grace is over."""
    LOOP = auto()
    """It was abandoned, and the event loop that it ran on must have run since."""


@dataclass(frozen=True, slots=True)
class Deadline:
    child: Child
    assignment_no: int
    stage: StopStage
    loop_answers: int = 0
    """How often the event loop had answered when the task was abandoned."""

    @property
    def is_pending(self) -> bool:
        """There may still be something to do about it."""
        if self.stage is StopStage.LOOP:
            return self.child.loop_answers == self.loop_answers and bool(self.child.load)
        return self.assignment_no in self.child.assignments


@dataclass(slots=True)
class Deadlines:
    """A heap by moment (monotonic, in seconds). What has ended is not looked for one by one, because a deadline of the past harms nobody, but
    swept out when there is much of it: an hour of tiny tasks with a `timeout_ms` of an hour would fill a gigabyte.
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


LOOP_ANSWER_S = 2.0
"""The least time that an event loop has to run after a task on it was abandoned, however short the grace."""

log = logging.getLogger("horsies.worker")


class TaskStopper:
    """Knows who was asked to stop and why, and what their ending is called."""

    def __init__(self, pending: PendingWork, grace_s: float) -> None:
        self._pending = pending
        self._grace_s = grace_s
        self._deadlines = Deadlines()
        self._asked: set[tuple[TaskId, int]] = set()
        self._interrupted: set[tuple[TaskId, int]] = set()
        self.has_interrupted = False
        self.is_interrupting = False

    @property
    def next_at(self) -> float | None:
        return self._deadlines.next_at

    # -- reasons to stop

    def began(self, child: Child, assignment_no: int, claim: Claim) -> None:
        if self.is_interrupting:
            self._interrupt(child, assignment_no, claim)  # it was on its way when all were asked
        elif claim.timeout_ms is not None:
            self._deadlines.add(
                time.monotonic() + claim.timeout_ms / 1000, Deadline(child, assignment_no, StopStage.ASK)
            )

    def cancel(self, task_ids: Collection[TaskId]) -> None:
        for child in self._pending.children:
            for assignment_no, claim in child.assignments.items():
                if claim.id in task_ids:
                    self._ask(child, assignment_no, claim, "cancel", OutcomeCode.TASK_CANCELLED, "it was cancelled")

    def interrupt_all(self) -> None:
        """The worker must leave. What does not end in its grace is killed; its policy says whether it runs again."""
        self.is_interrupting = True
        for child in self._pending.children:
            for assignment_no, claim in child.assignments.running():
                self._interrupt(child, assignment_no, claim)

    def _interrupt(self, child: Child, assignment_no: int, claim: Claim) -> None:
        key = claim.id, claim.claim_no
        if key in self._interrupted:
            return
        self.has_interrupted = True
        if key in self._asked:
            return  # it was cancelled, or is over its time: that is how it ends, and its grace is running
        self._interrupted.add(key)
        self._ask(child, assignment_no, claim, "cancel", OutcomeCode.INTERRUPTED, "its worker was stopped")

    def kill_all(self) -> None:
        self.interrupt_all()
        for child in self._pending.children:
            child.kill()

    def enforce(self, now: float) -> None:
        for deadline in self._deadlines.due(now):
            if deadline.stage is StopStage.LOOP:
                if deadline.is_pending:
                    deadline.child.kill_blocked()
                continue
            claim = deadline.child.assignments.running_claim(deadline.assignment_no)
            if claim is None:
                continue  # it has ended
            if deadline.stage is StopStage.ASK:
                words = f"it ran longer than its timeout_ms={claim.timeout_ms}"
                self._ask(deadline.child, deadline.assignment_no, claim, "timeout", OutcomeCode.TASK_TIMEOUT, words)
            elif self._pending.prefetch.concurrency == 1:
                deadline.child.kill()
            else:
                # Others run beside it: it is ended in the database and left behind; what it still returns is fenced off.
                self._abandon(deadline.child, deadline.assignment_no)

    def _abandon(self, child: Child, assignment_no: int) -> None:
        """End a task in the database and leave it behind. If it blocks the event loop, the others in its child will not end either."""
        asked, now = child.ping_loop(), time.monotonic()
        self.fail(*child.abandon(assignment_no))
        patience_s = max(self._grace_s, LOOP_ANSWER_S)
        self._deadlines.add(now + patience_s, Deadline(child, assignment_no, StopStage.LOOP, asked))

    def _ask(self, child: Child, assignment_no: int, claim: Claim, reason: StopReason, code: str, words: str) -> None:
        key = claim.id, claim.claim_no
        child.set_kill_reason(assignment_no, code, f"{words}, and it did not end within {self._grace_s:g} s")
        if key not in self._asked:
            self._asked.add(key)
            child.interrupt(assignment_no, reason)
            self._deadlines.add(time.monotonic() + self._grace_s, Deadline(child, assignment_no, StopStage.KILL))

    # -- endings

    def end(self, claim: Claim, ending: Ending) -> None:
        """Enter an ending that a child reported."""
        key = claim.id, claim.claim_no
        self._asked.discard(key)
        if key in self._interrupted and ending.status is not TaskStatus.COMPLETED:
            self._interrupted.discard(key)
            error = TaskError(error_code=OutcomeCode.INTERRUPTED, message="its worker was stopped while it ran")
            self._pending.interrupted.append(_failed(claim, error, may_retry=False))
        else:
            self._pending.endings.append(ending)

    def dismiss(self, claim: Claim) -> None:
        """It was not begun, and goes back."""
        self._asked.discard((claim.id, claim.claim_no))
        self._interrupted.discard((claim.id, claim.claim_no))

    def fail(self, claim: Claim, error: TaskError) -> None:
        """Enter an ending of which the child could not tell."""
        log.warning(
            "task %s (%s) ended as %s: %s",
            claim.task_name,
            claim.id,
            error.error_code,
            error.message,
            extra={"task_id": claim.id, "task_name": claim.task_name, "attempt": claim.attempt},
        )
        key = claim.id, claim.claim_no
        self._asked.discard(key)
        if key in self._interrupted:
            self._interrupted.discard(key)
            self._pending.interrupted.append(_failed(claim, error, may_retry=False))
        else:
            self._pending.endings.append(_failed(claim, error, may_retry=claim.retries_left))


def ending_of(claim: Claim, done: Done) -> Ending:
    """What a child reported, for the database."""
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


def _failed(claim: Claim, error: TaskError, *, may_retry: bool) -> Ending:
    cancelled = error.error_code == OutcomeCode.TASK_CANCELLED
    return Ending(
        claim.id,
        claim.claim_no,
        TaskStatus.CANCELLED if cancelled else TaskStatus.FAILED,
        error_code=error.error_code,
        error=encode_error(error, task_id=claim.id),
        may_retry=may_retry and not cancelled,
        root_id=claim.root_id,
    )
