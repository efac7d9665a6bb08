"""What a process has that runs until it is told to stop, be it a worker or a scheduler."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import IntEnum
from typing import cast

from horsies.db.broker import PostgresBroker
from horsies.model.config import AppConfig
from horsies.model.errors import BrokerError
from horsies.worker.backoff import Backoff

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


def open_database(broker: PostgresBroker, config: AppConfig) -> None:
    """Wait for the database if it must be, and bring its schema up to date."""
    backoff = Backoff(config.resilience)
    while True:
        try:
            applied = broker.migrate()
        except BrokerError as error:
            if not error.retryable:
                raise
            backoff.failed(error)
            time.sleep(backoff.left_s)
        else:
            if applied:
                log.info("migrations applied: %s", ", ".join(applied))
            return


@contextmanager
def signals(ask: Callable[[], None]) -> Generator[None]:
    """Each of those that ask a process to stop calls this, on the event loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def cause_of(error: BaseException) -> BaseException:
    """What brought a task group down: the first of its errors."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
