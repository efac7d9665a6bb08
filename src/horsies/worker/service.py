"""What a process has that runs until it is told to stop, be it a worker or a scheduler."""

import asyncio
import logging
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
from horsies.model.config import AppConfig
from horsies.model.errors import BrokerError
from horsies.worker.backoff import Backoff, GaveUp, NothingBegun

_STOPPING: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("horsies.worker")


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
    except NothingBegun as why:
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
        _be_deaf()
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
        _be_deaf()


def _be_deaf() -> None:
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


def cause_of(error: BaseException) -> BaseException:
    """What brought a task group down: the first of its errors."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
