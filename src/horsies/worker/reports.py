"""The clerk: enters in the books what the children report."""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
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
from horsies.worker.timeouts import TaskStopper, ending_of

# --------
# The herald: tells subscribers what becomes of the tasks of this worker, once it is committed.
#
# Children begin and end tasks, but only a turn that was answered says what the database made of it: ended, retried, or somebody else's by now. So
# what subscribers want to know of a claim is kept from the turn that made it to the turn that ends it. While nobody subscribes, nobody calls.


@dataclass(slots=True)
class _Attempt:
    claim: Claim
    began_at: float | None = None
    duration_s: float | None = None

    def length_s(self) -> float:
        """As its child has measured it; of one that could not tell, since it began."""
        if self.duration_s is not None:
            return self.duration_s
        return 0.0 if self.began_at is None else time.monotonic() - self.began_at


class TaskEvents:
    """`ahead_s` is how far the database's clock is ahead of ours, as the heartbeat has seen it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._stories: dict[tuple[TaskId, int], _Attempt] = {}

    def began(self, claim: Claim) -> None:
        story = self._stories.setdefault((claim.id, claim.claim_no), _Attempt(claim))
        story.began_at = time.monotonic()
        wait_s = max(0.0, time.time() + self.ahead_s - claim.enqueued_at.timestamp())
        emit(TaskStarted(claim.id, claim.task_name, claim.queue_name, claim.attempt, wait_s))

    def done(self, claim: Claim, done: Done) -> None:
        story = self._stories.setdefault((claim.id, claim.claim_no), _Attempt(claim))
        story.duration_s = done.duration_us / 1_000_000

    def turned(self, batch: Batch, outcome: BatchResult, duration_s: float) -> None:
        """It was committed."""
        claims = [claim for group in outcome.claimed for claim in group]
        self._claimed(claims)
        for ending in (*batch.endings, *batch.interrupted):
            self._ended(ending, outcome)
        for claim in (*batch.releases, *batch.unfit):
            self._stories.pop((claim.id, claim.claim_no), None)
        emit(BatchCommitted(len(outcome.ended), len(claims), duration_s))

    def _claimed(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._stories[claim.id, claim.claim_no] = _Attempt(claim)
        for (task_name, queue_name), count in Counter((claim.task_name, claim.queue_name) for claim in claims).items():
            emit(TasksClaimed(task_name, queue_name, count))

    def _ended(self, ending: Ending, outcome: BatchResult) -> None:
        story = self._stories.pop((ending.id, ending.claim_no), None)
        if story is None or ending.id not in outcome.ended:
            return  # claimed before anybody subscribed; or given back, or no longer ours
        claim, length_s = story.claim, story.length_s()
        who = claim.id, claim.task_name, claim.queue_name, claim.attempt
        delay_s = outcome.retried.get(ending.id)
        if delay_s is None:
            emit(TaskEnded(*who, ending.status.value, ending.error_code, length_s))
        else:
            emit(TaskRetried(*who, ending.error_code, length_s, delay_s))


DEATHS_MAX = 3

log = logging.getLogger("horsies.worker")


class ChildReports:
    """Hears all members of the pool. `entered`: there is something new in the books; `armed`: there is a new deadline."""

    def __init__(
        self,
        pending: PendingWork,
        stopper: TaskStopper,
        events: TaskEvents,
        *,
        entered: Callable[[], None],
        armed: Callable[[], None],
    ) -> None:
        self._pending = pending
        self._stopper = stopper
        self._events = events
        self._entered = entered
        self._armed = armed

    def on_began(self, child: Child, assignment_no: int, claim: Claim) -> None:
        self._stopper.began(child, assignment_no, claim)
        if subscribers:
            self._events.began(claim)
        if self._stopper.next_at is not None:
            self._armed()

    def on_progress(self, claim: Claim, fraction: float | None, message: str | None) -> None:
        self._pending.progress[claim.id, claim.claim_no] = json.dumps({"fraction": fraction, "message": message})

    def on_done(self, claim: Claim, done: Done) -> None:
        if done.duration_us:  # else it was cancelled before it began
            self._pending.prefetch.observe(done.duration_us)
        self._pending.progress.pop((claim.id, claim.claim_no), None)
        if done.misfit is Misfit.NONE:
            self._stopper.end(claim, ending_of(claim, done))
        else:
            self._stopper.dismiss(claim)
            self._pending.unfit.append(self._unfit(claim, done))
        if subscribers:
            self._events.done(claim, done)

    def _unfit(self, claim: Claim, done: Done) -> UnfitClaim:
        """What a child cannot run."""
        if done.misfit is Misfit.UNKNOWN:
            if claim.task_name in self._pending.known_tasks.signatures:
                log.warning(
                    "child processes of this worker do not have task %s; it is left to other workers", claim.task_name
                )
                self._pending.known_tasks.forget(claim.task_name)
            return unknown_task_claim(claim)
        signature = self._pending.known_tasks.signatures.get(claim.task_name)
        log.info("task %s (%s) cannot be run by this worker: %s", claim.task_name, claim.id, done.misfit.name)
        return UnfitClaim(claim, done.misfit, signature, done.error_code or "", done.error or "{}")

    def on_returned(self, claims: list[Claim]) -> None:
        self._pending.releases.extend(claims)

    def on_death(self, begun: list[tuple[Claim, TaskError]], unbegun: list[Claim]) -> None:
        """What had begun ends as its verdict says; what had not goes back, and costs no attempt, unless children die with it again and again.

        The task that runs is to blame for the death, if only one does at a time. Where none had begun, or many run at once, it may be one
        that was on its way.
        """
        for claim, error in begun:
            self._stopper.fail(claim, error)
        counts = not self._pending.is_stopping and (not begun or self._pending.prefetch.concurrency > 1)
        for claim in unbegun:
            deaths = claim.child_deaths + 1 if counts else claim.child_deaths
            if counts and deaths >= DEATHS_MAX:
                self._stopper.fail(claim, _never_begun(deaths))
            else:
                self._pending.releases.append(replace(claim, child_deaths=deaths))
        self._entered()

    def on_reports_read(self) -> None:
        """All that one child had to say for now has been heard."""
        self._entered()


def _never_begun(deaths: int) -> TaskError:
    return TaskError(
        error_code=OperationalErrorCode.WORKER_CRASHED,
        message=f"{deaths} child processes died one after the other before they began this task",
    )
