"""When to try again after the database has failed us."""

import logging
import random
import time

from horsies.model.errors import BrokerError, HorsiesError
from horsies.model.recovery import WorkerResilienceConfig

CONTENTION_PAUSE_S = 0.02

log = logging.getLogger("horsies.worker")


class GaveUp(HorsiesError):  # noqa: N818 - it says what happened
    """The database stayed away for longer than this worker was told to wait."""


class NothingBegun(HorsiesError):  # noqa: N818 - the same
    """It was told to stop before there was anything of it in the database, so there is nothing to bring to an end."""


class Backoff:
    """Pauses that grow with each failure in a row, and begin anew after each success."""

    def __init__(self, resilience: WorkerResilienceConfig) -> None:
        self._resilience = resilience
        self._failures = 0
        self._counted_until = 0.0
        self.until = 0.0

    def contended(self) -> None:
        """Ordinary contention: the same again in a moment."""
        self._pause(CONTENTION_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, no secret

    def failed(self, error: BrokerError) -> None:
        """Once more. Raises GaveUp when it was the last time."""
        if time.monotonic() < self._counted_until:
            return  # turns that were under way together fail together: that is one failure
        limit = self._resilience.db_retry_max_attempts
        if limit and self._failures >= limit:
            raise GaveUp(f"gave up after {self._failures} failed attempts; the last: {error}") from error
        delay_s = self._resilience.delay_ms(self._failures, random.uniform(-1, 1)) / 1000  # noqa: S311 - jitter
        self._failures += 1
        log.warning("the database does not serve, trying again in %.1f s: %s", delay_s, error)
        self._pause(delay_s)
        self._counted_until = self.until

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def succeeded(self) -> None:
        if self._failures:
            log.info("the database serves again")
        self._failures = 0

    def _pause(self, seconds: float) -> None:
        self.until = max(self.until, time.monotonic() + seconds)
