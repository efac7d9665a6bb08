"""What every long-running process shares, be it a worker or a scheduler: exit codes, signals, waiting for the database, pauses after its errors."""

import asyncio
import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from enum import IntEnum
from types import FrameType
from typing import Final, cast

from horsies.app import Horsies
from horsies.db.broker import PostgresBroker
from horsies.model.config import AppConfig, WorkerResilienceConfig
from horsies.model.errors import BrokerError, HorsiesError

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("horsies.worker")


class ExitCode(IntEnum):
    CLEAN = 0
    FAILED = 1
    """It could not start, or could not continue."""
    KILLED_TASKS = 3
    """It stopped as requested, but had to interrupt tasks that did not end in time."""
    GAVE_UP = 4
    """The database failed more often in a row than `db_retry_max_attempts` allows, or results could not be saved at the end of a shutdown."""


class GaveUp(HorsiesError):  # noqa: N818 - the name says what happened
    """The database failed too often in a row, or results could not be saved at the end of a shutdown."""


class StoppedEarly(BaseException):
    """It was asked to stop before it had written anything to the database. Not an Exception: a signal handler raises it anywhere."""


def serve(app: Horsies, run: Callable[[], ExitCode], log: logging.Logger, *, owns_app: bool = True) -> ExitCode:
    """Run a process to its end, and close the app's connections unless its program continues to use them."""
    try:
        return run()
    except GaveUp as error:
        log.error("%s", error)  # noqa: TRY400 - not a bug, and the message is complete
        return ExitCode.GAVE_UP
    except StoppedEarly as error:
        log.info("stopped%s", f": {error}" if str(error) else "")
        return ExitCode.CLEAN
    finally:
        if owns_app:
            app.close()


def open_database(
    broker: PostgresBroker, config: AppConfig, stop: threading.Event | None = None, *, migrate: bool = True
) -> None:
    """Wait for the database, and migrate its schema or require that it is current. `stop` ends the wait if it is given, otherwise a signal does."""
    backoff, applied = Backoff(config.resilience), list[str]()
    with _signals_raise() if stop is None else nullcontext():
        stop = stop or threading.Event()
        while not stop.is_set():
            try:
                if migrate:
                    applied = broker.migrate()
                else:
                    broker.require_schema()
            except BrokerError as error:
                if not error.retryable:
                    raise
                backoff.failed(error)
                stop.wait(backoff.left_s)
            else:
                break
        else:
            raise StoppedEarly
    if applied:
        log.info("migrations applied: %s", ", ".join(applied))


@contextmanager
def _signals_raise() -> Generator[None]:
    """Raise StoppedEarly at the first signal: there is no event loop yet, and nothing to finish."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        _ignore_signals()
        raise StoppedEarly

    former = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            if signal.getsignal(number) is on_signal:  # else one has arrived, and signals stay ignored
                signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def signals(on_signal: Callable[[], None]) -> Generator[None]:
    """Call `on_signal` on the event loop for each signal to stop. Afterwards the signals are ignored: the process is exiting."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
        _ignore_signals()


def _ignore_signals() -> None:
    # Otherwise one more Ctrl-C, while the last connections are closed, would kill a process that has stopped as requested.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def signals_restored() -> Generator[None]:
    """Restore the signal handlers at the end, for a process that continues after its worker."""
    former = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler or signal.SIG_DFL)


def root_cause(error: BaseException) -> BaseException:
    """Return the first error of a task group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


CONTENTION_PAUSE_S: Final = 0.02
SHORTEST_PAUSE_S: Final = 0.1
REACHED_LATELY_S: Final = 1.0


def random_jitter() -> float:
    return random.uniform(-1, 1)  # noqa: S311 - jitter, no secret


class Backoff:
    """Pauses after database errors, longer after each failure in a row.

    A pause because the database could not be reached ends early when another connection reaches it. Any other pause lasts its full time: that the server
    answers other queries says nothing about a full disk.
    """

    def __init__(
        self,
        resilience: WorkerResilienceConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random_jitter,
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._resilience = resilience
        self.failures = 0
        """In a row."""
        self._counted_until = 0.0
        self._unreached_since = 0.0
        self._unreached_until = 0.0
        self._others_until = 0.0
        self._reached_at = -REACHED_LATELY_S
        self.until = 0.0
        """On the monotonic clock. A plain attribute, because it is read several times per task."""

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - self._clock())

    def contended(self) -> None:
        """Pause for a moment, after ordinary contention."""
        pause_s = CONTENTION_PAUSE_S * (1 + self._jitter() / 2)
        self._pause(self._unreached_until, max(self._others_until, self._clock() + pause_s))

    def failed(self, error: BrokerError, *, unreached: bool = False) -> None:
        """Pause after a failure; `unreached`: there was no connection. Raise GaveUp if it was the last attempt."""
        now = self._clock()
        if now < self._counted_until:
            return  # batches that were in flight together fail together: count them once
        limit = self._resilience.db_retry_max_attempts
        if limit and self.failures >= limit:
            raise GaveUp(f"gave up after {self.failures} failed attempts; the last: {error}") from error
        delay_s = self._resilience.delay_ms(self.failures, self._jitter()) / 1000
        self.failures += 1
        if unreached and now - self._reached_at < REACHED_LATELY_S:
            self._reached_at = -REACHED_LATELY_S
            delay_s = SHORTEST_PAUSE_S  # this attempt began before the database was back
        log.warning("database unavailable, retrying in %.1f s: %s", delay_s, error)
        if unreached:
            self._unreached_since = now
            self._pause(now + delay_s, self._others_until)
        else:
            self._pause(self._unreached_until, max(self._others_until, now + delay_s))
        self._counted_until = now + delay_s

    def reached(self) -> bool:
        """End the pause of an unreached database, because another connection has reached it. Return whether that shortened it.

        A pause is never shorter than `SHORTEST_PAUSE_S`: if only the other connection gets answers, we must not retry without a pause.
        """
        now, until = self._clock(), self._unreached_since + SHORTEST_PAUSE_S
        if until >= self._unreached_until or now >= self._unreached_until:
            self._reached_at = now
            return False
        self._pause(until, self._others_until)
        self._counted_until = min(self._counted_until, until)
        return True

    def connected(self) -> None:
        """End the pause of an unreached database at once: we have a connection ourselves."""
        self._pause(0.0, self._others_until)
        self._counted_until = 0.0

    def succeeded(self) -> None:
        if self.failures:
            log.info("database available again")
        self.failures = 0
        if self._unreached_until:
            self._pause(0.0, self._others_until)

    def _pause(self, unreached_until: float, others_until: float) -> None:
        self._unreached_until, self._others_until = unreached_until, others_until
        self.until = max(unreached_until, others_until)


class ConnectionPause:
    """When one connection that could not be opened may be tried again. The other connections continue."""

    def __init__(self, resilience: WorkerResilienceConfig) -> None:
        self._resilience = resilience
        self._failures = 0
        self.until = 0.0
        """On the monotonic clock."""

    def begin(self) -> None:
        delay_s = self._resilience.delay_ms(self._failures, random_jitter()) / 1000
        self._failures += 1
        self.until = time.monotonic() + delay_s

    def succeeded(self) -> None:
        self._failures = 0
        self.until = 0.0
