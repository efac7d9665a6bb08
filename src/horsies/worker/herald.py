"""The herald: tells subscribers what becomes of the tasks of this worker, once it is committed.

Children begin and end tasks, but only a turn that was answered says what the database made of it: ended, retried, or somebody else's by now. So
what subscribers want to know of a claim is kept from the turn that made it to the turn that ends it. While nobody subscribes, nobody calls.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from horsies.child.wire import Done
from horsies.events import TaskEnded, TaskRetried, TasksClaimed, TaskStarted, TurnDone, emit
from horsies.model.task import Claim, Ending, TaskId
from horsies.worker.turn import Outcome, Turn


@dataclass(slots=True)
class _Story:
    claim: Claim
    began_at: float | None = None
    duration_s: float | None = None

    def length_s(self) -> float:
        """As its child has measured it; of one that could not tell, since it began."""
        if self.duration_s is not None:
            return self.duration_s
        return 0.0 if self.began_at is None else time.monotonic() - self.began_at


class Herald:
    """`ahead_s` is how far the database's clock is ahead of ours, as the heartbeat has seen it."""

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._stories: dict[tuple[TaskId, int], _Story] = {}

    def began(self, claim: Claim) -> None:
        story = self._stories.setdefault((claim.id, claim.claim_no), _Story(claim))
        story.began_at = time.monotonic()
        wait_s = max(0.0, time.time() + self.ahead_s - claim.enqueued_at.timestamp())
        emit(TaskStarted(claim.id, claim.task_name, claim.queue_name, claim.attempt, wait_s))

    def done(self, claim: Claim, done: Done) -> None:
        story = self._stories.setdefault((claim.id, claim.claim_no), _Story(claim))
        story.duration_s = done.duration_us / 1_000_000

    def turned(self, turn: Turn, outcome: Outcome, duration_s: float) -> None:
        """It was committed."""
        claims = [claim for group in outcome.claimed for claim in group]
        self._claimed(claims)
        for ending in (*turn.endings, *turn.interrupted):
            self._ended(ending, outcome)
        for claim in (*turn.releases, *turn.unfit):
            self._stories.pop((claim.id, claim.claim_no), None)
        emit(TurnDone(len(outcome.ended), len(claims), duration_s))

    def _claimed(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._stories[claim.id, claim.claim_no] = _Story(claim)
        for (task_name, queue_name), count in Counter((claim.task_name, claim.queue_name) for claim in claims).items():
            emit(TasksClaimed(task_name, queue_name, count))

    def _ended(self, ending: Ending, outcome: Outcome) -> None:
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
