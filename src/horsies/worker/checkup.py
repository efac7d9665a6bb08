"""A look at this worker from outside: is it alive, is it ready, and in numbers how it does. Safe from any thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from horsies.db.listen import Listener
from horsies.keeper.keep import Keeper
from horsies.worker.books import Books
from horsies.worker.health import Health
from horsies.worker.heartbeat import Heartbeat
from horsies.worker.pool import Pool

LOOP_ANSWER_S = 5.0
MISSED_BEATS = 3


@dataclass(frozen=True, slots=True)
class Subject:
    """Who is looked at: the services of one incarnation."""

    books: Books
    pool: Pool
    heartbeat: Heartbeat
    keeper: Keeper
    listener: Callable[[], Listener]
    is_stopping: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Vitals:
    """The worker in numbers. Ages are in seconds; None: it has not happened yet."""

    children: int
    children_wanted: int
    slots: int
    running: int
    buffered: int
    memory_bytes: float
    children_memory_bytes: float
    heartbeat_age_s: float | None
    is_keeper: bool
    is_deaf: bool
    notification_age_s: float | None


class Checkup:
    """`loop` and `subject` are set as soon as there are any."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.subject: Subject | None = None
        self._health = Health()

    def is_alive(self) -> bool:
        """The event loop turns, or has not been started: a worker that waits for its database lives."""
        if self.loop is None:
            return True
        answered = threading.Event()
        try:
            self.loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return False  # it is closed: the worker has ended
        return answered.wait(LOOP_ANSWER_S)

    def unready(self) -> list[str]:
        """Why this worker cannot take tasks now; nothing: it can."""
        return ["the database has not been reached yet"] if self.subject is None else list(_reasons(self.subject))

    def vitals(self) -> Vitals | None:
        if self.subject is None:
            return None
        books, listener, now = self.subject.books, self.subject.listener(), time.monotonic()
        children = self._health.children([member.pid for member in list(books.roster)])
        return Vitals(
            children=self.subject.pool.ready_count,
            children_wanted=books.frames.processes,
            slots=books.frames.processes * books.frames.concurrency,
            running=books.running_count,
            buffered=len(books.buffer),
            memory_bytes=self._health.parent().memory_mb * (1 << 20),
            children_memory_bytes=children.memory_mb * (1 << 20),
            heartbeat_age_s=_age(self.subject.heartbeat.answered_at, now),
            is_keeper=self.subject.keeper.is_elected,
            is_deaf=listener.is_deaf,
            notification_age_s=_age(listener.heard_at, now),
        )


def _reasons(subject: Subject) -> Iterator[str]:
    heartbeat, wanted = subject.heartbeat, subject.books.frames.processes
    if subject.is_stopping():
        yield "the worker is stopping"
    if (ready := subject.pool.ready_count) < wanted:
        yield f"{ready} of {wanted} children are ready"
    age_s = _age(heartbeat.answered_at, time.monotonic())
    if age_s is None:
        yield "the worker is not registered yet"
    elif heartbeat.is_missing or age_s > heartbeat.beat_s * MISSED_BEATS:
        yield f"the database has not answered for {age_s:.1f} s"


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment
