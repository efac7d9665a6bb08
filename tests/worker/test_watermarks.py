from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.task import Claim
from horsies.tasks.claim import EPOCH, LOWEST_PRIORITY, Lane, lanes_from_start
from horsies.worker.watermarks import (
    FEW_LANES,
    HINTED_REST_PER_COST,
    HINTED_REST_S,
    LANES_AT_ONCE,
    LANES_PER_QUEUE,
    LOWER_AT_MOST,
    REMEMBERED,
    REST_PER_COST,
    Watermarks,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def claim(second: float, *, queue: str = "default", priority: int = 100) -> Claim:
    return Claim("id", 1, "add", queue, priority, at(second), 1, "{}")


def told(second: float, *, queue: str = "default", priority: int = 100) -> str:
    """A payload as the trigger writes it."""
    return f"{priority} {int(at(second).timestamp() * 1_000_000)} {queue}"


def marks_of(watermarks: Watermarks, now: float = 0.0) -> list[tuple[str, int, datetime]] | None:
    """Where the next claim begins; None: at the start."""
    return None if watermarks.wants_start(now) else plain(watermarks.lanes(LANES_AT_ONCE))


def plain(lanes: list[Lane]) -> list[tuple[str, int, datetime]]:
    return [(lane.queue_name, lane.priority, lane.watermark) for lane in lanes]


def settled(watermarks: Watermarks) -> Watermarks:
    """Everything from the start has been seen."""
    watermarks.rescanned([], asked=1, sent_at=watermarks.moment, now=0.0, cost_s=0.0)
    return watermarks


def test_the_first_claim_is_made_from_the_start() -> None:
    watermarks = Watermarks(["urgent", "default"])
    assert watermarks.wants_start(0.0)
    assert plain(watermarks.starts()) == [("urgent", LOWEST_PRIORITY, EPOCH), ("default", LOWEST_PRIORITY, EPOCH)]


def test_a_notification_names_the_lane_to_claim_from() -> None:
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(5))
    assert marks_of(watermarks) == [("default", 100, at(5))]


def test_a_mark_rises_to_the_oldest_row_of_the_last_batch() -> None:
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(1))
    watermarks.claimed([claim(7), claim(6), claim(8)], asked=9, sent_at=watermarks.moment)
    assert marks_of(watermarks) == [("default", 100, at(6))]


def test_a_late_commit_lowers_the_mark_again() -> None:
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(9))
    watermarks.heard(told(4))
    watermarks.heard(told(6))
    assert marks_of(watermarks) == [("default", 100, at(4))]


def test_a_claim_sent_before_a_mark_was_lowered_does_not_raise_it() -> None:
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(5))
    sent_at = watermarks.moment
    watermarks.heard(told(2))
    watermarks.claimed([claim(5)], asked=9, sent_at=sent_at)
    assert marks_of(watermarks) == [("default", 100, at(2))]


def test_a_claim_does_not_raise_a_mark_past_a_row_that_was_told_of_while_it_was_under_way() -> None:
    """That row was committed after the claim had looked, though it is older than what the claim has found."""
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(1))
    sent_at = watermarks.moment
    watermarks.heard(told(5))
    watermarks.claimed([claim(6)], asked=9, sent_at=sent_at)
    assert marks_of(watermarks) == [("default", 100, at(5))]
    watermarks.claimed([claim(5)], asked=9, sent_at=watermarks.moment)
    watermarks.claimed([claim(7)], asked=9, sent_at=watermarks.moment)
    assert marks_of(watermarks) == [("default", 100, at(7))]


def test_after_a_claim_that_was_under_way_for_very_many_notifications_there_is_one_from_the_start() -> None:
    """Not all of what it was told of meanwhile is remembered."""
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(1))
    sent_at = watermarks.moment
    for second in range(5, 5 + REMEMBERED + 1):
        watermarks.heard(told(second))
    watermarks.claimed([claim(90)], asked=9, sent_at=sent_at)
    assert marks_of(watermarks) is None, "from the start"
    watermarks.rescanned([], asked=9, sent_at=watermarks.moment, now=0.0, cost_s=0.0)
    assert marks_of(watermarks) == [("default", 100, at(6))]


def test_lanes_come_in_the_order_of_service() -> None:
    watermarks = settled(Watermarks(["urgent", "default"]))
    for payload in (told(1, priority=5), told(2, queue="urgent", priority=90), told(3, queue="urgent", priority=10)):
        watermarks.heard(payload)
    lanes = marks_of(watermarks)
    assert lanes is not None
    assert [lane[:2] for lane in lanes] == [("urgent", 10), ("urgent", 90), ("default", 5)]


def test_where_queues_are_counted_each_begins_at_the_mark_of_its_first_priority() -> None:
    """The lower priorities of a queue follow the first in the same lane, so nothing behind the mark is left out.

    A queue of which nothing was heard begins at its start: a claim that met a cap has not seen what waits there.
    """
    watermarks = settled(Watermarks(["urgent", "quiet", "default"]))
    for payload in (
        told(9, queue="default", priority=100),
        told(1, queue="default", priority=200),
        told(5, queue="urgent", priority=90),
        told(7, queue="urgent", priority=10),
    ):
        watermarks.heard(payload)
    watermarks.claimed([claim(7, queue="urgent", priority=10), claim(9)], asked=9, sent_at=watermarks.moment)
    urgent, quiet, default = watermarks.first_lanes()
    assert plain([urgent, default]) == [("urgent", 10, at(7)), ("default", 100, at(9))]
    assert [quiet] == lanes_from_start(["quiet"])


@pytest.mark.promise("D6")
def test_where_queues_are_counted_a_notification_alone_hides_nothing_that_waits() -> None:
    """A claim that met a cap has seen nothing of this queue, and whoever names a moment in the future may be anyone."""
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(10**9))
    assert watermarks.first_lanes() == lanes_from_start(["default"])


def test_queues_of_others_are_ignored() -> None:
    watermarks = settled(Watermarks(["default"]))
    assert not watermarks.heard(told(1, queue="others"))
    assert watermarks.wants_start(0.0)
    assert watermarks.heard(told(1))
    assert not watermarks.heard(told(1, queue="others"))
    assert marks_of(watermarks) == [("default", 100, at(1))]


UNREADABLE = [
    "",
    "*",
    "nonsense",
    "1 2",
    "1 2 ",
    "a b c",
    "later x",
    f"1 {10**30} default",
    f"1 {10**17 * 9} default",
    f"1 -{10**17 * 9} default",
    "99999999999 1 default",
    "2147483648 1 default",
    "-2147483649 1 default",
    "1_0 1 default",
    "+1 1 default",
    "1.0 1 default",
    "1e1 1 default",
    "\u0663 1 default",
    "1 \u0663 default",
    " 1 1 default",
    "1\t1\tdefault",
    "nan nan default",
    "9" * 7_900,
]


@pytest.mark.promise("D6")
@pytest.mark.parametrize("payload", [None, *UNREADABLE])
def test_what_cannot_be_read_asks_for_a_claim_from_the_start(payload: str | None) -> None:
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(1))
    watermarks.heard(payload)
    assert watermarks.wants_start(HINTED_REST_S)
    assert watermarks.rescan_in_s(HINTED_REST_S) == 0.0
    assert watermarks.lane_count == 1


@pytest.mark.promise("D6")
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
def test_what_a_lane_is_made_of_fits_into_a_statement(text: str) -> None:
    watermarks = settled(Watermarks(["default"]))
    for payload in (text, f"{text} 1 default", f"1 {text} default"):
        watermarks.heard(payload)
    for lane in watermarks.lanes(LANES_AT_ONCE):
        assert -(2**31) <= lane.priority < 2**31
        assert 1 <= lane.watermark.year <= 9999


@pytest.mark.promise("D6")
def test_notifications_cannot_ask_for_one_claim_from_the_start_after_the_other() -> None:
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(1))
    watermarks.heard("*")
    assert watermarks.wants_start(100.0)  # the first one at once
    sent_at = watermarks.moment
    watermarks.heard("*")
    watermarks.rescanned([], asked=1, sent_at=sent_at, now=100.0, cost_s=1.0)
    for _ in range(1_000):
        watermarks.heard("*")
    rest_s = HINTED_REST_PER_COST * 1.0
    assert watermarks.rescan_in_s(100.0) == rest_s
    assert not watermarks.wants_start(100.0 + rest_s - 0.1)
    assert watermarks.wants_start(100.0 + rest_s)


def test_what_is_known_to_be_missed_is_looked_for_at_once() -> None:
    """Our own code says so: a turn has failed, LISTEN was lost, or it is time to poll."""
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(1))
    sent_at = watermarks.moment
    watermarks.heard(None)
    watermarks.rescanned([], asked=1, sent_at=sent_at, now=100.0, cost_s=1.0)
    assert watermarks.wants_start(100.0)


@pytest.mark.promise("D6")
def test_a_notification_lowers_a_mark_by_little_and_what_is_older_is_looked_for_from_the_start() -> None:
    """Where everything has been claimed long ago, only dead entries wait."""
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(100))
    watermarks.claimed([claim(100)], asked=9, sent_at=watermarks.moment)
    for step in range(1, 30):
        watermarks.heard(told(100 - step))
    lowest = at(100) - LOWER_AT_MOST
    assert plain(watermarks.lanes(1)) == [("default", 100, lowest)]
    assert watermarks.wants_start(HINTED_REST_S)
    watermarks.heard(told(5), is_trusted=True)
    assert plain(watermarks.lanes(1)) == [("default", 100, at(5))]


@pytest.mark.promise("D6")
def test_a_notification_of_the_future_does_not_hide_one_of_now() -> None:
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(10**9))
    watermarks.heard(told(1))
    assert marks_of(watermarks) == [("default", 100, at(1))]


def test_a_queue_name_may_have_spaces() -> None:
    watermarks = settled(Watermarks(["a b c"]))
    watermarks.heard(told(1, queue="a b c"))
    assert marks_of(watermarks) == [("a b c", 100, at(1))]


def test_a_filled_claim_leaves_a_claim_from_the_start_to_be_made() -> None:
    watermarks = settled(Watermarks(["default"]))
    watermarks.heard(told(1))
    assert watermarks.rescan_in_s(0.0) is None
    watermarks.claimed([claim(1)], asked=1, sent_at=watermarks.moment)
    assert watermarks.rescan_in_s(0.0) == 0.0
    assert watermarks.wants_start(0.0)


def test_a_claim_from_the_start_that_came_back_short_has_seen_everything() -> None:
    watermarks = Watermarks(["default"])
    watermarks.rescanned([claim(1)], asked=2, sent_at=0, now=0.0, cost_s=0.0)
    assert watermarks.rescan_in_s(0.0) is None
    assert marks_of(watermarks) == [("default", 100, at(1))]


def test_claims_from_the_start_are_rationed_by_what_they_cost() -> None:
    watermarks = Watermarks(["default"])
    watermarks.rescanned([claim(1)], asked=1, sent_at=0, now=100.0, cost_s=2.0)
    rest = 2.0 * REST_PER_COST
    assert watermarks.rescan_in_s(101.0) == pytest.approx(rest - 1)
    assert not watermarks.wants_start(101.0)
    assert watermarks.wants_start(100.0 + rest)


# -- very many lanes

MANY = [f"q{number:03}" for number in range(3 * LANES_AT_ONCE)]


def many_lanes() -> Watermarks:
    """Something waits in each of very many queues."""
    watermarks = settled(Watermarks(MANY))
    for queue in MANY:
        watermarks.heard(told(1, queue=queue))
    return watermarks


def asked_queues(watermarks: Watermarks) -> list[str]:
    return [lane.queue_name for lane in watermarks.lanes(LANES_AT_ONCE)]


def test_of_very_many_lanes_a_claim_asks_the_first_ones() -> None:
    assert asked_queues(many_lanes()) == MANY[:LANES_AT_ONCE]


def test_a_claim_for_few_tasks_asks_few_of_very_many_lanes() -> None:
    asked = [lane.queue_name for lane in many_lanes().lanes(2)]
    assert asked == MANY[:FEW_LANES]


def test_lanes_that_gave_all_they_had_are_not_asked_again() -> None:
    watermarks = many_lanes()
    watermarks.claimed(
        [claim(1, queue=MANY[5])], lanes=watermarks.lanes(LANES_AT_ONCE), asked=1, sent_at=watermarks.moment
    )
    assert asked_queues(watermarks) == MANY[5 : 5 + LANES_AT_ONCE]


def test_when_the_lanes_that_were_asked_gave_too_little_the_others_are_asked() -> None:
    watermarks = many_lanes()
    for first in range(0, len(MANY), LANES_AT_ONCE):
        assert watermarks.are_left
        assert asked_queues(watermarks) == MANY[first : first + LANES_AT_ONCE]
        watermarks.claimed([], lanes=watermarks.lanes(LANES_AT_ONCE), asked=1, sent_at=watermarks.moment)
    assert not watermarks.are_left


def test_a_lane_that_is_told_of_is_asked_again() -> None:
    watermarks = many_lanes()
    watermarks.claimed([], lanes=watermarks.lanes(LANES_AT_ONCE), asked=1, sent_at=watermarks.moment)
    watermarks.heard(told(9, queue=MANY[3]))
    assert plain(watermarks.lanes(LANES_AT_ONCE))[0] == (MANY[3], 100, at(1))


def test_a_claim_sent_before_a_lane_was_told_of_does_not_make_it_sleep() -> None:
    watermarks = many_lanes()
    lanes, sent_at = watermarks.lanes(LANES_AT_ONCE), watermarks.moment
    watermarks.heard(told(9, queue=MANY[3]))
    watermarks.claimed([], lanes=lanes, asked=1, sent_at=sent_at)
    assert asked_queues(watermarks)[0] == MANY[3]


def hinted(watermarks: Watermarks, priorities: range) -> None:
    for priority in priorities:
        watermarks.heard(told(1, priority=priority))


@pytest.mark.promise("D6")
def test_however_many_priorities_are_announced_few_lanes_are_kept_and_nothing_is_lost() -> None:
    watermarks = settled(Watermarks(["urgent", "default"]))
    watermarks.heard(told(1, queue="urgent"))
    hinted(watermarks, range(2**15))
    assert watermarks.lane_count <= LANES_PER_QUEUE + 1
    assert watermarks.wants_start(HINTED_REST_S), "what waits in the lanes that were dropped is found from the start"
    assert ("urgent", 100, at(1)) in plain(watermarks.lanes(LANES_AT_ONCE)), "another queue keeps its own"
    watermarks.rescanned([], asked=1, sent_at=watermarks.moment, now=1.0, cost_s=0.0)
    assert not watermarks.wants_start(1.0)


def test_of_too_many_lanes_those_that_sleep_are_forgotten_first() -> None:
    watermarks = settled(Watermarks(["default"]))
    hinted(watermarks, range(LANES_PER_QUEUE))
    while lanes := [lane for lane in watermarks.lanes(LANES_AT_ONCE) if lane.priority < LANES_PER_QUEUE]:
        watermarks.claimed([], lanes=lanes, asked=1, sent_at=watermarks.moment)
    hinted(watermarks, range(1_000, 1_002))
    assert watermarks.lane_count == 2
    assert marks_of(watermarks) == [("default", 1_000, at(1)), ("default", 1_001, at(1))]


def test_few_lanes_never_sleep() -> None:
    """What a turn itself makes ready, it can claim."""
    watermarks = settled(Watermarks(["urgent", "default"]))
    watermarks.heard(told(1))
    watermarks.claimed([], lanes=watermarks.lanes(LANES_AT_ONCE), asked=1, sent_at=watermarks.moment)
    assert marks_of(watermarks) == [("default", 100, at(1))]
    assert not watermarks.are_left


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=30))
def test_no_row_that_was_told_of_lies_before_its_mark(steps: list[tuple[int, int]]) -> None:
    """Each step sends a claim that takes so many of the oldest, and tells of a row that it has not seen before it comes back, after
    the claim of the next step. What is left can be found.
    """
    watermarks = settled(Watermarks(["default"]))
    waiting: list[int] = []
    flights: list[tuple[list[int], int]] = []
    for second, count in steps:
        flights.append((waiting[:count], watermarks.moment))
        waiting = sorted([*waiting[count:], second])
        watermarks.heard(told(second))
        if len(flights) > 1:
            taken, sent_at = flights.pop(0)
            watermarks.claimed([claim(second) for second in taken], asked=100, sent_at=sent_at)
        lanes = marks_of(watermarks, now=HINTED_REST_S)
        assert lanes is None or all(lanes[0][2] <= at(second) for second in waiting)
