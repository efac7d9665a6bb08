"""The news: what is known of work that waits, from what notifications tell and from what turns find. It moves the marks, and says whether there is more.

Notifications are hints that anyone may have sent. They decide only when to look; what is there, the database says.
"""

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from horsies.worker.books import Books
from horsies.worker.turn import ClaimFrom, Outcome, Turn

LOCKED_S, LONGEST_S = 0.02, 5.0
"""What is due and was not promoted is looked at again so soon at first, then less and less often: it may be locked, or broken for good."""
PROMOTE_EVERY_S = 0.01
"""Notifications lead to at most one look per interval for what was put off."""
LATER_AT_MOST_S = 86_400.0

_LATER = re.compile(r"later (-?[0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class Known:
    """How much had been heard when a turn was made. What is heard from then on is not in its lanes, even if it leaves a moment later."""

    heard_count: int
    moment: int


class News:
    """`due_in` is told in how many seconds something that was put off becomes due."""

    def __init__(self, books: Books, *, due_in: Callable[[float], None]) -> None:
        self._books = books
        self._due_in = due_in
        self._heard_count = 0
        self._again_s = 0.0
        self._promote_at: float | None = None
        """When what was put off is looked for because of a notification."""
        self._promoted_at = 0.0
        """When it last was."""

    @property
    def known(self) -> Known:
        return Known(self._heard_count, self._books.marks.moment)

    def heard(self, payload: str | None) -> bool:
        """A notification: there is something to claim, now or later. None: there may be. Whether to look now."""
        if payload is not None and (later := _LATER.fullmatch(payload)):
            self._put_off(int(later[1]) / 1_000_000)
            return False
        if payload == "freed":
            if not self._books.limits.caps.is_any:
                return False  # capped capacity, which this worker does not wait for
        elif not self._books.marks.heard(payload):
            return False
        self._heard_count += 1
        self._books.more = True
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

    def found(self, turn: Turn, outcome: Outcome, known: Known, departed: float) -> None:
        """A turn was answered."""
        if outcome.due_s is not None:
            self._due_in(outcome.due_s)
        if turn.promotes:
            self._again_s = 0.0 if outcome.promoted or not outcome.overdue else self._longer()
            if outcome.overdue:
                self._due_in(self._again_s)
        for lane in outcome.promoted:
            if self._books.marks.heard(lane, is_trusted=True):
                self._books.more = True
        if turn.wanted:
            self._claimed(turn, outcome, known, departed)

    def _longer(self) -> float:
        return min(max(LOCKED_S, self._again_s * 2), LONGEST_S)

    def _claimed(self, turn: Turn, outcome: Outcome, known: Known, departed: float) -> None:
        marks, now = self._books.marks, time.monotonic()
        claims = [claim for group in outcome.claimed for claim in group]
        asked = len(claims) if _met_a_batch(turn, outcome) else sum(wanted.limit for wanted in turn.wanted)
        if turn.claim_from is ClaimFrom.START:
            marks.rescanned(claims, asked=asked, sent_at=known.moment, now=now, cost_s=now - departed)
        else:
            lanes = turn.lanes if turn.claim_from is ClaimFrom.MARKS else ()
            marks.claimed(claims, lanes=lanes, asked=asked, sent_at=known.moment)
        for lane in outcome.waiting:
            marks.heard(lane, is_trusted=True)
        if len(claims) < asked and known.heard_count == self._heard_count:
            self._books.more = turn.claim_from is ClaimFrom.MARKS and marks.are_left


def _met_a_batch(turn: Turn, outcome: Outcome) -> bool:
    """Some queue gave all that one claim may take from it: there may be more."""
    return any(
        wanted.queue_limit in Counter(claim.queue_name for claim in claims).values()
        for wanted, claims in zip(turn.wanted, outcome.claimed, strict=True)
    )
