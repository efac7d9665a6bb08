from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.maintenance.leader import GONE_AFTER_S, FailureDetector

T0 = datetime(2026, 1, 1, tzinfo=UTC)
DEAD_AFTER_S, GAP_S = 10.0, 4.0

gaps = st.integers(1, 32).map(lambda eighths: eighths / 8)  # up to GAP_S; in fractions whose sums are exact


def beat(number: int) -> datetime:
    return T0 + timedelta(seconds=number)


def watch() -> FailureDetector:
    return FailureDetector(DEAD_AFTER_S, GAP_S)


@pytest.mark.promise("T2")
def test_a_heartbeat_that_stands_still_for_long_enough_is_death() -> None:
    watching = watch()
    answers = [watching.observe({"a": beat(0)}, now, now) for now in range(0, 13, 2)]
    assert answers == [[], [], [], [], [], ["a"], ["a"]]


@pytest.mark.promise("T2")
@given(pauses=st.lists(gaps, min_size=1, max_size=60))
def test_whoever_beats_between_any_two_looks_lives(pauses: list[float]) -> None:
    watching, now = watch(), 0.0
    for number, pause in enumerate(pauses):
        now += pause
        assert watching.observe({"a": beat(number)}, now, now) == []


@pytest.mark.promise("T2")
@given(
    before=st.floats(0, DEAD_AFTER_S - 0.1),
    outage=st.floats(GAP_S + 0.1, 3_600),
    after=st.floats(0, DEAD_AFTER_S - 0.1),
)
def test_a_gap_in_the_observation_kills_nobody(before: float, outage: float, after: float) -> None:
    """Silence on either side of an outage never adds up, however long the outage was."""
    watching = watch()
    now = _look_for(watching, 0.0, before)
    now = _look_for(watching, now + outage, after)
    assert watching.observe({"a": beat(0)}, now, now) == []


def _look_for(watching: FailureDetector, begin: float, seconds: float) -> float:
    """Looks every second; the moment of the last."""
    now = begin
    while True:
        assert watching.observe({"a": beat(0)}, now, now) == []
        if now + 1 > begin + seconds:
            return now
        now += 1


@pytest.mark.promise("T2")
def test_an_outage_of_a_minute_kills_nobody_and_the_dead_are_still_found_afterwards() -> None:
    watching = watch()
    for now in range(9):
        assert watching.observe({"dead": beat(0), "alive": beat(now)}, now, now) == []
    watching.break_off()  # the questions of this minute failed
    found = [watching.observe({"dead": beat(0), "alive": beat(now)}, now, now) for now in range(69, 80)]
    assert found == [[]] * 10 + [["dead"]]


@pytest.mark.promise("T2")
def test_an_answer_that_took_long_counts_from_when_it_was_asked_for() -> None:
    """What came back at last may be as old as the question."""
    watching = watch()
    watching.observe({"a": beat(0)}, 0.0, 3.0)
    watching.observe({"a": beat(0)}, 5.0, 6.0)
    watching.observe({"a": beat(0)}, 9.0, 10.0)
    assert watching.observe({"a": beat(0)}, 12.9, 13.9) == []
    assert watching.observe({"a": beat(0)}, 13.0, 14.0) == ["a"]


@given(st.lists(st.tuples(gaps, st.sets(st.sampled_from("abc"))), max_size=60))
def test_nobody_dies_who_has_not_been_seen_unchanged_for_long_enough(looks: list[tuple[float, set[str]]]) -> None:
    """Against a plain account: for each worker, since when its value has been the same in every look."""
    watching, now = watch(), 0.0
    values = dict.fromkeys("abc", 0)
    since: dict[str, float] = {}
    for pause, beating in looks:
        now += pause
        for name in beating:
            values[name] += 1
            since.pop(name, None)
        for name in values:
            since.setdefault(name, now)
        dead = watching.observe({name: beat(number) for name, number in values.items()}, now, now)
        assert set(dead) == {name for name in values if now - since[name] >= DEAD_AFTER_S}


def test_a_worker_that_has_left_is_forgotten() -> None:
    watching = watch()
    watching.observe({"a": beat(0)}, 0.0, 0.0)
    watching.observe({}, 3.0, 3.0)
    assert watching.observe({"a": beat(0)}, 6.0, 6.0) == []
    assert watching.observe({"a": beat(0)}, 10.0, 10.0) == []


# -- sessions that are gone


@pytest.mark.promise("T2")
def test_a_worker_whose_sessions_are_gone_is_dead_soon() -> None:
    watching = watch()
    found = [watching.observe({"a": beat(0)}, now, now, gone) for now, gone in enumerate([(), (), "a", "a", "a", "a"])]
    assert found == [[], [], [], [], ["a"], ["a"]]


@pytest.mark.promise("T2")
def test_sessions_that_come_back_in_time_were_never_gone() -> None:
    watching = watch()
    for now in range(9):
        assert watching.observe({"a": beat(0)}, now, now, "a" if now % 3 else ()) == []


@pytest.mark.promise("T2")
def test_whoever_beats_lives_whatever_is_said_of_its_sessions() -> None:
    """Behind a pooler a lock may vanish at any time."""
    watching = watch()
    for now in range(30):
        assert watching.observe({"a": beat(now)}, now, now, "a") == []


@pytest.mark.promise("T2")
def test_a_gap_in_the_observation_brings_the_sessions_back() -> None:
    watching = watch()
    assert watching.observe({"a": beat(0)}, 0, 0, "a") == []
    assert watching.observe({"a": beat(0)}, 1, 1, "a") == []
    assert watching.observe({"a": beat(0)}, 1 + GAP_S + 1, 1 + GAP_S + 1, "a") == []
    watching.break_off()
    assert watching.observe({"a": beat(0)}, 7, 7, "a") == []


@pytest.mark.promise("T2")
@given(st.lists(st.tuples(gaps, st.booleans(), st.booleans()), max_size=60))
def test_nobody_dies_by_sessions_alone_that_were_not_gone_for_long_enough(
    looks: list[tuple[float, bool, bool]],
) -> None:
    """Against a plain account: since when the sessions have been gone in every look, without a beat."""
    watching, now, number = FailureDetector(1e9, GAP_S), 0.0, 0
    since: float | None = None
    for pause, beats, is_gone in looks:
        now += pause
        number += beats
        since = None if not is_gone else now if beats or since is None else since
        dead = watching.observe({"a": beat(number)}, now, now, "a" if is_gone else ())
        assert dead == (["a"] if since is not None and now - since >= GONE_AFTER_S else [])
