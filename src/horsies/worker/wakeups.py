"""The news: what is known of work that waits, from what notifications tell and from what turns find. It moves the marks, and says whether there is more.

Notifications are hints that anyone may have sent. They decide only when to look; what is there, the database says.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from horsies.worker.batch import Batch, BatchResult, ClaimFrom
from horsies.worker.pending import PendingWork
from horsies.worker.prefetch import SLOW_AFTER_S, SLOW_TOGETHER_S
from horsies.worker.timeouts import TaskStopper

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
            if not self._pending.limits.caps.is_any:
                return False  # capped capacity, which this worker does not wait for
        elif not self._pending.watermarks.heard(payload):
            return False
        self._received_count += 1
        self._pending.more = True
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
                self._pending.more = True
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
            self._pending.more = batch.claim_from is ClaimFrom.WATERMARKS and watermarks.are_left


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

    def due_in(self, seconds: float) -> None:
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
        if (rescan_s := self._pending.watermarks.rescan_in_s(now)) is not None and not self._pending.more:
            yield now + max(rescan_s, 0.001)
        if self._pending.prefetch.is_framed and any(
            m.assignments.has_unbegun and not m.is_recalled for m in self._pending.children
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
            self._pending.more = self._pending.promotes = True
        if self._due_at is not None and now >= self._due_at:
            self._due_at = None
            self._pending.promotes = True
        if self._pending.watermarks.rescan_in_s(now) == 0.0:
            self._pending.more = True
        self._stopper.enforce(now)
        self._recall_from_the_slow(now)
        self._on_timer()

    def _recall_from_the_slow(self, now: float) -> None:
        for child in self._pending.children:
            behind = child.stuck_behind(now, SLOW_AFTER_S, SLOW_TOGETHER_S) if child.assignments.has_unbegun else None
            if behind is not None:
                child.recall(behind)
