"""The alarm: what becomes due because time passes, and for no other reason.

It enters in the books what time has made due, and then calls `rung`. One timer serves all reasons. It is only ever moved forward, because to ring too early
does no harm: after each ring the pump sets it again, to the first moment that matters then.
"""

import asyncio
import time
from collections.abc import Callable, Iterator

from horsies.worker.books import Books
from horsies.worker.frames import SLOW_AFTER_S, SLOW_TOGETHER_S
from horsies.worker.stops import Stops

TOLERANCE_S = 0.001


class Alarm:
    """All moments are on the monotonic clock, in seconds. It must be closed, or it rings on."""

    def __init__(self, books: Books, stops: Stops, *, poll_s: float, rung: Callable[[], None]) -> None:
        self._books = books
        self._stops = stops
        self._poll_s = poll_s
        self._rung = rung
        self._loop = asyncio.get_running_loop()
        self._poll_at = 0.0
        self._due_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def set(self, now: float, departure: float | None) -> None:
        """Ring at the first moment that matters. `departure`: when a turn may leave that cannot leave now."""
        self._ring_by(min(self._moments(now, departure)), now)

    def due_in(self, seconds: float) -> None:
        """A task that was put off becomes due then."""
        now = time.monotonic()
        due_at = now + max(0.0, seconds)
        if self._due_at is None or due_at < self._due_at:
            self._due_at = due_at
            self._ring_by(due_at, now)

    def mind_deadlines(self) -> None:
        """There may be a new one among those of the tasks that run."""
        if (deadline := self._stops.next_at) is not None:
            self._ring_by(deadline, time.monotonic())

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _ring_by(self, moment: float, now: float) -> None:
        if self._timer is None or moment < self._timer_at - TOLERANCE_S:
            if self._timer:
                self._timer.cancel()
            self._timer_at = moment
            self._timer = self._loop.call_later(max(0.0, moment - now), self._ring)

    def _moments(self, now: float, departure: float | None) -> Iterator[float]:
        yield self._poll_at
        if departure is not None:
            yield departure
        if (rescan_s := self._books.marks.rescan_in_s(now)) is not None and not self._books.more:
            yield now + max(rescan_s, 0.001)
        if self._books.frames.is_framed and any(m.tickets.has_unbegun and not m.recalled for m in self._books.roster):
            yield now + SLOW_AFTER_S / 2
        if self._due_at is not None:
            yield self._due_at
        if (deadline := self._stops.next_at) is not None:
            yield deadline

    def _ring(self) -> None:
        self._timer = None
        now = time.monotonic()
        if now >= self._poll_at:
            self._poll_at = now + self._poll_s
            self._books.marks.heard(None)
            self._books.more = self._books.promotes = True
        if self._due_at is not None and now >= self._due_at:
            self._due_at = None
            self._books.promotes = True
        if self._books.marks.rescan_in_s(now) == 0.0:
            self._books.more = True
        self._stops.enforce(now)
        self._recall_from_the_slow(now)
        self._rung()

    def _recall_from_the_slow(self, now: float) -> None:
        for member in self._books.roster:
            behind = member.stuck_behind(now, SLOW_AFTER_S, SLOW_TOGETHER_S) if member.tickets.has_unbegun else None
            if behind is not None:
                member.recall(behind)
