"""No row is lost by the marks: two workers on a model of the table, late commits, notifications in any order, and forged ones among them.

The books, the news and the marks are real. The model does what the statements do, in one step between a turn's departure and its return. Nobody polls here,
and no turn fails: every row must be found by what was announced, or by the claims from the start that the marks themselves ask for.
"""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.task import Claim
from horsies.tasks.claim import NO_CAPS, Caps, ClaimRequest, Lane
from horsies.tasks.unknown import KnownTasks
from horsies.worker import watermarks
from horsies.worker.batch import Batch, BatchResult, ClaimFrom
from horsies.worker.capacity import ClaimLimits, PrefetchPolicy
from horsies.worker.dispatcher import KnownWakeup, Wakeups
from horsies.worker.pending import PendingWork
from horsies.worker.quarantine import Quarantine
from horsies.worker.watermarks import Watermarks

START = datetime(2026, 1, 1, tzinfo=UTC)
QUEUES = ["urgent", "default"]
LATER = 1e12
"""On the monotonic clock: no ration holds anything back any more."""
SMALL = {"LANES_PER_QUEUE": 6, "LANES_AT_ONCE": 4, "FEW_LANES": 2, "REMEMBERED": 3}

Place = tuple[str, int, int]
"""Queue, priority and second: what a notification names."""


def told(place: Place) -> str:
    queue, priority, second = place
    return f"{priority} {int((START + timedelta(seconds=second)).timestamp()) * 1_000_000} {queue}"


places = st.tuples(st.sampled_from(QUEUES), st.integers(0, 2), st.sampled_from([*range(4), *range(20, 24)]))
"""Few, so that they meet; some of them further apart than a hint may lower a mark."""
forged = st.one_of(
    places,
    st.tuples(st.sampled_from(QUEUES), st.integers(-(2**31), 2**31 - 1), st.integers(-(10**9), 10**9)),
).map(told) | st.sampled_from(["*", "", "freed", "later 0", "later x", "99999999999 1 default"])


@dataclass(slots=True)
class Table:
    """Rows that are committed and PENDING."""

    pending: dict[str, Place] = field(default_factory=dict[str, Place])

    def claim(self, wanted: ClaimRequest, lanes: list[Lane], claim_from: ClaimFrom) -> list[Claim]:
        found: list[str] = []
        for lane in lanes:
            here = [(place, row) for row, place in self.pending.items() if self._is_in(place, lane, claim_from)]
            found += [row for _, row in sorted(here, key=lambda each: (each[0][1:], each[1])) if row not in found]
        taken = found[: wanted.limit]
        return [Claim(row, 1, "add", *self._place(self.pending.pop(row)), 1, "{}") for row in taken]

    def survey(self) -> list[str]:
        firsts = [
            min((place for place in self.pending.values() if place[0] == queue), default=None) for queue in QUEUES
        ]
        return [told(place) for place in firsts if place is not None]

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
class Flight:
    batch: Batch
    known: KnownWakeup
    outcome: BatchResult | None = None


class Worker:
    """Has room for a few rows, which it is rid of as soon as it has them."""

    def __init__(self, name: str, *, capacity: int, caps: Caps) -> None:
        prefetch = PrefetchPolicy(capacity, processes=1)
        database = PostgresConfig(database_url="postgresql://nowhere/nothing")
        self.pending_work = PendingWork(
            name,
            database,
            ClaimLimits(60_000, caps),
            [],
            prefetch,
            Watermarks(QUEUES),
            Quarantine(WorkerResilienceConfig()),
            known_tasks=KnownTasks({"add": 1}),
        )
        self.news = Wakeups(self.pending_work, due_in=lambda _: None)
        self.flights: list[Flight] = []

    def depart(self, now: float) -> bool:
        if self.pending_work.watermarks.rescan_in_s(now) == 0.0:
            self.pending_work.may_have_tasks = True  # as the alarm does
        batch = self.pending_work.next_batch(now)
        if batch is not None:
            self.flights.append(Flight(batch, self.news.known))
        return batch is not None

    def execute(self, flight: Flight, table: Table) -> None:
        batch = flight.batch
        claimed = [table.claim(wanted, list(batch.lanes), batch.claim_from) for wanted in batch.wanted]
        surveys = batch.claim_from is ClaimFrom.START and bool(batch.wanted) and not batch.caps.has_limits
        flight.outcome = BatchResult(claimed=claimed, waiting=table.survey() if surveys else [])

    def land(self, flight: Flight) -> None:
        assert flight.outcome is not None
        self.flights.remove(flight)
        self.news.found(flight.batch, flight.outcome, flight.known, time.monotonic())
        self.pending_work.apply(flight.batch, flight.outcome, until=LATER * 2)
        self.pending_work.buffer.clear()


class NothingIsLost(RuleBasedStateMachine):
    CAPS = NO_CAPS

    def __init__(self) -> None:
        super().__init__()
        self.small = pytest.MonkeyPatch()
        for name, value in SMALL.items():
            self.small.setattr(watermarks, name, value)
        self.table = Table()
        self.ids = (f"{number:04}" for number in count())
        self.uncommitted: list[Place] = []
        self.workers = [Worker("one", capacity=100, caps=self.CAPS), Worker("two", capacity=3, caps=self.CAPS)]
        self.unheard: list[list[str]] = [[], []]
        self.is_hostile = False
        self.last = 0
        for worker in self.workers:  # the first claim from the start is over: it would find everything
            self._work(worker)

    @initialize(is_hostile=st.booleans(), last=st.integers(0, 1))
    def choose(self, is_hostile: bool, last: int) -> None:  # noqa: FBT001 - a rule is given its values by name
        """Whether notifications are forged, too: the claims from the start that they cause could hide what is lost without them."""
        self.is_hostile = is_hostile
        self.last = last

    def teardown(self) -> None:
        try:
            self._all_is_found()
        finally:
            self.small.undo()

    # -- producers

    @rule(place=places)
    def send(self, place: Place) -> None:
        """Committed, and heard of, at once."""
        self.uncommitted.append(place)
        self._commit(len(self.uncommitted) - 1)
        for worker, unheard in zip(self.workers, self.unheard, strict=True):
            worker.news.heard(unheard.pop())

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
        for queue in self.unheard:
            queue.append(told(place))

    # -- notifications

    @precondition(lambda self: self.is_hostile)
    @rule(payload=forged, many=st.sampled_from([1, 1, 1, 20]))
    def forge(self, payload: str, many: int) -> None:
        for queue in self.unheard:
            queue.extend([payload] * many)

    @precondition(lambda self: self.is_hostile)
    @rule(queue=st.sampled_from(QUEUES))
    def forge_many_priorities(self, queue: str) -> None:
        for unheard in self.unheard:
            unheard.extend(told((queue, priority, 20)) for priority in range(-20, 20))

    @precondition(lambda self: any(self.unheard))
    @rule(number=st.integers(0, 1), data=st.data())
    def receive_message(self, number: int, data: st.DataObject) -> None:
        unheard = self.unheard[number]
        if unheard:
            place = data.draw(st.integers(0, len(unheard) - 1))
            self.workers[number].news.heard(unheard.pop(place))

    @rule(number=st.integers(0, 1))
    def hear_all(self, number: int) -> None:
        for payload in self.unheard[number]:
            self.workers[number].news.heard(payload)
        self.unheard[number].clear()

    # -- workers

    @rule(number=st.integers(0, 1), is_rationed=st.booleans())
    def depart(self, number: int, is_rationed: bool) -> None:  # noqa: FBT001 - a rule is given its values by name
        worker = self.workers[number]
        if len(worker.flights) < 3:
            worker.depart(time.monotonic() if is_rationed else LATER)

    @rule(number=st.integers(0, 1))
    def take_a_turn(self, number: int) -> None:
        """That is back before anything else happens."""
        worker = self.workers[number]
        if worker.depart(LATER):
            worker.execute(worker.flights[-1], self.table)
            worker.land(worker.flights[-1])

    @rule(number=st.integers(0, 1))
    def execute(self, number: int) -> None:
        worker = self.workers[number]
        for flight in [flight for flight in worker.flights if flight.outcome is None][:1]:
            worker.execute(flight, self.table)

    @rule(number=st.integers(0, 1), is_last=st.booleans())
    def land(self, number: int, is_last: bool) -> None:  # noqa: FBT001 - a rule is given its values by name
        worker = self.workers[number]
        back = [flight for flight in worker.flights if flight.outcome is not None]
        if back:
            worker.land(back[-1 if is_last else 0])

    @invariant()
    def lanes_are_few(self) -> None:
        for worker in self.workers:
            assert worker.pending_work.watermarks.lane_count <= SMALL["LANES_PER_QUEUE"] * len(QUEUES)

    def _all_is_found(self) -> None:
        while self.uncommitted:
            self._commit(0)
        for number, worker in enumerate(self.workers):
            self.hear_all(number)
            for flight in list(worker.flights):
                if flight.outcome is None:
                    worker.execute(flight, self.table)
                worker.land(flight)
        self._work(self.workers[self.last])  # each was told of everything, so each finds all that is left
        assert self.table.pending == {}

    def _work(self, worker: Worker) -> None:
        for _ in range(1_000):
            if not worker.depart(LATER):
                return
            (flight,) = worker.flights
            worker.execute(flight, self.table)
            worker.land(flight)
        pytest.fail("it claims on and on, though nothing is left to claim")


class NothingIsLostWhereQueuesAreCounted(NothingIsLost):
    """By claims with a lane for each queue. The caps themselves are high: what they hold back is announced when they are free."""

    CAPS = Caps(cluster_wide=1_000)


def _case(machine: type[RuleBasedStateMachine]) -> type:
    case = machine.TestCase
    case.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
    return pytest.mark.promise("D6")(case)


TestNothingIsLost = _case(NothingIsLost)
TestNothingIsLostWhereQueuesAreCounted = _case(NothingIsLostWhereQueuesAreCounted)
