"""Where to claim from next, so that a claim does not read rows that are already done.

Rows that were claimed and finished leave dead entries at the head of the claim index until vacuum removes them, which it may not while any
transaction holds an old snapshot. A claim that starts at the head visits them all: measured, 6 700 claims a second fall to 1 100 after 100 000 tasks. So
each *lane* (queue and priority) has a watermark, the oldest row of the last batch, and claims start there.

Two kinds of rows may lie behind a watermark: a row whose transaction committed late (its notification lowers the watermark, and keeps a claim that is in
flight from raising it past that row), and a row that was locked by a claim which then failed. For these there is a *rescan*, a claim from the start of each
queue: before the worker becomes idle after a busy time, after every poll and after every reconnect. A rescan is expensive exactly when watermarks
are needed, so the pause before the next one is a multiple of what the last one cost.

**Many lanes.** A claim reads every lane before the first that has rows, so hundreds of them would cost more than the work. Beyond a few, a lane that a
claim has found empty sleeps until a notification or a rescan wakes it, and a claim reads only the first few lanes that are awake: the fewer, the
fewer tasks it is for.

**Hints are not trusted.** Any role that may connect to the database may NOTIFY, so a payload is only a hint: it never reaches a statement unless it is in
range, and no number of hints makes claims more expensive without limit.
- A payload that cannot be parsed, or is out of range, means "something may have been missed": a rescan. Those that hints request have
  a limit of their own: the first is made at once, the next only after a multiple of its cost.
- A hint lowers a watermark by a few seconds at most from where a claim has put it: further back lie dead entries. An older row is found by a rescan.
- A queue has a limited number of lanes. Sleeping lanes are dropped first: no row is known to wait there. If too many are awake, the last of them are dropped
  and half of the time is spent on rescans, until one has claimed everything.
"""

import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from horsies.model.task import Claim
from horsies.tasks.claim import EPOCH, HIGHEST_PRIORITY, LOWEST_PRIORITY, Lane, lanes_from_start

RESCAN_PAUSE_PER_COST = 50
HINTED_PAUSE_S, HINTED_PAUSE_PER_COST = 0.1, 10
"""The pause after a rescan before hints may cause another."""
LOWERED_BY_MAX = timedelta(seconds=10)
"""How far a hint may lower a watermark that a claim has set. Enough for most transactions that commit late."""

_HINT = re.compile(r"(-?[0-9]{1,10}) (-?[0-9]{1,18}) (.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LaneLimits:
    lanes_per_claim_min: int = 8
    lanes_per_claim: int = 32
    lanes_per_queue: int = 128
    hints_per_lane: int = 64
    """Hints that are remembered. A claim during which more of them arrived is followed by a rescan."""


LANE_LIMITS = LaneLimits()


@dataclass(slots=True)
class _LaneState:
    watermark: datetime
    hints: deque[tuple[int, datetime]]
    """The last rows that were announced in this lane, each with its sequence number."""
    claimed_watermark: datetime | None = None
    """The watermark set by the last claim; None before the first. Hints do not change it."""
    woken_at: int = 0
    """The sequence number of the last hint."""
    is_awake: bool = False
    """Rows may wait in it."""


@dataclass(slots=True)
class Watermarks:
    """All times are on the caller's monotonic clock, in seconds."""

    queues: Sequence[str]
    limits: LaneLimits = LANE_LIMITS
    sequence: int = 0
    """Counts hints. A claim has not seen the hints that arrived after it was sent, and must not raise a watermark past them."""
    lane_count: int = 0
    start_lanes: Sequence[Lane] = field(init=False)
    """Each queue from its start, in order of service."""
    _lanes: dict[str, dict[int, _LaneState]] = field(init=False)
    """By queue and priority."""
    _positions: dict[str, int] = field(init=False)
    """Of the queues, in order of service."""
    _awake: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Lanes in which rows may wait, in order of service: position of the queue, and priority."""
    _served: set[str] = field(default_factory=set[str])
    """Queues in which a claim has found rows."""
    is_rescan_wanted: bool = True
    """A rescan should be made at `rescan_not_before`, even if nothing else happens."""
    _rescan_not_before: float = 0.0
    _is_hinted: bool = False
    """A notification requested the rescan that is due."""
    _hinted_not_before: float = 0.0
    _missed_at: int = 0
    """The sequence number when something may have been missed."""
    _surely_missed_at: int = 0
    """The same, where the request did not come from a notification."""
    _dropped_at: int = 0
    """The sequence number when a lane was last dropped in which rows may wait; 0 when all of them have been claimed."""
    _dropped_not_before: float = 0.0

    def __post_init__(self) -> None:
        self.start_lanes = lanes_from_start(self.queues)
        self._positions = {queue: position for position, queue in enumerate(self.queues)}
        self._lanes = {queue: {} for queue in self.queues}

    def in_order(self, claims: Iterable[Claim]) -> list[Claim]:
        """Sort claims in order of service: the database returns them in any order."""
        return sorted(
            claims, key=lambda claim: (self._positions[claim.queue_name], claim.priority, claim.enqueued_at, claim.id)
        )

    # -- where to claim from

    @property
    def rescan_not_before(self) -> float:
        if self._dropped_at:
            return self._dropped_not_before
        return self._hinted_not_before if self._is_hinted else self._rescan_not_before

    def lanes(self, limit: int) -> list[Lane]:
        """Return each queue and priority from its watermark, in order of service; of very many, the first that are awake."""
        if self.lane_count <= self.limits.lanes_per_claim:
            return [
                Lane(queue, priority, lanes[priority].watermark)
                for queue, lanes in self._lanes.items()
                for priority in sorted(lanes)
            ]
        count = min(max(limit, self.limits.lanes_per_claim_min), self.limits.lanes_per_claim)
        awake = ((self.queues[position], priority) for position, priority in self._awake[:count])
        return [Lane(queue, priority, self._lanes[queue][priority].watermark) for queue, priority in awake]

    @property
    def has_more_lanes(self) -> bool:
        """There are lanes awake, and the last claim did not read all of them."""
        return self.lane_count > self.limits.lanes_per_claim and bool(self._awake)

    def queue_lanes(self) -> list[Lane]:
        """Return each queue from the watermark of its first priority, in order of service.

        A queue in which no claim has found rows begins at its start, whatever was announced in it: a claim that met a cap has not read what
        waited there before.
        """
        return [
            Lane(queue, first := min(lanes), lanes[first].watermark)
            if queue in self._served and (lanes := self._lanes[queue])
            else start
            for queue, start in zip(self.queues, self.start_lanes, strict=True)
        ]

    # -- hints

    def add_hint(self, payload: str | None, *, is_trusted: bool = False) -> bool:
        """Lower the watermark of the lane that a notification names; any other payload requests a rescan. Returns whether it is relevant.

        `is_trusted`: the payload was read from the database. None is always trusted: it comes from our own code.
        """
        # A pattern, because `int` accepts more than digits: underscores, a sign, white space and the digits of every script.
        parts = _HINT.fullmatch(payload or "")
        try:
            enqueued_at = EPOCH + timedelta(microseconds=int(parts[2])) if parts else None
        except OverflowError:
            enqueued_at = None
        if not (parts and enqueued_at and LOWEST_PRIORITY <= (priority := int(parts[1])) <= HIGHEST_PRIORITY):
            self.request_rescan(is_hint=payload is not None)
            return True
        queue = parts[3]
        if queue not in self._positions:
            return False
        lane = self._lanes[queue].get(priority) or self._add_lane(queue, priority, enqueued_at)
        claimed = lane.claimed_watermark
        if not is_trusted and claimed is not None and enqueued_at < claimed - LOWERED_BY_MAX:
            self.request_rescan(is_hint=True)
            return True
        self.sequence += 1
        lane.woken_at = self.sequence
        if not lane.is_awake:
            lane.is_awake = True
            insort(self._awake, (self._positions[queue], priority))
        lane.hints.append((self.sequence, enqueued_at))
        lane.watermark = min(enqueued_at, lane.watermark)
        if len(self._lanes[queue]) > self.limits.lanes_per_queue:
            self._drop_lanes(queue)
        return True

    def request_rescan(self, *, is_hint: bool = False) -> None:
        self.sequence += 1
        self._missed_at = self.sequence
        self.is_rescan_wanted = self._is_hinted = True
        if not is_hint:
            self._surely_missed_at = self.sequence
            self._hinted_not_before = 0.0

    # -- results of claims, each with the `sequence` when it was made

    def on_claimed(self, claims: Sequence[Claim], *, lanes: Sequence[Lane] = (), limit: int, sent_at: int) -> None:
        """Raise the watermarks after a claim from these lanes. One that was filled leaves open what is behind the watermarks."""
        count, is_sure = self._raise_watermarks(claims, sent_at)
        self.is_rescan_wanted = self.is_rescan_wanted or count >= limit or not is_sure
        if count >= limit:
            last = max((self._positions[claim.queue_name], claim.priority) for claim in claims)
            lanes = [lane for lane in lanes if (self._positions[lane.queue_name], lane.priority) < last]
        # These gave all that they had, as far as was known when the claim was sent.
        for empty in lanes:
            lane = self._lanes[empty.queue_name].get(empty.priority)
            if lane is not None and lane.is_awake and lane.woken_at <= sent_at:
                lane.is_awake = False
                del self._awake[bisect_left(self._awake, (self._positions[empty.queue_name], empty.priority))]

    def on_rescanned(self, claims: Iterable[Claim], *, limit: int, sent_at: int, now: float, cost_s: float) -> None:
        """Raise the watermarks after a rescan. One that was not filled has seen everything."""
        count, is_sure = self._raise_watermarks(claims, sent_at)
        if self._surely_missed_at > sent_at:
            return  # it may not have seen what was missed since then: another is due at once
        self._rescan_not_before = now + cost_s * RESCAN_PAUSE_PER_COST
        self._hinted_not_before = now + max(HINTED_PAUSE_S, cost_s * HINTED_PAUSE_PER_COST)
        self._dropped_not_before = now + cost_s
        if count < limit and self._dropped_at <= sent_at:
            self._dropped_at = 0
        if self._missed_at > sent_at:
            return  # the same, but requested by hints, of which there may be any number: after the pause
        self.is_rescan_wanted = count >= limit or not is_sure
        self._is_hinted = False

    def _raise_watermarks(self, claims: Iterable[Claim], sent_at: int) -> tuple[int, bool]:
        """Return how many claims there are, and whether all hints that arrived since then are remembered."""
        oldest: dict[tuple[str, int], datetime] = {}
        count, is_sure = 0, True
        for claim in claims:
            count += 1
            key = claim.queue_name, claim.priority
            oldest[key] = min(oldest.get(key, claim.enqueued_at), claim.enqueued_at)
        for (queue, priority), watermark in oldest.items():
            self._served.add(queue)
            lane = self._lanes[queue].get(priority)
            if lane is None:
                lane = self._add_lane(queue, priority, watermark)
            unseen = [enqueued_at for sequence, enqueued_at in lane.hints if sequence > sent_at]
            lane.watermark = min([watermark, *unseen])
            lane.claimed_watermark = watermark
            is_sure = is_sure and len(unseen) < self.limits.hints_per_lane
        for queue in {queue for queue, _ in oldest}:
            if len(self._lanes[queue]) > self.limits.lanes_per_queue:
                self._drop_lanes(queue)
        return count, is_sure

    # -- lanes

    def _add_lane(self, queue: str, priority: int, watermark: datetime) -> _LaneState:
        """Add a lane, which is awake: rows of it were announced, or found."""
        self.lane_count += 1
        self.sequence += 1
        lane = _LaneState(watermark, deque(maxlen=self.limits.hints_per_lane), woken_at=self.sequence, is_awake=True)
        self._lanes[queue][priority] = lane
        insort(self._awake, (self._positions[queue], priority))
        return lane

    def _drop_lanes(self, queue: str) -> None:
        """Drop lanes of a queue that has too many: those that sleep, and if that is not enough the last in order of service."""
        lanes, most, position = self._lanes[queue], self.limits.lanes_per_queue, self._positions[queue]
        kept = sorted(priority for priority, lane in lanes.items() if lane.is_awake)
        if len(kept) > most:
            del kept[most // 2 :]  # not only one: otherwise this would soon be repeated for the next one
            self.sequence += 1
            self._missed_at = self._dropped_at = self.sequence
            self.is_rescan_wanted = True
        self._lanes[queue] = {priority: lanes[priority] for priority in kept}
        self.lane_count += len(kept) - len(lanes)
        others = [key for key in self._awake if key[0] != position]
        self._awake = sorted([*others, *((position, priority) for priority in kept)])
