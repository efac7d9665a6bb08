"""The pauses after database failures double, vary, are limited in number, and start again after a success."""

import pytest

from horsies.model.config import WorkerResilienceConfig
from horsies.model.errors import BrokerError
from horsies.worker.service import Backoff, GaveUp

CONFIG = WorkerResilienceConfig(db_retry_initial_ms=500, db_retry_max_ms=30_000)
LOST = BrokerError("of a test", retryable=True)
DOUBLED = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


class Clock:
    """A clock that moves only when a pause is waited for."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def pauses(self, backoff: Backoff, failures: int, *, unreached: bool = False) -> list[float]:
        """Return the pauses of consecutive failures, each after the pause of the one before."""
        found: list[float] = []
        for _ in range(failures):
            backoff.failed(LOST, unreached=unreached)
            found.append(backoff.left_s)
            self.now += backoff.left_s
        return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.promise("W13")
@pytest.mark.parametrize("unreached", [False, True])
def test_pauses_double_with_each_consecutive_failure_up_to_the_maximum(clock: Clock, *, unreached: bool) -> None:
    backoff = Backoff(CONFIG, clock=clock, jitter=lambda: 0.0)
    assert clock.pauses(backoff, 8, unreached=unreached) == pytest.approx(DOUBLED)


@pytest.mark.promise("W13")
def test_pauses_start_again_after_a_success(clock: Clock) -> None:
    backoff = Backoff(CONFIG, clock=clock, jitter=lambda: 0.0)
    clock.pauses(backoff, 5)
    backoff.succeeded()
    assert clock.pauses(backoff, 3) == pytest.approx(DOUBLED[:3])


@pytest.mark.promise("W13")
@pytest.mark.parametrize(("jitter", "factor"), [(-1.0, 0.75), (1.0, 1.25)])
def test_jitter_moves_each_pause_by_a_quarter_at_most(clock: Clock, jitter: float, factor: float) -> None:
    backoff = Backoff(CONFIG, clock=clock, jitter=lambda: jitter)
    expected = [min(pause * factor, 30.0) for pause in DOUBLED]
    assert clock.pauses(backoff, 8) == pytest.approx(expected)


@pytest.mark.promise("W13")
def test_the_jitter_of_a_worker_is_random_and_uses_the_whole_quarter(clock: Clock) -> None:
    first = [clock.pauses(Backoff(CONFIG, clock=clock), 1)[0] for _ in range(500)]
    assert 0.375 <= min(first) < 0.4
    assert 0.6 < max(first) <= 0.625


@pytest.mark.promise("W13")
def test_simultaneous_failures_count_once(clock: Clock) -> None:
    """Batches that are in flight together fail together."""
    backoff = Backoff(CONFIG, clock=clock, jitter=lambda: 0.0)
    for _ in range(10):
        backoff.failed(LOST)
    assert backoff.left_s == pytest.approx(0.5)


@pytest.mark.promise("W13")
def test_it_gives_up_after_the_last_attempt_and_a_success_resets_the_count(clock: Clock) -> None:
    config = WorkerResilienceConfig(db_retry_max_attempts=3)
    backoff = Backoff(config, clock=clock, jitter=lambda: 0.0)
    clock.pauses(backoff, 2)
    backoff.succeeded()
    clock.pauses(backoff, 3)
    with pytest.raises(GaveUp, match="gave up after 3 failed attempts"):
        backoff.failed(LOST)


@pytest.mark.promise("W13")
def test_without_a_limit_it_never_gives_up(clock: Clock) -> None:
    backoff = Backoff(WorkerResilienceConfig(db_retry_max_attempts=0), clock=clock, jitter=lambda: 0.0)
    assert len(clock.pauses(backoff, 20_000)) == 20_000
