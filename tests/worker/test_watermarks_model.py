"""Watermarks lose no row: two workers on a model of the table, late commits, notifications in any order, forged ones among them.

The dispatcher and its watermarks are real. The model does what the statements do, in one step between the sending of a batch and its
answer. There is no polling and no batch fails: every row must be found by what was announced, or by the rescans that the watermarks request.
"""

import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from horsies.model.task import Claim
from horsies.tasks.claim import NO_CAPS, Caps, ClaimFrom, ClaimRequest, Lane
from horsies.worker.batch import Batch, BatchResult
from horsies.worker.watermarks import LaneLimits, Watermarks
from tests.fixtures.dispatching import Simulation, make_state

START = datetime(2026, 1, 1, tzinfo=UTC)
QUEUES = ["urgent", "default"]
LATER = 1e12
"""On the monotonic clock: every pause is over."""
SMALL = LaneLimits(lanes_per_claim_min=2, lanes_per_claim=4, lanes_per_queue=6, hints_per_lane=3)

Place = tuple[str, int, int]
"""Queue, priority and second: what a notification names."""


def payload_for(place: Place) -> str:
    queue, priority, second = place
    return f"{priority} {int((START + timedelta(seconds=second)).timestamp()) * 1_000_000} {queue}"


places = st.tuples(st.sampled_from(QUEUES), st.integers(0, 2), st.sampled_from([*range(4), *range(20, 24)]))
"""Few, so that they meet; some of them further apart than a hint may lower a watermark."""
forged = st.one_of(
    places,
    st.tuples(st.sampled_from(QUEUES), st.integers(-(2**31), 2**31 - 1), st.integers(-(10**9), 10**9)),
).map(payload_for) | st.sampled_from(["*", "", "freed", "later 0", "later x", "99999999999 1 default"])


@dataclass(slots=True)
class Table:
    """Rows that are committed and PENDING."""

    pending: dict[str, Place] = field(default_factory=dict[str, Place])

    def claim(self, request: ClaimRequest, lanes: list[Lane], claim_from: ClaimFrom) -> list[Claim]:
        found: list[str] = []
        for lane in lanes:
            here = [(place, row) for row, place in self.pending.items() if self._is_in(place, lane, claim_from)]
            found += [row for _, row in sorted(here, key=lambda each: (each[0][1:], each[1])) if row not in found]
        taken = found[: request.limit]
        return [Claim(row, 1, "add", *self._place(self.pending.pop(row)), 1, "{}") for row in taken]

    def queue_heads(self) -> list[str]:
        firsts = [
            min((place for place in self.pending.values() if place[0] == queue), default=None) for queue in QUEUES
        ]
        return [payload_for(place) for place in firsts if place is not None]

    @staticmethod
    def _is_in(place: Place, lane: Lane, claim_from: ClaimFrom) -> bool:
        queue, priority, moment = Table._place(place)
        if queue != lane.queue_name:
            return False
        if claim_from is ClaimFrom.WATERMARKS:
            return priority == lane.priority and moment >= lane.watermark
        return (priority, moment) >= (lane.priority, lane.watermark)

    @staticmethod
    def _place(place: Place) -> tuple[str, int, datetime]:
        return place[0], place[1], START + timedelta(seconds=place[2])


@dataclass(slots=True)
class SentBatch:
    batch: Batch
    result: BatchResult | None = None


class Worker:
    """Has capacity for a few rows, and drops them as soon as it has claimed them."""

    def __init__(self, name: str, *, capacity: int, caps: Caps) -> None:
        self.state = make_state(prefetch=capacity, processes=1, caps=caps)
        self.state.worker, self.state.watermarks = name, Watermarks(QUEUES, SMALL)
        self.state.poll_at = math.inf
        self.simulation = Simulation(self.state)
        self.on_notification = self.simulation.dispatcher.on_notification
        self.in_flight: list[SentBatch] = []

    def send_batch(self, now: float) -> bool:
        self.simulation.now = now
        self.simulation.dispatcher.on_timer()
        batch = self.simulation.next_batch()
        if batch is not None:
            self.in_flight.append(SentBatch(batch))
        return batch is not None

    def execute(self, sent: SentBatch, table: Table) -> None:
        batch = sent.batch
        claimed = [table.claim(request, list(batch.lanes), batch.claim_from) for request in batch.claim_requests]
        reads_heads = batch.claim_from is ClaimFrom.START and bool(batch.claim_requests) and not batch.caps.has_limits
        sent.result = BatchResult(claimed=claimed, waiting_lanes=table.queue_heads() if reads_heads else [])

    def complete(self, sent: SentBatch) -> None:
        assert sent.result is not None
        self.in_flight.remove(sent)
        self.simulation.now = time.monotonic()
        self.simulation.commit(sent.batch, sent.result)
        self.state.buffer.clear()


class NoRowIsLost(RuleBasedStateMachine):
    CAPS = NO_CAPS

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.ids = (f"{number:04}" for number in count())
        self.uncommitted: list[Place] = []
        self.workers = [Worker("one", capacity=100, caps=self.CAPS), Worker("two", capacity=3, caps=self.CAPS)]
        self.undelivered: list[list[str]] = [[], []]
        self.is_hostile = False
        self.last = 0
        for worker in self.workers:  # complete the first rescan, which would find everything
            self._work(worker)

    @initialize(is_hostile=st.booleans(), last=st.integers(0, 1))
    def choose(self, is_hostile: bool, last: int) -> None:  # noqa: FBT001 - a rule is given its values by name
        """Choose whether notifications are forged, too: the rescans that they cause could hide what is lost without them."""
        self.is_hostile = is_hostile
        self.last = last

    def teardown(self) -> None:
        self._assert_all_is_found()

    # -- producers

    @rule(place=places)
    def send(self, place: Place) -> None:
        """Commit a row, and deliver its notification at once."""
        self.uncommitted.append(place)
        self._commit(len(self.uncommitted) - 1)
        for worker, undelivered in zip(self.workers, self.undelivered, strict=True):
            worker.on_notification(undelivered.pop())

    @rule(place=places)
    def insert(self, place: Place) -> None:
        self.uncommitted.append(place)

    @precondition(lambda self: self.uncommitted)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self._commit(data.draw(st.integers(0, len(self.uncommitted) - 1)))

    def _commit(self, index: int) -> None:
        place = self.uncommitted.pop(index)
        self.table.pending[next(self.ids)] = place
        for queue in self.undelivered:
            queue.append(payload_for(place))

    # -- notifications

    @precondition(lambda self: self.is_hostile)
    @rule(payload=forged, many=st.sampled_from([1, 1, 1, 20]))
    def forge(self, payload: str, many: int) -> None:
        for queue in self.undelivered:
            queue.extend([payload] * many)

    @precondition(lambda self: self.is_hostile)
    @rule(queue=st.sampled_from(QUEUES))
    def forge_many_priorities(self, queue: str) -> None:
        for undelivered in self.undelivered:
            undelivered.extend(payload_for((queue, priority, 20)) for priority in range(-20, 20))

    @precondition(lambda self: any(self.undelivered))
    @rule(number=st.integers(0, 1), data=st.data())
    def deliver(self, number: int, data: st.DataObject) -> None:
        undelivered = self.undelivered[number]
        if undelivered:
            place = data.draw(st.integers(0, len(undelivered) - 1))
            self.workers[number].on_notification(undelivered.pop(place))

    @rule(number=st.integers(0, 1))
    def deliver_all(self, number: int) -> None:
        for payload in self.undelivered[number]:
            self.workers[number].on_notification(payload)
        self.undelivered[number].clear()

    # -- workers

    @rule(number=st.integers(0, 1), has_pauses=st.booleans())
    def send_batch(self, number: int, has_pauses: bool) -> None:  # noqa: FBT001 - a rule is given its values by name
        worker = self.workers[number]
        if len(worker.in_flight) < 3:
            worker.send_batch(time.monotonic() if has_pauses else LATER)

    @rule(number=st.integers(0, 1))
    def run_one_batch(self, number: int) -> None:
        """Complete a batch before anything else happens."""
        worker = self.workers[number]
        if worker.send_batch(LATER):
            worker.execute(worker.in_flight[-1], self.table)
            worker.complete(worker.in_flight[-1])

    @rule(number=st.integers(0, 1))
    def execute(self, number: int) -> None:
        worker = self.workers[number]
        for sent in [sent for sent in worker.in_flight if sent.result is None][:1]:
            worker.execute(sent, self.table)

    @rule(number=st.integers(0, 1), is_last=st.booleans())
    def complete(self, number: int, is_last: bool) -> None:  # noqa: FBT001 - a rule is given its values by name
        worker = self.workers[number]
        back = [sent for sent in worker.in_flight if sent.result is not None]
        if back:
            worker.complete(back[-1 if is_last else 0])

    @invariant()
    def lanes_are_few(self) -> None:
        for worker in self.workers:
            assert worker.state.watermarks.lane_count <= SMALL.lanes_per_queue * len(QUEUES)

    def _assert_all_is_found(self) -> None:
        while self.uncommitted:
            self._commit(0)
        for number, worker in enumerate(self.workers):
            self.deliver_all(number)
            for sent in list(worker.in_flight):
                if sent.result is None:
                    worker.execute(sent, self.table)
                worker.complete(sent)
        self._work(self.workers[self.last])  # each was notified of everything, so each finds all that is left
        assert self.table.pending == {}

    def _work(self, worker: Worker) -> None:
        for _ in range(1_000):
            if not worker.send_batch(LATER):
                return
            (sent,) = worker.in_flight
            worker.execute(sent, self.table)
            worker.complete(sent)
        pytest.fail("it claims without end, though there is nothing left to claim")


class NoRowIsLostWithCaps(NoRowIsLost):
    """Claims have a lane for each queue. The caps are too high to delay a task: freed capacity would be announced."""

    CAPS = Caps(cluster_wide=1_000)


def _case(machine: type[RuleBasedStateMachine]) -> type:
    case = machine.TestCase
    case.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
    return pytest.mark.promise("D6")(case)


TestNoRowIsLost = _case(NoRowIsLost)
TestNoRowIsLostWithCaps = _case(NoRowIsLostWithCaps)
