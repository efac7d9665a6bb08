"""Apply reports from the children to the pending work, and emit the events of tasks."""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from horsies.events import BatchCommitted, TaskEnded, TaskRetried, TasksClaimed, TaskStarted, emit, subscribers
from horsies.executor.protocol import Done
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.result import TaskError
from horsies.model.status import Misfit
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.unknown import UnfitClaim, unknown_task_claim
from horsies.worker.batch import Batch, BatchResult
from horsies.worker.child import Child
from horsies.worker.pending import PendingWork
from horsies.worker.timeouts import TaskStopper, ending_from_done

DEATHS_MAX = 3

log = logging.getLogger("horsies.worker")


class ChildReports:
    """Handles the reports of all children. `on_change` is called after changes to the pending work, `on_deadline` for a new deadline."""

    def __init__(
        self,
        pending: PendingWork,
        stopper: TaskStopper,
        events: "TaskEvents",
        *,
        on_change: Callable[[], None],
        on_deadline: Callable[[], None],
    ) -> None:
        self._pending = pending
        self._stopper = stopper
        self._events = events
        self._on_change = on_change
        self._on_deadline = on_deadline

    def on_began(self, child: Child, assignment_no: int, claim: Claim) -> None:
        self._stopper.on_began(child, assignment_no, claim)
        if subscribers:
            self._events.on_began(claim)
        if self._stopper.next_at is not None:
            self._on_deadline()

    def on_progress(self, claim: Claim, fraction: float | None, message: str | None) -> None:
        self._pending.progress[claim.id, claim.claim_no] = json.dumps({"fraction": fraction, "message": message})

    def on_done(self, claim: Claim, done: Done) -> None:
        if done.duration_us:  # otherwise it was cancelled before it began
            self._pending.prefetch.observe(done.duration_us)
        self._pending.progress.pop((claim.id, claim.claim_no), None)
        if done.misfit is Misfit.NONE:
            self._stopper.end(claim, ending_from_done(claim, done))
        else:
            self._stopper.forget(claim)
            self._pending.unfit.append(self._unfit(claim, done))
        if subscribers:
            self._events.on_done(claim, done)

    def _unfit(self, claim: Claim, done: Done) -> UnfitClaim:
        signature = self._pending.known_tasks.signatures.get(claim.task_name)
        if done.misfit is Misfit.UNKNOWN:
            if signature is not None:
                log.warning("task %s: child processes do not have it, leaving it to other workers", claim.task_name)
                self._pending.known_tasks.forget(claim.task_name)
            return unknown_task_claim(claim)
        log.info("task %s (%s) cannot be run by this worker: %s", claim.task_name, claim.id, done.misfit.name)
        return UnfitClaim(claim, done.misfit, signature, done.error_code or "", done.error or "{}")

    def on_returned(self, claims: list[Claim]) -> None:
        self._pending.releases.extend(claims)

    def on_death(self, begun: list[tuple[Claim, TaskError]], waiting: list[Claim]) -> None:
        """End what had begun with its error. Release the rest without an attempt, unless children have died with it several times.

        The running task is to blame for the death if only one runs at a time. If none had begun, or many run at once, it may be one
        that was waiting.
        """
        for claim, error in begun:
            self._stopper.fail(claim, error)
        counts = not self._pending.is_stopping and (not begun or self._pending.prefetch.concurrency > 1)
        for claim in waiting:
            deaths = claim.child_deaths + 1 if counts else claim.child_deaths
            if counts and deaths >= DEATHS_MAX:
                message = f"{deaths} child processes died one after another before they began this task"
                error = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message=message)
                self._stopper.fail(claim, error)
            else:
                self._pending.releases.append(replace(claim, child_deaths=deaths))
        self._on_change()

    def on_reports_read(self) -> None:
        """All reports that have arrived from one child were applied."""
        self._on_change()


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
        self._attempts: dict[tuple[TaskId, int], _Attempt] = {}

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
            self._emit_ended(ending, result)
        for released in (*batch.releases, *batch.unfit):
            self._attempts.pop((released.id, released.claim_no), None)
        emit(BatchCommitted(len(result.ended), len(claims), duration_s))

    def _emit_ended(self, ending: Ending, result: BatchResult) -> None:
        attempt = self._attempts.pop((ending.id, ending.claim_no), None)
        if attempt is None or ending.id not in result.ended:
            return  # claimed before there were subscribers; or released, or no longer held
        claim, length_s = attempt.claim, attempt.length_s()
        task = claim.id, claim.task_name, claim.queue_name, claim.attempt
        delay_s = result.retried.get(ending.id)
        if delay_s is None:
            emit(TaskEnded(*task, ending.status.value, ending.error_code, length_s))
        else:
            emit(TaskRetried(*task, ending.error_code, length_s, delay_s))
