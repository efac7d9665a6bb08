import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.worker.prefetch import PREFETCH_MAX, PREFETCH_US, PrefetchPolicy

durations = st.lists(st.integers(0, 10_000_000), max_size=200)
processes = st.integers(1, 64)


def measured(frames: PrefetchPolicy, duration_us: int, times: int = 5_000) -> PrefetchPolicy:
    for _ in range(times):
        frames.observe(duration_us)
    return frames


@given(durations, processes)
def test_without_prefetch_a_child_holds_one_task_whatever_was_measured(durations: list[int], processes: int) -> None:
    frames = PrefetchPolicy(0, processes)
    for duration in durations:
        frames.observe(duration)
    assert frames.size == 1
    assert frames.ceiling == processes
    assert not frames.buffers


@pytest.mark.promise("X2", "X4")
@given(durations, processes, st.integers(2, 5_000), st.sampled_from([0, 7]))
def test_a_child_that_runs_many_at_once_has_a_place_for_each_whatever_was_measured(
    durations: list[int], processes: int, concurrency: int, prefetch: int
) -> None:
    frames = PrefetchPolicy(prefetch, processes, concurrency)
    for duration in durations:
        frames.observe(duration)
    assert frames.size == concurrency
    assert frames.ceiling == processes * concurrency + prefetch
    assert frames.room(concurrency - 1) == 1  # nobody waits until half of the places are free
    assert frames.room(concurrency) == 0
    assert not frames.is_framed


def test_tasks_are_tiny_when_they_take_less_time_than_a_commit() -> None:
    assert not PrefetchPolicy(0, 1).are_tiny  # before anything is measured
    frames = measured(PrefetchPolicy(0, 1), 50)
    assert frames.are_tiny
    assert not measured(frames, 1_000_000, times=1).are_tiny


@pytest.mark.parametrize("prefetch", [5, "auto"])
def test_before_anything_is_measured_a_frame_is_one_task(prefetch: int) -> None:
    assert PrefetchPolicy(prefetch, 2).size == 1


@given(durations, processes)
def test_a_frame_is_never_empty_and_never_huge(durations: list[int], processes: int) -> None:
    frames = PrefetchPolicy("auto", processes)
    for duration in durations:
        frames.observe(duration)
        assert 1 <= frames.size <= PREFETCH_MAX
        assert frames.ceiling == processes * frames.size


@pytest.mark.parametrize(
    ("duration_us", "size"), [(10_000_000, 1), (PREFETCH_US, 1), (1_000, 20), (100, 200), (0, PREFETCH_MAX)]
)
def test_a_frame_holds_a_few_milliseconds_of_measured_work(duration_us: int, size: int) -> None:
    assert measured(PrefetchPolicy("auto", 1), duration_us).size == pytest.approx(size, abs=1)


def test_slow_tasks_shrink_the_frames_soon() -> None:
    frames = measured(PrefetchPolicy("auto", 1), 10)
    assert frames.size > 100
    assert measured(frames, 1_000_000, times=1).size == 1


@given(st.integers(1, 100), processes)
def test_a_number_bounds_what_the_worker_holds_beyond_its_children(prefetch: int, processes: int) -> None:
    frames = measured(PrefetchPolicy(prefetch, processes), 0)
    assert frames.ceiling == processes + prefetch
    assert frames.buffers
    assert (frames.size, frames.most, frames.is_framed) == (1, 1, False), "RUNNING means begun"


@given(st.integers(0, 300), st.integers(0, 5_000))
def test_the_room_beside_a_load_never_overfills_a_frame(load: int, duration_us: int) -> None:
    frames = measured(PrefetchPolicy("auto", 1), duration_us, times=60)
    room = frames.room(load)
    assert room >= 0
    assert room == 0 or load + room == frames.size
    assert frames.room(0) == frames.size
