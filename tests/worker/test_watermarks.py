from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.task import Claim
from horsies.tasks.claim import EPOCH, LOWEST_PRIORITY, Lane, lanes_from_start
from horsies.worker.watermarks import (
    HINTED_PAUSE_PER_COST,
    HINTED_PAUSE_S,
    LANE_LIMITS,
    LOWERED_BY_MAX,
    RESCAN_PAUSE_PER_COST,
    Watermarks,
)

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def claim(second: float, *, queue: str = "default", priority: int = 100) -> Claim:
    return Claim("id", 1, "add", queue, priority, at(second), 1, "{}")


def payload_for(second: float, *, queue: str = "default", priority: int = 100) -> str:
    """Return the payload that the trigger sends."""
    return f"{priority} {int(at(second).timestamp() * 1_000_000)} {queue}"


def claim_positions(watermarks: Watermarks, now: float = 0.0) -> list[tuple[str, int, datetime]] | None:
    """Return where the next claim begins; None for a rescan."""
    return None if is_rescan_due(watermarks, now) else plain(watermarks.lanes(LANE_LIMITS.lanes_per_claim))


def is_rescan_due(watermarks: Watermarks, now: float) -> bool:
    """Return whether the next claim is a rescan."""
    return (watermarks.is_rescan_wanted or not watermarks.lane_count) and now >= watermarks.rescan_not_before


def rescan_in_s(watermarks: Watermarks, now: float) -> float | None:
    """Return how long until a rescan is made even if nothing else happens."""
    return max(0.0, watermarks.rescan_not_before - now) if watermarks.is_rescan_wanted else None


def plain(lanes: list[Lane]) -> list[tuple[str, int, datetime]]:
    return [(lane.queue_name, lane.priority, lane.watermark) for lane in lanes]


def rescanned(watermarks: Watermarks) -> Watermarks:
    """Complete the first rescan."""
    watermarks.on_rescanned([], limit=1, sent_at=watermarks.sequence, now=0.0, cost_s=0.0)
    return watermarks


def test_the_first_claim_is_a_rescan() -> None:
    watermarks = Watermarks(["urgent", "default"])
    assert is_rescan_due(watermarks, 0.0)
    assert plain(lanes_from_start(watermarks.queues)) == [
        ("urgent", LOWEST_PRIORITY, EPOCH),
        ("default", LOWEST_PRIORITY, EPOCH),
    ]


def test_a_notification_names_the_lane_to_claim_from() -> None:
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(5))
    assert claim_positions(watermarks) == [("default", 100, at(5))]


def test_a_watermark_rises_to_the_oldest_row_of_the_last_claim() -> None:
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(1))
    watermarks.on_claimed([claim(7), claim(6), claim(8)], limit=9, sent_at=watermarks.sequence)
    assert claim_positions(watermarks) == [("default", 100, at(6))]


def test_a_late_commit_lowers_the_watermark_again() -> None:
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(9))
    watermarks.add_hint(payload_for(4))
    watermarks.add_hint(payload_for(6))
    assert claim_positions(watermarks) == [("default", 100, at(4))]


def test_a_claim_sent_before_a_watermark_was_lowered_does_not_raise_it() -> None:
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(5))
    sent_at = watermarks.sequence
    watermarks.add_hint(payload_for(2))
    watermarks.on_claimed([claim(5)], limit=9, sent_at=sent_at)
    assert claim_positions(watermarks) == [("default", 100, at(2))]


def test_a_claim_does_not_raise_a_watermark_past_a_row_announced_while_it_was_in_flight() -> None:
    """That row was committed after the claim had read its lane, though it is older than what the claim has found."""
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(1))
    sent_at = watermarks.sequence
    watermarks.add_hint(payload_for(5))
    watermarks.on_claimed([claim(6)], limit=9, sent_at=sent_at)
    assert claim_positions(watermarks) == [("default", 100, at(5))]
    watermarks.on_claimed([claim(5)], limit=9, sent_at=watermarks.sequence)
    watermarks.on_claimed([claim(7)], limit=9, sent_at=watermarks.sequence)
    assert claim_positions(watermarks) == [("default", 100, at(7))]


def test_a_claim_during_which_very_many_notifications_arrived_is_followed_by_a_rescan() -> None:
    """Not all of them are remembered."""
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(1))
    sent_at = watermarks.sequence
    for second in range(5, 5 + LANE_LIMITS.hints_per_lane + 1):
        watermarks.add_hint(payload_for(second))
    watermarks.on_claimed([claim(90)], limit=9, sent_at=sent_at)
    assert claim_positions(watermarks) is None, "from the start"
    watermarks.on_rescanned([], limit=9, sent_at=watermarks.sequence, now=0.0, cost_s=0.0)
    assert claim_positions(watermarks) == [("default", 100, at(6))]


def test_lanes_come_in_the_order_of_service() -> None:
    watermarks = rescanned(Watermarks(["urgent", "default"]))
    for payload in (
        payload_for(1, priority=5),
        payload_for(2, queue="urgent", priority=90),
        payload_for(3, queue="urgent", priority=10),
    ):
        watermarks.add_hint(payload)
    lanes = claim_positions(watermarks)
    assert lanes is not None
    assert [lane[:2] for lane in lanes] == [("urgent", 10), ("urgent", 90), ("default", 5)]


def test_with_caps_each_queue_begins_at_the_watermark_of_its_first_priority() -> None:
    """The lower priorities of a queue follow the first in the same lane, so no row behind the watermark is left out.

    A queue without a notification begins at its start: a claim that met a cap has not seen what waits there.
    """
    watermarks = rescanned(Watermarks(["urgent", "quiet", "default"]))
    for payload in (
        payload_for(9, queue="default", priority=100),
        payload_for(1, queue="default", priority=200),
        payload_for(5, queue="urgent", priority=90),
        payload_for(7, queue="urgent", priority=10),
    ):
        watermarks.add_hint(payload)
    watermarks.on_claimed([claim(7, queue="urgent", priority=10), claim(9)], limit=9, sent_at=watermarks.sequence)
    urgent, quiet, default = watermarks.queue_lanes()
    assert plain([urgent, default]) == [("urgent", 10, at(7)), ("default", 100, at(9))]
    assert [quiet] == lanes_from_start(["quiet"])


@pytest.mark.promise("D6")
def test_with_caps_a_notification_alone_hides_no_row() -> None:
    """A claim that met a cap has not read this queue, and a forged notification may name a time in the future."""
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(10**9))
    assert watermarks.queue_lanes() == lanes_from_start(["default"])


def test_notifications_for_other_queues_are_ignored() -> None:
    watermarks = rescanned(Watermarks(["default"]))
    assert not watermarks.add_hint(payload_for(1, queue="others"))
    assert is_rescan_due(watermarks, 0.0)
    assert watermarks.add_hint(payload_for(1))
    assert not watermarks.add_hint(payload_for(1, queue="others"))
    assert claim_positions(watermarks) == [("default", 100, at(1))]


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
def test_a_payload_that_cannot_be_parsed_requests_a_rescan(payload: str | None) -> None:
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(1))
    watermarks.add_hint(payload)
    assert is_rescan_due(watermarks, HINTED_PAUSE_S)
    assert rescan_in_s(watermarks, HINTED_PAUSE_S) == 0.0
    assert watermarks.lane_count == 1


@pytest.mark.promise("D6")
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
def test_the_values_of_a_lane_fit_into_a_statement(text: str) -> None:
    watermarks = rescanned(Watermarks(["default"]))
    for payload in (text, f"{text} 1 default", f"1 {text} default"):
        watermarks.add_hint(payload)
    for lane in watermarks.lanes(LANE_LIMITS.lanes_per_claim):
        assert -(2**31) <= lane.priority < 2**31
        assert 1 <= lane.watermark.year <= 9999


@pytest.mark.promise("D6")
def test_notifications_cannot_cause_one_rescan_after_another() -> None:
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(1))
    watermarks.add_hint("*")
    assert is_rescan_due(watermarks, 100.0)  # the first one at once
    sent_at = watermarks.sequence
    watermarks.add_hint("*")
    watermarks.on_rescanned([], limit=1, sent_at=sent_at, now=100.0, cost_s=1.0)
    for _ in range(1_000):
        watermarks.add_hint("*")
    rest_s = HINTED_PAUSE_PER_COST * 1.0
    assert rescan_in_s(watermarks, 100.0) == rest_s
    assert not is_rescan_due(watermarks, 100.0 + rest_s - 0.1)
    assert is_rescan_due(watermarks, 100.0 + rest_s)


def test_a_rescan_requested_by_the_worker_itself_is_due_at_once() -> None:
    """A batch has failed, LISTEN was lost, or it is time to poll."""
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(1))
    sent_at = watermarks.sequence
    watermarks.request_rescan()
    watermarks.on_rescanned([], limit=1, sent_at=sent_at, now=100.0, cost_s=1.0)
    assert is_rescan_due(watermarks, 100.0)


@pytest.mark.promise("D6")
def test_a_notification_lowers_a_watermark_by_little_and_an_older_row_causes_a_rescan() -> None:
    """Where everything was claimed long ago there are only dead entries."""
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(100))
    watermarks.on_claimed([claim(100)], limit=9, sent_at=watermarks.sequence)
    for step in range(1, 30):
        watermarks.add_hint(payload_for(100 - step))
    lowest = at(100) - LOWERED_BY_MAX
    assert plain(watermarks.lanes(1)) == [("default", 100, lowest)]
    assert is_rescan_due(watermarks, HINTED_PAUSE_S)
    watermarks.add_hint(payload_for(5), is_trusted=True)
    assert plain(watermarks.lanes(1)) == [("default", 100, at(5))]


@pytest.mark.promise("D6")
def test_a_notification_with_a_future_time_does_not_hide_one_with_the_present_time() -> None:
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(10**9))
    watermarks.add_hint(payload_for(1))
    assert claim_positions(watermarks) == [("default", 100, at(1))]


def test_a_queue_name_may_have_spaces() -> None:
    watermarks = rescanned(Watermarks(["a b c"]))
    watermarks.add_hint(payload_for(1, queue="a b c"))
    assert claim_positions(watermarks) == [("a b c", 100, at(1))]


def test_after_a_filled_claim_a_rescan_is_due() -> None:
    watermarks = rescanned(Watermarks(["default"]))
    watermarks.add_hint(payload_for(1))
    assert rescan_in_s(watermarks, 0.0) is None
    watermarks.on_claimed([claim(1)], limit=1, sent_at=watermarks.sequence)
    assert rescan_in_s(watermarks, 0.0) == 0.0
    assert is_rescan_due(watermarks, 0.0)


def test_a_rescan_that_was_not_filled_has_seen_everything() -> None:
    watermarks = Watermarks(["default"])
    watermarks.on_rescanned([claim(1)], limit=2, sent_at=0, now=0.0, cost_s=0.0)
    assert rescan_in_s(watermarks, 0.0) is None
    assert claim_positions(watermarks) == [("default", 100, at(1))]


def test_the_pause_between_rescans_grows_with_their_cost() -> None:
    watermarks = Watermarks(["default"])
    watermarks.on_rescanned([claim(1)], limit=1, sent_at=0, now=100.0, cost_s=2.0)
    rest = 2.0 * RESCAN_PAUSE_PER_COST
    assert rescan_in_s(watermarks, 101.0) == pytest.approx(rest - 1)
    assert not is_rescan_due(watermarks, 101.0)
    assert is_rescan_due(watermarks, 100.0 + rest)


# -- very many lanes

MANY = [f"q{number:03}" for number in range(3 * LANE_LIMITS.lanes_per_claim)]


def many_lanes() -> Watermarks:
    """Return watermarks with a row in each of very many queues."""
    watermarks = rescanned(Watermarks(MANY))
    for queue in MANY:
        watermarks.add_hint(payload_for(1, queue=queue))
    return watermarks


def claimed_queues(watermarks: Watermarks) -> list[str]:
    return [lane.queue_name for lane in watermarks.lanes(LANE_LIMITS.lanes_per_claim)]


def test_a_claim_reads_only_the_first_of_very_many_lanes() -> None:
    assert claimed_queues(many_lanes()) == MANY[: LANE_LIMITS.lanes_per_claim]


def test_a_claim_for_few_tasks_reads_few_of_very_many_lanes() -> None:
    asked = [lane.queue_name for lane in many_lanes().lanes(2)]
    assert asked == MANY[: LANE_LIMITS.lanes_per_claim_min]


def test_empty_lanes_are_not_read_again() -> None:
    watermarks = many_lanes()
    watermarks.on_claimed(
        [claim(1, queue=MANY[5])],
        lanes=watermarks.lanes(LANE_LIMITS.lanes_per_claim),
        limit=1,
        sent_at=watermarks.sequence,
    )
    assert claimed_queues(watermarks) == MANY[5 : 5 + LANE_LIMITS.lanes_per_claim]


def test_when_the_first_lanes_have_too_few_rows_the_others_are_read() -> None:
    watermarks = many_lanes()
    for first in range(0, len(MANY), LANE_LIMITS.lanes_per_claim):
        assert watermarks.has_more_lanes
        assert claimed_queues(watermarks) == MANY[first : first + LANE_LIMITS.lanes_per_claim]
        watermarks.on_claimed(
            [], lanes=watermarks.lanes(LANE_LIMITS.lanes_per_claim), limit=1, sent_at=watermarks.sequence
        )
    assert not watermarks.has_more_lanes


def test_a_lane_with_a_new_notification_is_read_again() -> None:
    watermarks = many_lanes()
    watermarks.on_claimed([], lanes=watermarks.lanes(LANE_LIMITS.lanes_per_claim), limit=1, sent_at=watermarks.sequence)
    watermarks.add_hint(payload_for(9, queue=MANY[3]))
    assert plain(watermarks.lanes(LANE_LIMITS.lanes_per_claim))[0] == (MANY[3], 100, at(1))


def test_a_claim_sent_before_a_notification_does_not_put_its_lane_to_sleep() -> None:
    watermarks = many_lanes()
    lanes, sent_at = watermarks.lanes(LANE_LIMITS.lanes_per_claim), watermarks.sequence
    watermarks.add_hint(payload_for(9, queue=MANY[3]))
    watermarks.on_claimed([], lanes=lanes, limit=1, sent_at=sent_at)
    assert claimed_queues(watermarks)[0] == MANY[3]


def add_hints(watermarks: Watermarks, priorities: range) -> None:
    for priority in priorities:
        watermarks.add_hint(payload_for(1, priority=priority))


@pytest.mark.promise("D6")
def test_with_very_many_priorities_few_lanes_are_kept_and_no_row_is_lost() -> None:
    watermarks = rescanned(Watermarks(["urgent", "default"]))
    watermarks.add_hint(payload_for(1, queue="urgent"))
    add_hints(watermarks, range(2**15))
    assert watermarks.lane_count <= LANE_LIMITS.lanes_per_queue + 1
    assert is_rescan_due(watermarks, HINTED_PAUSE_S), "rows in dropped lanes are found by a rescan"
    assert ("urgent", 100, at(1)) in plain(watermarks.lanes(LANE_LIMITS.lanes_per_claim)), (
        "another queue keeps its lanes"
    )
    watermarks.on_rescanned([], limit=1, sent_at=watermarks.sequence, now=1.0, cost_s=0.0)
    assert not is_rescan_due(watermarks, 1.0)


def test_sleeping_lanes_are_dropped_first_when_there_are_too_many() -> None:
    watermarks = rescanned(Watermarks(["default"]))
    add_hints(watermarks, range(LANE_LIMITS.lanes_per_queue))
    while lanes := [
        lane for lane in watermarks.lanes(LANE_LIMITS.lanes_per_claim) if lane.priority < LANE_LIMITS.lanes_per_queue
    ]:
        watermarks.on_claimed([], lanes=lanes, limit=1, sent_at=watermarks.sequence)
    add_hints(watermarks, range(1_000, 1_002))
    assert watermarks.lane_count == 2
    assert claim_positions(watermarks) == [("default", 1_000, at(1)), ("default", 1_001, at(1))]


def test_few_lanes_never_sleep() -> None:
    """So a batch can claim what it makes ready itself."""
    watermarks = rescanned(Watermarks(["urgent", "default"]))
    watermarks.add_hint(payload_for(1))
    watermarks.on_claimed([], lanes=watermarks.lanes(LANE_LIMITS.lanes_per_claim), limit=1, sent_at=watermarks.sequence)
    assert claim_positions(watermarks) == [("default", 100, at(1))]
    assert not watermarks.has_more_lanes


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=30))
def test_no_announced_row_lies_before_its_watermark(steps: list[tuple[int, int]]) -> None:
    """Each step sends a claim that takes that number of the oldest rows, and announces a row that it has not seen before it is answered, after
    the claim of the next step. What is left can be found.
    """
    watermarks = rescanned(Watermarks(["default"]))
    waiting: list[int] = []
    flights: list[tuple[list[int], int]] = []
    for second, count in steps:
        flights.append((waiting[:count], watermarks.sequence))
        waiting = sorted([*waiting[count:], second])
        watermarks.add_hint(payload_for(second))
        if len(flights) > 1:
            taken, sent_at = flights.pop(0)
            watermarks.on_claimed([claim(second) for second in taken], limit=100, sent_at=sent_at)
        lanes = claim_positions(watermarks, now=HINTED_PAUSE_S)
        assert lanes is None or all(lanes[0][2] <= at(second) for second in waiting)
