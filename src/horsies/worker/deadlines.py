"""Who must be stopped when: soft stops at a task's time-out, kills when its grace is over."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count

from horsies.worker.member import Member

SWEEP_AT_LEAST = 1_000


class Stage(Enum):
    ASK = auto()
    """Its time is over: it is asked to stop."""
    KILL = auto()
    """It was asked, and its grace is over."""
    LOOP = auto()
    """It was abandoned, and the event loop that it ran on must have run since."""


@dataclass(frozen=True, slots=True)
class Deadline:
    member: Member
    ticket: int
    stage: Stage
    loop_answers: int = 0
    """How often the event loop had answered when the task was abandoned."""

    @property
    def is_pending(self) -> bool:
        """There may still be something to do about it."""
        if self.stage is Stage.LOOP:
            return self.member.loop_answers == self.loop_answers and bool(self.member.load)
        return self.ticket in self.member.tickets


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
