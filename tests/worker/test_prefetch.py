import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.worker.plan import PREFETCH_MAX, PREFETCH_US, PrefetchPolicy, child_capacity
from tests.fixtures.dispatching import Child, make_state

durations = st.lists(st.integers(0, 10_000_000), max_size=200)
processes = st.integers(1, 64)


def measured(policy: PrefetchPolicy, duration_us: int, times: int = 5_000) -> PrefetchPolicy:
    for _ in range(times):
        policy.observe(duration_us)
    return policy


def capacity_of(policy: PrefetchPolicy, load: int) -> int:
    """Return how many more tasks a child with this load may be assigned."""
    state = make_state(Child(load=load))
    state.prefetch = policy
    return child_capacity(state)


@given(durations, processes)
def test_without_prefetch_a_child_holds_one_task_whatever_was_measured(durations: list[int], processes: int) -> None:
    policy = PrefetchPolicy(0, processes)
    for duration in durations:
        policy.observe(duration)
    assert policy.child_limit == 1
    assert policy.worker_limit == processes
    assert not policy.has_buffer


@pytest.mark.promise("X2", "X4")
@given(durations, processes, st.integers(2, 5_000), st.sampled_from([0, 7]))
def test_a_child_that_runs_many_at_once_has_a_slot_for_each_whatever_was_measured(
    durations: list[int], processes: int, concurrency: int, prefetch: int
) -> None:
    policy = PrefetchPolicy(prefetch, processes, concurrency)
    for duration in durations:
        policy.observe(duration)
    assert policy.child_limit == concurrency
    assert policy.worker_limit == processes * concurrency + prefetch
    assert capacity_of(policy, concurrency - 1) == 1  # no task waits until several slots are free
    assert capacity_of(policy, concurrency) == 0
    assert not policy.is_adaptive


@pytest.mark.promise("C14", "X4")
@given(durations, processes, st.integers(2, 5_000))
def test_with_auto_a_few_milliseconds_of_work_wait_behind_the_slots(
    durations: list[int], processes: int, concurrency: int
) -> None:
    policy, alone = PrefetchPolicy("auto", processes, concurrency), PrefetchPolicy("auto", processes)
    for duration in durations:
        policy.observe(duration)
        alone.observe(duration)
    assert policy.child_limit - concurrency == alone.child_limit - 1
    assert policy.worker_limit == processes * policy.child_limit
    assert capacity_of(policy, concurrency - 1) == policy.child_limit - concurrency + 1  # a free slot is filled at once
    assert capacity_of(policy, policy.child_limit) == 0


@pytest.mark.promise("C14")
@pytest.mark.parametrize(("duration_us", "held"), [(150, 133), (1_900, 10), (9_900, 2), (20_000, 1), (1_000_000, 1)])
def test_with_auto_a_child_holds_twenty_milliseconds_of_work(duration_us: int, held: int) -> None:
    assert measured(PrefetchPolicy("auto", 2), duration_us).child_limit == held


@pytest.mark.promise("C14")
def test_with_auto_nothing_waits_behind_slots_with_slow_tasks() -> None:
    assert measured(PrefetchPolicy("auto", 2, 128), 20_000).child_limit == 128


def test_tasks_are_short_when_they_take_less_time_than_a_commit() -> None:
    assert not PrefetchPolicy(0, 1).tasks_are_short  # before anything is measured
    policy = measured(PrefetchPolicy(0, 1), 50)
    assert policy.tasks_are_short
    assert not measured(policy, 1_000_000, times=1).tasks_are_short


@pytest.mark.parametrize("prefetch", [5, "auto"])
def test_before_anything_is_measured_a_child_holds_one_task(prefetch: int) -> None:
    assert PrefetchPolicy(prefetch, 2).child_limit == 1


@given(durations, processes)
def test_the_limit_of_a_child_is_at_least_one_and_at_most_prefetch_max(durations: list[int], processes: int) -> None:
    policy = PrefetchPolicy("auto", processes)
    for duration in durations:
        policy.observe(duration)
        assert 1 <= policy.child_limit <= PREFETCH_MAX
        assert policy.worker_limit == processes * policy.child_limit


@pytest.mark.parametrize(
    ("duration_us", "size"), [(10_000_000, 1), (PREFETCH_US, 1), (1_000, 20), (100, 200), (0, PREFETCH_MAX)]
)
def test_a_child_holds_a_few_milliseconds_of_measured_work(duration_us: int, size: int) -> None:
    assert measured(PrefetchPolicy("auto", 1), duration_us).child_limit == pytest.approx(size, abs=1)


def test_slow_tasks_lower_the_limit_soon() -> None:
    policy = measured(PrefetchPolicy("auto", 1), 10)
    assert policy.child_limit > 100
    assert measured(policy, 1_000_000, times=1).child_limit == 1


@given(st.integers(1, 100), processes)
def test_a_number_limits_what_the_worker_holds_beyond_its_slots(prefetch: int, processes: int) -> None:
    policy = measured(PrefetchPolicy(prefetch, processes), 0)
    assert policy.worker_limit == processes + prefetch
    assert policy.has_buffer
    assert (policy.child_limit, policy.child_limit_max, policy.is_adaptive) == (1, 1, False), "RUNNING means begun"


@given(st.integers(0, 300), st.integers(0, 5_000))
def test_the_capacity_of_a_child_never_exceeds_its_limit(load: int, duration_us: int) -> None:
    policy = measured(PrefetchPolicy("auto", 1), duration_us, times=60)
    capacity = capacity_of(policy, load)
    assert capacity >= 0
    assert capacity == 0 or load + capacity == policy.child_limit
    assert capacity_of(policy, 0) == policy.child_limit
