"""Where to claim from next, so that a claim never wades through what is already done.

Rows that were claimed and finished leave dead entries at the head of the claim index until vacuum takes them, and while anybody
holds an old snapshot vacuum may not. A claim that starts at the head visits them all: measured, 6 700 claims a second
fall to 1 100 after 100 000 tasks. So each *lane* (queue and priority) has a mark, the oldest row of the last batch, and claims
start there.

What could hide behind a mark: a row whose transaction committed late (its notification lowers the mark, and keeps a claim that was under
way from raising it past that row), and a row that was locked by a claim which then failed. For these, a claim *from the start* is made before the worker sleeps after a busy
time, after every poll and every reconnect. It is dear exactly when marks are needed, so it is rationed by what the last one cost.

**Many lanes.** A claim asks every lane before the first that has something, so hundreds of them would cost more than the work. Beyond a few, a lane that
a claim has found empty sleeps until a notification or a claim from the start tells of it again, and a claim gets only the first few that are awake:
the fewer, the fewer tasks it is for.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from horsies.model.task import Claim
from horsies.tasks.claim import EPOCH, Lane, from_start

REST_PER_COST = 50
FEW_LANES, LANES_AT_ONCE = 8, 32
REMEMBERED = 64
"""Notifications of each lane. After a claim that was under way during more of them there is a claim from the start."""


@dataclass(slots=True)
class Marks:
    """All moments are on the caller's monotonic clock, in seconds."""

    queues: Sequence[str]
    _marks: dict[tuple[str, int], datetime] = field(default_factory=dict[tuple[str, int], datetime])
    _heard: dict[tuple[str, int], deque[tuple[int, datetime]]] = field(
        default_factory=dict[tuple[str, int], deque[tuple[int, datetime]]]
    )
    """The last rows that each lane was told of, and at which `moment`."""
    _rescan_due: bool = True
    _rescan_not_before: float = 0.0
    _missed: int = 0
    """When something may have been missed, counted like `moment`."""
    _awake: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Place of the queue, and priority: lanes in which something may wait, in order of service."""
    _woken: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    moment: int = 0
    """Counts what was heard: a claim has not seen what was heard after it was sent, and must not raise a mark past that."""
    _places: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._places = {queue: place for place, queue in enumerate(self.queues)}

    def in_order(self, claims: Iterable[Claim]) -> list[Claim]:
        """As they are to be served. The database returns what it has claimed in no order at all."""
        return sorted(
            claims, key=lambda claim: (self._places[claim.queue_name], claim.priority, claim.enqueued_at, claim.id)
        )

    def wants_start(self, now: float) -> bool:
        """Whether the next claim should be made from the start."""
        return not self._marks or (self._rescan_due and now >= self._rescan_not_before)

    def starts(self) -> list[Lane]:
        """Each queue from its start, in order of service."""
        return from_start(self.queues)

    def lanes(self, wanted: int) -> list[Lane]:
        """Each queue and priority from its mark, in order of service; of very many, the first that are awake."""
        if len(self._marks) <= LANES_AT_ONCE:
            return self._all_lanes()
        at_once = min(max(wanted, FEW_LANES), LANES_AT_ONCE)
        awake = ((self.queues[place], priority) for place, priority in self._awake[:at_once])
        return [Lane(*lane, self._marks[lane]) for lane in awake]

    def _all_lanes(self) -> list[Lane]:
        lanes = sorted(self._marks, key=lambda lane: (self._places[lane[0]], lane[1]))
        return [Lane(*lane, self._marks[lane]) for lane in lanes]

    @property
    def are_left(self) -> bool:
        """There are lanes awake of which the last claim was not given all."""
        return len(self._marks) > LANES_AT_ONCE and bool(self._awake)

    def first_lanes(self) -> list[Lane]:
        """Each queue from the mark of its first priority, or from its start if it has none, in order of service."""
        first: dict[str, Lane] = {}
        for lane in [*self._all_lanes(), *self.starts()]:
            first.setdefault(lane.queue_name, lane)
        return [first[queue] for queue in self.queues]

    def concerns(self, payload: str | None) -> bool:
        """Whether a notification is about our queues, or may be: were each worker to look at all of them, every send would cost a transaction
        per worker. Safe from any thread.
        """
        row = _parse(payload)
        return row is None or row[0] in self._places

    def heard(self, payload: str | None) -> bool:
        """A notification tells of rows in a lane; anything else tells only that something may have been missed. Whether it concerns us."""
        if not self.concerns(payload):
            return False
        row = _parse(payload)
        if row is None:
            self.moment += 1
            self._missed = self.moment
            self._rescan_due = True
            self._rescan_not_before = 0.0
            return True
        queue, priority, enqueued_at = row
        lane = queue, priority
        self._wake(lane)
        self._heard.setdefault(lane, deque(maxlen=REMEMBERED)).append((self.moment, enqueued_at))
        self._marks[lane] = min(enqueued_at, self._marks.get(lane, enqueued_at))
        return True

    def claimed(self, claims: Sequence[Claim], *, lanes: Sequence[Lane] = (), asked: int, sent_at: int) -> None:
        """A claim from these lanes, sent at that moment, came back. A filled one leaves open what is behind the marks."""
        count, is_sure = self._advance(claims, sent_at)
        self._rescan_due = self._rescan_due or count >= asked or not is_sure
        if count < asked:
            self._rest(lanes, sent_at)
            return
        last = max((self._places[claim.queue_name], claim.priority) for claim in claims)
        self._rest([lane for lane in lanes if (self._places[lane.queue_name], lane.priority) < last], sent_at)

    def rescanned(self, claims: Iterable[Claim], *, asked: int, sent_at: int, now: float, cost_s: float) -> None:
        """A claim from the start came back: not filled, it has seen everything there is."""
        count, is_sure = self._advance(claims, sent_at)
        if self._missed > sent_at:
            return  # it need not have seen what was missed since: another is due
        self._rescan_due = count >= asked or not is_sure
        self._rescan_not_before = now + cost_s * REST_PER_COST

    def rescan_in_s(self, now: float) -> float | None:
        """How long until a claim from the start should be made even if nothing else happens."""
        return max(0.0, self._rescan_not_before - now) if self._rescan_due else None

    def _advance(self, claims: Iterable[Claim], sent_at: int) -> tuple[int, bool]:
        """How many there are, and whether nothing can hide behind the marks now."""
        oldest: dict[tuple[str, int], datetime] = {}
        count, is_sure = 0, True
        for claim in claims:
            count += 1
            lane = claim.queue_name, claim.priority
            oldest[lane] = min(oldest.get(lane, claim.enqueued_at), claim.enqueued_at)
        for lane, mark in oldest.items():
            if lane not in self._marks:
                self._wake(lane)
            unseen = [enqueued_at for moment, enqueued_at in self._heard.get(lane, ()) if moment > sent_at]
            self._marks[lane] = min([mark, *unseen])
            is_sure = is_sure and len(unseen) < REMEMBERED
        return count, is_sure

    def _wake(self, lane: tuple[str, int]) -> None:
        self.moment += 1
        self._woken[lane] = self.moment
        key = self._places[lane[0]], lane[1]
        if not self._is_awake(key):
            insort(self._awake, key)

    def _rest(self, lanes: Sequence[Lane], sent_at: int) -> None:
        """These gave all they had, as far as was known when they were asked."""
        for lane in lanes:
            key = self._places[lane.queue_name], lane.priority
            if self._woken.get((lane.queue_name, lane.priority), 0) <= sent_at and self._is_awake(key):
                del self._awake[bisect_left(self._awake, key)]

    def _is_awake(self, key: tuple[int, int]) -> bool:
        place = bisect_left(self._awake, key)
        return place < len(self._awake) and self._awake[place] == key


def _parse(payload: str | None) -> tuple[str, int, datetime] | None:
    try:
        priority, microseconds, queue = (payload or "").split(" ", 2)
        return queue, int(priority), EPOCH + timedelta(microseconds=int(microseconds))
    except (ValueError, OverflowError):
        return None
