"""A look at this process from outside, be it a worker or a scheduler: is it alive, is it ready, and in numbers how it does. Safe from any thread."""

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

LOOP_ANSWER_S = 5.0
MISSED_ANSWERS = 3


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


class Subject(Protocol):
    """Who is looked at, as soon as it has reached its database."""

    def unready(self) -> Iterator[str]: ...
    def vitals(self) -> Vitals | None: ...


class Checkup:
    """`loop` and `subject` are set as soon as there are any."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.subject: Subject | None = None

    def is_alive(self) -> bool:
        """The event loop turns, or has not been started: a process that waits for its database lives."""
        if self.loop is None:
            return True
        answered = threading.Event()
        try:
            self.loop.call_soon_threadsafe(answered.set)
        except RuntimeError:
            return False  # it is closed: the process is at its end
        return answered.wait(LOOP_ANSWER_S)

    def unready(self) -> list[str]:
        """Why it cannot do its work now; nothing: it can."""
        return ["the database has not been reached yet"] if self.subject is None else list(self.subject.unready())

    def vitals(self) -> Vitals | None:
        return None if self.subject is None else self.subject.vitals()


def silence(answered_at: float, ask_s: float, *, is_missing: bool) -> Iterator[str]:
    """Of a database that is asked at least every so many seconds."""
    age_s = time.monotonic() - answered_at
    if is_missing or age_s > ask_s * MISSED_ANSWERS:
        yield f"the database has not answered for {age_s:.1f} s"
