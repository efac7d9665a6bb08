"""What a process has that runs until it is told to stop, be it a worker or a scheduler."""

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

# --------
# When to try again after the database has failed us.

CONTENTION_PAUSE_S = 0.02
SHORTEST_PAUSE_S = 0.1
REACHED_LATELY_S = 1.0

log = logging.getLogger("horsies.worker")


def random_jitter() -> float:
    return random.uniform(-1, 1)  # noqa: S311 - jitter, no secret


class GaveUp(HorsiesError):  # noqa: N818 - it says what happened
    """The database stayed away for longer than this worker was told to wait."""


class NothingStarted(HorsiesError):  # noqa: N818 - the same
    """It was told to stop before there was anything of it in the database, so there is nothing to bring to an end."""


class Backoff:
    """Pauses that grow with each failure in a row, and begin anew after each success.

    A pause because the database could not be reached ends early when it is reached by whatever way. Any other pause is sat out: that the server
    answers somebody else says nothing about a full disk.
    """

    def __init__(
        self,
        resilience: WorkerResilienceConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random_jitter,
    ) -> None:
        self._resilience = resilience
        self._clock = clock
        self._jitter = jitter
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
        return max(0.0, self.until - self._clock())

    def contended(self) -> None:
        """Ordinary contention: the same again in a moment."""
        pause_s = CONTENTION_PAUSE_S * (1 + self._jitter() / 2)
        self._pause(self._unreached_until, max(self._others_until, self._clock() + pause_s))

    def failed(self, error: BrokerError, *, unreached: bool = False) -> None:
        """Once more. `unreached`: there was no connection. Raises GaveUp when it was the last time."""
        now = self._clock()
        if now < self._counted_until:
            return  # turns that were under way together fail together: that is one failure
        limit = self._resilience.db_retry_max_attempts
        if limit and self._failures >= limit:
            raise GaveUp(f"gave up after {self._failures} failed attempts; the last: {error}") from error
        delay_s = self._resilience.delay_ms(self._failures, self._jitter()) / 1000
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
        now, until = self._clock(), self._unreached_since + SHORTEST_PAUSE_S
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


class ConnectionPause:
    """When one connection that could not be made may be tried again. The others go on meanwhile."""

    def __init__(self, resilience: WorkerResilienceConfig) -> None:
        self._resilience = resilience
        self._failures = 0
        self.until = 0.0
        """On the monotonic clock."""

    def begin(self) -> None:
        """After a failure."""
        delay_s = self._resilience.delay_ms(self._failures, random_jitter()) / 1000
        self._failures += 1
        self.until = time.monotonic() + delay_s

    def succeeded(self) -> None:
        self._failures = 0
        self.until = 0.0


_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)


class ExitCode(IntEnum):
    """How it ended, for whoever started it."""

    CLEAN = 0
    FAILED = 1
    """It could not start, or not go on."""
    KILLED_TASKS = 3
    """It stopped as asked, but had to interrupt tasks that did not end in time."""
    GAVE_UP = 4
    """The database stayed away for longer than it was told to wait."""


class StoppedEarly(BaseException):
    """It was told to stop while it waited for its database."""


def serve(app: Horsies, run: Callable[[], ExitCode], log: logging.Logger, *, owns_app: bool = True) -> ExitCode:
    """Run it to its end, and leave no connection behind, unless the app belongs to a program that goes on using it."""
    try:
        return run()
    except GaveUp as error:
        log.error("%s", error)  # noqa: TRY400 - it is no bug, and its words say it all
        return ExitCode.GAVE_UP
    except NothingStarted as why:
        log.info("stopped: %s", why)
        return ExitCode.CLEAN
    except StoppedEarly:
        log.info("stopped")
        return ExitCode.CLEAN
    finally:
        if owns_app:
            app.close()


def open_database(broker: PostgresBroker, config: AppConfig, asked: threading.Event | None = None) -> None:
    """Wait for the database if it must be, and bring its schema up to date. A signal ends the wait, or else `asked`, where it is given."""
    backoff = Backoff(config.resilience)
    with _leaving_at_once() if asked is None else nullcontext():
        while True:
            if asked is not None and asked.is_set():
                raise StoppedEarly
            try:
                applied = broker.migrate()
            except BrokerError as error:
                if not error.retryable:
                    raise
                backoff.failed(error)
                if asked is None:
                    time.sleep(backoff.left_s)
                else:
                    asked.wait(backoff.left_s)
            else:
                break
    if applied:
        log.info("migrations applied: %s", ", ".join(applied))


@contextmanager
def _leaving_at_once() -> Generator[None]:
    """There is no event loop yet, and nothing to bring to an end."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        _ignore_signals()
        raise StoppedEarly

    former = {number: signal.signal(number, leave) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in former.items():
            if signal.getsignal(number) is leave:
                signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def signals(ask: Callable[[], None]) -> Generator[None]:
    """Each of those that ask a process to stop calls this, on the event loop. After that they change nothing: it is leaving."""
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, ask)
    try:
        yield
    finally:
        for number in _STOPPING:
            loop.remove_signal_handler(number)
        _ignore_signals()


def _ignore_signals() -> None:
    """Or one more Ctrl-C, while the last connections are closed, would kill a process that has done all it was asked to."""
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def signals_restored() -> Generator[None]:
    """For a process that goes on afterwards."""
    former = {number: signal.getsignal(number) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler or signal.SIG_DFL)


def root_cause(error: BaseException) -> BaseException:
    """What brought a task group down: the first of its errors."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
