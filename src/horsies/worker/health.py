"""A look at this process from outside, be it a worker or a scheduler: is it alive, is it ready, and in numbers how it does. Safe from any thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from horsies.db.listener import Listener
from horsies.maintenance.leader import MaintenanceLeader
from horsies.worker.heartbeat import HealthSnapshots, Heartbeat
from horsies.worker.pending import PendingWork
from horsies.worker.supervisor import ChildPool

LOOP_ANSWER_S = 5.0
MISSED_ANSWERS = 3


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """The worker in numbers. Ages are in seconds; None: it has not happened yet."""

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


class HealthSource(Protocol):
    """Who is looked at, as soon as it has reached its database."""

    def unready(self) -> Iterator[str]: ...
    def stats(self) -> WorkerStats | None: ...


class HealthCheck:
    """`loop` and `subject` are set as soon as there are any."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.subject: HealthSource | None = None

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

    def stats(self) -> WorkerStats | None:
        return None if self.subject is None else self.subject.stats()


def silence(answered_at: float, ask_s: float, *, is_missing: bool) -> Iterator[str]:
    """Of a database that is asked at least every so many seconds."""
    age_s = time.monotonic() - answered_at
    if is_missing or age_s > ask_s * MISSED_ANSWERS:
        yield f"the database has not answered for {age_s:.1f} s"


# --------
# A worker as a checkup sees it.


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The services of one incarnation of a worker."""

    pending: PendingWork
    pool: ChildPool
    heartbeat: Heartbeat
    leader: MaintenanceLeader
    listener: Callable[[], Listener]
    is_stopping: Callable[[], bool]
    _health: HealthSnapshots = field(default_factory=HealthSnapshots)

    def unready(self) -> Iterator[str]:
        heartbeat, wanted = self.heartbeat, self.pending.prefetch.processes
        if self.is_stopping():
            yield "the worker is stopping"
        if (ready := self.pool.ready_count) < wanted:
            yield f"{ready} of {wanted} children are ready"
        if heartbeat.answered_at is None:
            yield "the worker is not registered yet"
        else:
            yield from silence(heartbeat.answered_at, heartbeat.beat_s, is_missing=heartbeat.is_missing)

    def stats(self) -> WorkerStats:
        pending, listener, now = self.pending, self.listener(), time.monotonic()
        children = self._health.children([child.pid for child in list(pending.children)])
        return WorkerStats(
            children=self.pool.ready_count,
            children_wanted=pending.prefetch.processes,
            slots=pending.prefetch.processes * pending.prefetch.concurrency,
            running=pending.running_count,
            buffered=len(pending.buffer),
            memory_bytes=self._health.parent().memory_mb * (1 << 20),
            children_memory_bytes=children.memory_mb * (1 << 20),
            heartbeat_age_s=_age(self.heartbeat.answered_at, now),
            is_leader=self.leader.is_elected,
            is_polling=listener.is_polling,
            notification_age_s=_age(listener.received_at, now),
        )


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment
