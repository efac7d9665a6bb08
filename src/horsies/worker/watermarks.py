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

**Hints are not trusted.** Any role that may connect to the database may NOTIFY, so whatever a payload says is a hint: it never reaches a statement unless
it is in range, and no number of hints makes claims dearer without limit.
- What cannot be read, or is out of range, means "something may have been missed": a claim from the start. Those that hints ask for are
  rationed apart from the others: the first is made at once, the next not before a multiple of its cost.
- A hint lowers a mark by a few seconds at most from where a claim has put it: lower down lie dead entries. An older row is looked for from the start.
- A queue has a limited number of lanes. Those that sleep are forgotten first: nothing is known to wait there. If too many are awake, the last of them are dropped
  and every second claim, by time, is made from the start until one comes back short.
"""

import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from horsies.model.task import Claim
from horsies.tasks.claim import EPOCH, HIGHEST_PRIORITY, LOWEST_PRIORITY, Lane, lanes_from_start

REST_PER_COST = 50
FEW_LANES, LANES_AT_ONCE = 8, 32
LANES_PER_QUEUE = 128
REMEMBERED = 64
"""Notifications of each lane. After a claim that was under way during more of them there is a claim from the start."""
HINTED_REST_S, HINTED_REST_PER_COST = 0.1, 10
"""The pause after a claim from the start before hints may cause another."""
LOWER_AT_MOST = timedelta(seconds=10)
"""How far a hint may lower a mark that a claim has set. Enough for most transactions that commit late."""

_HINT = re.compile(r"(-?[0-9]{1,10}) (-?[0-9]{1,18}) (.+)", re.DOTALL)


@dataclass(slots=True)
class _LaneState:
    mark: datetime
    claimed_watermark: datetime | None = None
    """Where the last claim put the mark; None before the first. Not moved by hints."""
    woken: int = 0
    """The `moment` of the last hint."""
    hints: deque[tuple[int, datetime]] = field(default_factory=lambda: deque[tuple[int, datetime]](maxlen=REMEMBERED))
    """The last rows that were announced in this lane, and at which `moment`."""


@dataclass(slots=True)
class Watermarks:
    """All moments are on the caller's monotonic clock, in seconds."""

    queues: Sequence[str]
    _lanes: dict[str, dict[int, _LaneState]] = field(init=False)
    """By queue and priority."""
    _count: int = 0
    """Of all lanes."""
    _rescan_due: bool = True
    _rescan_not_before: float = 0.0
    _is_hinted: bool = False
    """A notification asked for the claim from the start that is due."""
    _hinted_not_before: float = 0.0
    _missed: int = 0
    """When something may have been missed, counted like `moment`."""
    _surely_missed: int = 0
    """The same, where it was not a notification that said so."""
    _dropped: int = 0
    """When the last lane was dropped in which something may wait, counted like `moment`; 0 when all of that has been claimed."""
    _dropped_not_before: float = 0.0
    _awake: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Place of the queue, and priority: lanes in which something may wait, in order of service."""
    _served: set[str] = field(default_factory=set[str])
    """Queues that a claim has found something in."""
    moment: int = 0
    """Counts what was heard: a claim has not seen what was heard after it was sent, and must not raise a mark past that."""
    _places: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self._places = {queue: place for place, queue in enumerate(self.queues)}
        self._lanes = {queue: {} for queue in self.queues}

    def in_order(self, claims: Iterable[Claim]) -> list[Claim]:
        """As they are to be served. The database returns what it has claimed in no order at all."""
        return sorted(
            claims, key=lambda claim: (self._places[claim.queue_name], claim.priority, claim.enqueued_at, claim.id)
        )

    @property
    def lane_count(self) -> int:
        return self._count

    def wants_start(self, now: float) -> bool:
        """Whether the next claim should be made from the start."""
        return (self._rescan_due or not self._count) and now >= self._start_not_before

    @property
    def _start_not_before(self) -> float:
        if self._dropped:
            return self._dropped_not_before
        return self._hinted_not_before if self._is_hinted else self._rescan_not_before

    def starts(self) -> list[Lane]:
        """Each queue from its start, in order of service."""
        return lanes_from_start(self.queues)

    def lanes(self, wanted: int) -> list[Lane]:
        """Each queue and priority from its mark, in order of service; of very many, the first that are awake."""
        if self._count <= LANES_AT_ONCE:
            return [
                Lane(queue, priority, lanes[priority].mark)
                for queue, lanes in self._lanes.items()
                for priority in sorted(lanes)
            ]
        at_once = min(max(wanted, FEW_LANES), LANES_AT_ONCE)
        awake = ((self.queues[place], priority) for place, priority in self._awake[:at_once])
        return [Lane(queue, priority, self._lanes[queue][priority].mark) for queue, priority in awake]

    @property
    def are_left(self) -> bool:
        """There are lanes awake of which the last claim was not given all."""
        return self._count > LANES_AT_ONCE and bool(self._awake)

    def first_lanes(self) -> list[Lane]:
        """Each queue from the mark of its first priority, in order of service.

        A queue that no claim has found anything in begins at its start, whatever was announced in it: a claim that met a cap has not seen what
        waited there before.
        """
        return [
            Lane(queue, first := min(lanes), lanes[first].mark)
            if queue in self._served and (lanes := self._lanes[queue])
            else start
            for queue, start in zip(self.queues, self.starts(), strict=True)
        ]

    def is_relevant(self, payload: str | None) -> bool:
        """Whether a notification is about our queues, or may be: were each worker to look at all of them, every send would cost a transaction
        per worker. Safe from any thread.
        """
        row = _parse(payload)
        return row is None or row[0] in self._places

    def heard(self, payload: str | None, *, is_trusted: bool = False) -> bool:
        """A notification tells of rows in a lane; anything else tells only that something may have been missed. Whether it concerns us.

        `is_trusted`: the database itself has answered so. None is always trusted: only our own code says it.
        """
        row = _parse(payload)
        if row is None:
            self._look_from_start(is_hint=payload is not None)
            return True
        queue, priority, enqueued_at = row
        if queue not in self._places:
            return False
        lane = self._lanes[queue].get(priority)
        if lane is None:
            lane = self._add(queue, priority, enqueued_at)
        elif (
            not is_trusted
            and lane.claimed_watermark is not None
            and enqueued_at < lane.claimed_watermark - LOWER_AT_MOST
        ):
            self._look_from_start(is_hint=True)
            return True
        self._wake(queue, priority, lane)
        lane.hints.append((self.moment, enqueued_at))
        lane.mark = min(enqueued_at, lane.mark)
        self._bound(queue)
        return True

    def _look_from_start(self, *, is_hint: bool) -> None:
        self.moment += 1
        self._missed = self.moment
        self._rescan_due = self._is_hinted = True
        if not is_hint:
            self._surely_missed = self.moment
            self._hinted_not_before = 0.0

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
        if self._surely_missed > sent_at:
            return  # it need not have seen what was missed since: another is due, at once
        self._rescan_not_before = now + cost_s * REST_PER_COST
        self._hinted_not_before = now + max(HINTED_REST_S, cost_s * HINTED_REST_PER_COST)
        self._dropped_not_before = now + cost_s
        if count < asked and self._dropped <= sent_at:
            self._dropped = 0
        if self._missed > sent_at:
            return  # the same, but so says a hint, and there may be any number of them
        self._rescan_due = count >= asked or not is_sure
        self._is_hinted = False

    def rescan_in_s(self, now: float) -> float | None:
        """How long until a claim from the start should be made even if nothing else happens."""
        return max(0.0, self._start_not_before - now) if self._rescan_due else None

    def _advance(self, claims: Iterable[Claim], sent_at: int) -> tuple[int, bool]:
        """How many there are, and whether nothing can hide behind the marks now."""
        oldest: dict[tuple[str, int], datetime] = {}
        count, is_sure = 0, True
        for claim in claims:
            count += 1
            key = claim.queue_name, claim.priority
            oldest[key] = min(oldest.get(key, claim.enqueued_at), claim.enqueued_at)
        for (queue, priority), mark in oldest.items():
            self._served.add(queue)
            lane = self._lanes[queue].get(priority)
            if lane is None:
                lane = self._add(queue, priority, mark)
                self._wake(queue, priority, lane)
            unseen = [enqueued_at for moment, enqueued_at in lane.hints if moment > sent_at]
            lane.mark = min([mark, *unseen])
            lane.claimed_watermark = mark
            is_sure = is_sure and len(unseen) < REMEMBERED
        for queue in {queue for queue, _ in oldest}:
            self._bound(queue)
        return count, is_sure

    def _add(self, queue: str, priority: int, mark: datetime) -> _LaneState:
        self._count += 1
        lane = self._lanes[queue][priority] = _LaneState(mark)
        return lane

    def _bound(self, queue: str) -> None:
        """Forget lanes of a queue that has too many: those that sleep, and if that is not enough the last in order of service."""
        lanes = self._lanes[queue]
        if len(lanes) <= LANES_PER_QUEUE:
            return
        place = self._places[queue]
        kept = sorted(priority for priority in lanes if self._is_awake((place, priority)))
        if len(kept) > LANES_PER_QUEUE:
            del kept[LANES_PER_QUEUE // 2 :]  # not just one of them: then the next one would soon have to go, too
            self.moment += 1
            self._missed = self._dropped = self.moment
            self._rescan_due = True
        self._lanes[queue] = {priority: lanes[priority] for priority in kept}
        self._count += len(kept) - len(lanes)
        others = [key for key in self._awake if key[0] != place]
        self._awake = sorted([*others, *((place, priority) for priority in kept)])

    def _wake(self, queue: str, priority: int, lane: _LaneState) -> None:
        self.moment += 1
        lane.woken = self.moment
        key = self._places[queue], priority
        if not self._is_awake(key):
            insort(self._awake, key)

    def _rest(self, lanes: Sequence[Lane], sent_at: int) -> None:
        """These gave all they had, as far as was known when they were asked."""
        for asked in lanes:
            key = self._places[asked.queue_name], asked.priority
            lane = self._lanes[asked.queue_name].get(asked.priority)
            if lane is not None and lane.woken <= sent_at and self._is_awake(key):
                del self._awake[bisect_left(self._awake, key)]

    def _is_awake(self, key: tuple[int, int]) -> bool:
        place = bisect_left(self._awake, key)
        return place < len(self._awake) and self._awake[place] == key


def _parse(payload: str | None) -> tuple[str, int, datetime] | None:
    """Queue, priority and moment, if the payload is written like that and all three are possible.

    By a pattern, because `int` takes more than digits: underscores, a sign, white space and the digits of every script.
    """
    found = _HINT.fullmatch(payload or "")
    if found is None:
        return None
    priority = int(found[1])
    if not LOWEST_PRIORITY <= priority <= HIGHEST_PRIORITY:
        return None
    try:
        return found[3], priority, EPOCH + timedelta(microseconds=int(found[2]))
    except OverflowError:
        return None
