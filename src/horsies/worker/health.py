"""The health of a worker or a scheduler, and whether endpoints show it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from horsies.app import Horsies

LOOP_CHECK_S: Final = 5.0
MISSED_ANSWERS: Final = 3


def endpoints(app: Horsies, health: "HealthCheck", *, host: str, port: int | None) -> AbstractContextManager[None]:
    """Serve HTTP endpoints inside the block; without a port, do nothing. Raise if the port is not available."""
    if port is None:
        return nullcontext()
    # By name: `http.server` takes a megabyte of memory, and most workers have no port.
    return import_module("horsies.worker.http").serve_endpoints(app, health, host=host, port=port)


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Ages are in seconds; None: it has not happened yet."""

    children: int
    children_wanted: int
    slots: int
    running: int
    buffered: int
    memory_bytes: float
    children_memory_bytes: float
    heartbeat_age_s: float | None
    is_leader: bool
    is_polling: bool
    notification_age_s: float | None


class HealthCheck:
    """What the endpoints ask; safe from any thread. A worker or a scheduler sets the attributes as soon as it can answer."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.unready: Callable[[], Iterable[str]] = lambda: ["the database has not been reached yet"]
        """Return why it cannot work now; nothing if it can."""
        self.stats: Callable[[], WorkerStats | None] = lambda: None
        """Return the figures of a worker; those of a scheduler are counted from events."""

    def is_alive(self) -> bool:
        """Whether the event loop runs, or has not been started: a process that waits for its database is alive."""
        if self.loop is None:
            return True
        answered = threading.Event()
        try:
            self.loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return False  # the loop is closed: the process is exiting
        return answered.wait(LOOP_CHECK_S)


def check_database(answered_at: float, interval_s: float, *, is_missing: bool) -> Iterator[str]:
    """Yield a reason if the database, which is queried at least once per interval, has stopped answering."""
    age_s = time.monotonic() - answered_at
    if is_missing or age_s > interval_s * MISSED_ANSWERS:
        yield f"the database has not answered for {age_s:.1f} s"
