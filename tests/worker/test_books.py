"""The pump's books, without children: what travels, what comes back, and that nothing is forgotten between."""

from datetime import UTC, datetime

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending
from horsies.tasks.ids import new_task_id
from horsies.worker.books import ENDINGS_PER_TURN, Books, Buffered
from horsies.worker.frames import Frames
from horsies.worker.marks import Marks
from horsies.worker.turn import Outcome, Turn, take_turn

WORKER = "00000000-0000-4000-8000-00000000000a"
NOTHING = Outcome(frozenset(), frozenset(), [])


def books(prefetch: int = 0) -> Books:
    return Books(
        worker=WORKER,
        statement_timeout_ms=30_000,
        lease_ms=5_000,
        roster=[],
        frames=Frames(prefetch, 2),
        marks=Marks(["default"]),
    )


def claim() -> Claim:
    return Claim(new_task_id(), 1, "add", "default", 100, datetime(2026, 1, 1, tzinfo=UTC), 1, "{}")


def ending(of: Claim | None = None) -> Ending:
    of = of or claim()
    return Ending(of.id, of.claim_no, TaskStatus.COMPLETED, "1")


def taken(made: Books, now: float = 0.0) -> Turn:
    turn = made.next_turn(now)
    assert turn is not None
    return turn


def statements(turn: Turn) -> list[str]:
    """What a turn says to the database, in one round trip."""
    ask = next(take_turn(turn))
    return [query.statement.name for query in getattr(ask, "queries", [])]


def test_empty_books_have_nothing_to_say() -> None:
    made = books()
    assert made.next_turn(0.0) is None
    assert made.is_empty


def test_twenty_endings_travel_in_one_statement() -> None:
    made = books()
    endings = [ending() for _ in range(20)]
    made.endings.extend(endings)
    turn = taken(made)
    assert list(turn.endings) == endings
    assert statements(turn) == ["begin_turn", "set_limits", "finish_tasks", "commit_turn", "notify_done"]
    assert made.next_turn(0.0) is None


def test_a_turn_finishes_releases_starts_and_claims_together() -> None:
    made = books(prefetch=4)
    made.endings.append(ending())
    made.releases.append(claim())
    turn = taken(made)
    names = statements(turn)
    assert names[:4] == ["begin_turn", "set_limits", "finish_tasks", "release_tasks"]
    assert names[4:6] == ["claim_from_start", "commit_turn"]
    assert sorted(names[6:]) == ["notify_done", "notify_new"]  # after the commit: NOTIFY takes a lock


def test_very_many_endings_travel_in_several_turns() -> None:
    made = books()
    made.endings.extend(ending() for _ in range(ENDINGS_PER_TURN + 1))
    assert [len(taken(made).endings), len(taken(made).endings)] == [ENDINGS_PER_TURN, 1]


def test_a_suspect_travels_alone() -> None:
    made = books()
    first, second, other = ending(), ending(), ending()
    made.suspects.extend([first, second])
    made.endings.append(other)
    assert [list(taken(made).endings) for _ in range(3)] == [[first], [second], [other]]


def test_what_is_in_flight_is_not_asked_for_twice() -> None:
    made = books(prefetch=4)
    assert sum(wanted.limit for wanted in taken(made).wanted) == 6  # two processes and four in the buffer
    assert made.next_turn(0.0) is None


@pytest.mark.promise("C13")
def test_the_buffer_is_never_filled_beyond_its_number() -> None:
    made = books(prefetch=4)
    turn = taken(made)
    claims = [claim() for _ in range(6)]
    assert made.settle(turn, Outcome(frozenset(), frozenset(), [claims]), until=5.0) == []
    assert len(made.buffer) == 6
    assert made.next_turn(0.0) is None


@pytest.mark.promise("C14")
def test_a_buffered_claim_is_given_back_when_its_lease_runs_out_here() -> None:
    made = books(prefetch=4)
    old, young = claim(), claim()
    made.buffer.extend([Buffered(old, 5.0), Buffered(young, 6.0)])
    made.more = False
    assert made.next_turn(4.9) is None
    assert list(taken(made, 5.0).releases) == [old]
    assert [buffered.claim for buffered in made.buffer] == [young]


@pytest.mark.promise("W10")
def test_when_stopping_nothing_is_claimed_and_the_buffer_is_given_back() -> None:
    made = books(prefetch=4)
    held = [claim(), claim()]
    made.buffer.extend(Buffered(one, 100.0) for one in held)
    made.stopping = True
    turn = taken(made)
    assert list(turn.releases) == held
    assert not turn.wanted
    made.settle(turn, NOTHING, until=0.0)
    assert made.is_empty


def test_a_failed_turn_puts_back_all_that_it_carried_in_order() -> None:
    made = books()
    endings, releases = [ending(), ending(), ending()], [claim()]
    made.endings.extend(endings[:2])
    made.releases.extend(releases)
    turn = taken(made)
    made.endings.append(endings[2])
    made.put_back(turn)
    assert list(made.endings) == endings
    assert made.releases == releases


def test_starts_of_a_failed_turn_are_given_back_because_nobody_knows_whether_they_started() -> None:
    made = books(prefetch=4)
    started = claim()
    turn = Turn(WORKER, 30_000, [], [], [started], [], ["default"], None)
    made.in_flight.append(turn)
    made.put_back(turn)
    assert made.releases == [started]


def test_what_was_not_started_is_not_run() -> None:
    made = books(prefetch=4)
    kept, lost = claim(), claim()
    turn = Turn(WORKER, 30_000, [], [], [kept, lost], [], ["default"], None)
    made.in_flight.append(turn)
    assert made.settle(turn, Outcome(frozenset(), frozenset({kept.id}), []), until=0.0) == [kept]


class NothingIsForgotten(RuleBasedStateMachine):
    """Whatever happens in whatever order: what the database has not answered for is remembered, and nothing else is."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.known: set[tuple[str, int]] = set()
        self.in_flight: list[Turn] = []

    @initialize(prefetch=st.integers(0, 5))
    def begin(self, prefetch: int) -> None:
        self.books = books(prefetch)

    def new(self) -> Claim:
        made = claim()
        self.known.add((made.id, made.claim_no))
        return made

    @rule()
    def a_task_ends(self) -> None:
        self.books.endings.append(ending(self.new()))

    @rule()
    def an_ending_is_suspected(self) -> None:
        self.books.suspects.append(ending(self.new()))

    @rule()
    def a_task_is_to_be_given_back(self) -> None:
        self.books.releases.append(self.new())

    @rule()
    def a_task_waits_in_the_buffer(self) -> None:
        self.books.buffer.append(Buffered(self.new(), self.now + 5.0))

    @rule()
    def time_passes(self) -> None:
        self.now += 3.0

    @rule()
    def a_turn_departs(self) -> None:
        if turn := self.books.next_turn(self.now):
            self.in_flight.append(turn)

    @precondition(lambda self: self.in_flight)
    @rule()
    def a_turn_fails(self) -> None:
        self.books.put_back(self.in_flight.pop())

    @precondition(lambda self: self.in_flight)
    @rule()
    def a_turn_is_committed(self) -> None:
        turn = self.in_flight.pop(0)
        self.books.settle(turn, Outcome(frozenset(), frozenset(), [[] for _ in turn.wanted]), until=self.now)
        self.known -= {(item.id, item.claim_no) for item in [*turn.endings, *turn.releases, *turn.starts]}

    @invariant()
    def what_is_open_is_remembered(self) -> None:
        assert self.books.remembered() == self.known
        assert self.books.is_empty == (not self.known and not self.in_flight)


TestNothingIsForgotten = NothingIsForgotten.TestCase
