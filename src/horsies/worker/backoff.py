"""When to try again after the database has failed us."""

import logging
import random
import time

from horsies.model.errors import BrokerError, HorsiesError
from horsies.model.recovery import WorkerResilienceConfig

CONTENTION_PAUSE_S = 0.02
SHORTEST_PAUSE_S = 0.1
REACHED_LATELY_S = 1.0

log = logging.getLogger("horsies.worker")


class GaveUp(HorsiesError):  # noqa: N818 - it says what happened
    """The database stayed away for longer than this worker was told to wait."""


class NothingBegun(HorsiesError):  # noqa: N818 - the same
    """It was told to stop before there was anything of it in the database, so there is nothing to bring to an end."""


class Backoff:
    """Pauses that grow with each failure in a row, and begin anew after each success.

    A pause because the database could not be reached ends early when it is reached by whatever way. Any other pause is sat out: that the server
    answers somebody else says nothing about a full disk.
    """

    def __init__(self, resilience: WorkerResilienceConfig) -> None:
        self._resilience = resilience
        self._failures = 0
        self._counted_until = 0.0
        self._unreached_since = 0.0
        self._unreached_until = 0.0
        self._others_until = 0.0
        self._reached_at = -REACHED_LATELY_S
        self.until = 0.0
        """On the monotonic clock. Kept, because it is asked for several times per task."""

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def contended(self) -> None:
        """Ordinary contention: the same again in a moment."""
        pause_s = CONTENTION_PAUSE_S * random.uniform(0.5, 1.5)  # noqa: S311 - jitter, no secret
        self._pause(self._unreached_until, max(self._others_until, time.monotonic() + pause_s))

    def failed(self, error: BrokerError, *, unreached: bool = False) -> None:
        """Once more. `unreached`: there was no connection. Raises GaveUp when it was the last time."""
        now = time.monotonic()
        if now < self._counted_until:
            return  # turns that were under way together fail together: that is one failure
        limit = self._resilience.db_retry_max_attempts
        if limit and self._failures >= limit:
            raise GaveUp(f"gave up after {self._failures} failed attempts; the last: {error}") from error
        delay_s = self._resilience.delay_ms(self._failures, random.uniform(-1, 1)) / 1000  # noqa: S311 - jitter
        self._failures += 1
        if unreached and now - self._reached_at < REACHED_LATELY_S:
            self._reached_at = -REACHED_LATELY_S
            delay_s = SHORTEST_PAUSE_S  # the attempt began when the database was still away
        log.warning("the database does not serve, trying again in %.1f s: %s", delay_s, error)
        if unreached:
            self._unreached_since = now
            self._pause(now + delay_s, self._others_until)
        else:
            self._pause(self._unreached_until, max(self._others_until, now + delay_s))
        self._counted_until = now + delay_s

    def reached(self) -> bool:
        """The database can be reached. Whether a pause was cut short by that.

        Never to less than `SHORTEST_PAUSE_S`: whoever gets an answer where we do not must not make us ask without a pause.
        """
        now, until = time.monotonic(), self._unreached_since + SHORTEST_PAUSE_S
        if until >= self._unreached_until or now >= self._unreached_until:
            self._reached_at = now
            return False
        self._pause(until, self._others_until)
        self._counted_until = min(self._counted_until, until)
        return True

    def connected(self) -> None:
        """There is a connection of our own: nothing need be waited for."""
        self._pause(0.0, self._others_until)
        self._counted_until = 0.0

    def succeeded(self) -> None:
        if self._failures:
            log.info("the database serves again")
        self._failures = 0
        if self._unreached_until:
            self._pause(0.0, self._others_until)

    def _pause(self, unreached_until: float, others_until: float) -> None:
        self._unreached_until, self._others_until = unreached_until, others_until
        self.until = max(unreached_until, others_until)


class Rest:
    """When one connection that could not be made may be tried again. The others go on meanwhile."""

    def __init__(self, resilience: WorkerResilienceConfig) -> None:
        self._resilience = resilience
        self._failures = 0
        self.until = 0.0
        """On the monotonic clock."""

    def begin(self) -> None:
        """After a failure."""
        delay_s = self._resilience.delay_ms(self._failures, random.uniform(-1, 1)) / 1000  # noqa: S311 - jitter
        self._failures += 1
        self.until = time.monotonic() + delay_s

    def succeeded(self) -> None:
        self._failures = 0
        self.until = 0.0
