"""Which workers are dead: decided by one observer, without comparing clocks."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.maintenance.failure_detector import GONE_AFTER_S, FailureDetector

T0 = datetime(2026, 1, 1, tzinfo=UTC)
DEAD_AFTER_S, GAP_S = 10.0, 4.0

gaps = st.integers(1, 32).map(lambda eighths: eighths / 8)  # up to GAP_S; in fractions whose sums are exact


def beat(number: int) -> datetime:
    return T0 + timedelta(seconds=number)


def new_detector() -> FailureDetector:
    return FailureDetector(DEAD_AFTER_S, GAP_S)


@pytest.mark.promise("T2")
def test_a_worker_whose_heartbeat_is_unchanged_for_long_enough_is_dead() -> None:
    detector = new_detector()
    answers = [detector.observe({"a": beat(0)}, now, now) for now in range(0, 13, 2)]
    assert answers == [[], [], [], [], [], ["a"], ["a"]]


@pytest.mark.promise("T2")
@given(pauses=st.lists(gaps, min_size=1, max_size=60))
def test_a_worker_with_a_new_heartbeat_in_every_observation_is_alive(pauses: list[float]) -> None:
    detector, now = new_detector(), 0.0
    for number, pause in enumerate(pauses):
        now += pause
        assert detector.observe({"a": beat(number)}, now, now) == []


@pytest.mark.promise("T2")
@given(
    before=st.floats(0, DEAD_AFTER_S - 0.1),
    outage=st.floats(GAP_S + 0.1, 3_600),
    after=st.floats(0, DEAD_AFTER_S - 0.1),
)
def test_a_gap_in_the_observation_makes_no_worker_dead(before: float, outage: float, after: float) -> None:
    """Silence on either side of an outage never adds up, however long the outage was."""
    detector = new_detector()
    now = _observe_for(detector, 0.0, before)
    now = _observe_for(detector, now + outage, after)
    assert detector.observe({"a": beat(0)}, now, now) == []


def _observe_for(detector: FailureDetector, begin: float, seconds: float) -> float:
    """Observe every second; return the time of the last observation."""
    now = begin
    while True:
        assert detector.observe({"a": beat(0)}, now, now) == []
        if now + 1 > begin + seconds:
            return now
        now += 1


@pytest.mark.promise("T2")
def test_an_outage_makes_no_worker_dead_and_dead_workers_are_still_found_afterwards() -> None:
    detector = new_detector()
    for now in range(9):
        assert detector.observe({"dead": beat(0), "alive": beat(now)}, now, now) == []
    detector.reset()  # the queries of this minute failed
    found = [detector.observe({"dead": beat(0), "alive": beat(now)}, now, now) for now in range(69, 80)]
    assert found == [[]] * 10 + [["dead"]]


@pytest.mark.promise("T2")
def test_an_answer_that_took_long_counts_from_when_it_was_asked_for() -> None:
    """A result that comes late may be as old as its query."""
    detector = new_detector()
    detector.observe({"a": beat(0)}, 0.0, 3.0)
    detector.observe({"a": beat(0)}, 5.0, 6.0)
    detector.observe({"a": beat(0)}, 9.0, 10.0)
    assert detector.observe({"a": beat(0)}, 12.9, 13.9) == []
    assert detector.observe({"a": beat(0)}, 13.0, 14.0) == ["a"]


@given(st.lists(st.tuples(gaps, st.sets(st.sampled_from("abc"))), max_size=60))
def test_no_worker_is_dead_before_its_heartbeat_was_unchanged_for_long_enough(
    looks: list[tuple[float, set[str]]],
) -> None:
    """Compare with a simple model: for each worker, since when its value has been the same in every look."""
    detector, now = new_detector(), 0.0
    values = dict.fromkeys("abc", 0)
    since: dict[str, float] = {}
    for pause, beating in looks:
        now += pause
        for name in beating:
            values[name] += 1
            since.pop(name, None)
        for name in values:
            since.setdefault(name, now)
        dead = detector.observe({name: beat(number) for name, number in values.items()}, now, now)
        assert set(dead) == {name for name in values if now - since[name] >= DEAD_AFTER_S}


def test_a_worker_that_has_left_is_forgotten() -> None:
    detector = new_detector()
    detector.observe({"a": beat(0)}, 0.0, 0.0)
    detector.observe({}, 3.0, 3.0)
    assert detector.observe({"a": beat(0)}, 6.0, 6.0) == []
    assert detector.observe({"a": beat(0)}, 10.0, 10.0) == []


# -- sessions that are gone


@pytest.mark.promise("T2")
def test_a_worker_whose_sessions_are_gone_is_dead_soon() -> None:
    detector = new_detector()
    found = [detector.observe({"a": beat(0)}, now, now, gone) for now, gone in enumerate([(), (), "a", "a", "a", "a"])]
    assert found == [[], [], [], [], ["a"], ["a"]]


@pytest.mark.promise("T2")
def test_sessions_that_come_back_in_time_were_never_gone() -> None:
    detector = new_detector()
    for now in range(9):
        assert detector.observe({"a": beat(0)}, now, now, "a" if now % 3 else ()) == []


@pytest.mark.promise("T2")
def test_a_worker_with_new_heartbeats_is_alive_whatever_its_sessions_show() -> None:
    """Behind a pooler a lock may vanish at any time."""
    detector = new_detector()
    for now in range(30):
        assert detector.observe({"a": beat(now)}, now, now, "a") == []


@pytest.mark.promise("T2")
def test_a_gap_in_the_observation_brings_the_sessions_back() -> None:
    detector = new_detector()
    assert detector.observe({"a": beat(0)}, 0, 0, "a") == []
    assert detector.observe({"a": beat(0)}, 1, 1, "a") == []
    assert detector.observe({"a": beat(0)}, 1 + GAP_S + 1, 1 + GAP_S + 1, "a") == []
    detector.reset()
    assert detector.observe({"a": beat(0)}, 7, 7, "a") == []


@pytest.mark.promise("T2")
@given(st.lists(st.tuples(gaps, st.booleans(), st.booleans()), max_size=60))
def test_no_worker_is_dead_by_its_sessions_before_they_were_gone_for_long_enough(
    looks: list[tuple[float, bool, bool]],
) -> None:
    """Compare with a simple model: since when the sessions have been gone in every look, without a beat."""
    detector, now, number = FailureDetector(1e9, GAP_S), 0.0, 0
    since: float | None = None
    for pause, beats, is_gone in looks:
        now += pause
        number += beats
        since = None if not is_gone else now if beats or since is None else since
        dead = detector.observe({"a": beat(number)}, now, now, "a" if is_gone else ())
        assert dead == (["a"] if since is not None and now - since >= GONE_AFTER_S else [])
