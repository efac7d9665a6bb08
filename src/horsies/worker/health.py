"""The health of this process, a worker or a scheduler: is it alive, is it ready, and its figures. Safe from any thread."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from horsies.db.listener import Listener
from horsies.maintenance.leader import MaintenanceLeader
from horsies.worker.dispatcher import Dispatcher
from horsies.worker.heartbeat import Heartbeat, UsageMeter
from horsies.worker.supervisor import ChildPool

LOOP_CHECK_S: Final = 5.0
MISSED_ANSWERS: Final = 3


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
    """What the endpoints ask. A worker or a scheduler sets the attributes as soon as it can answer."""

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


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The services of one incarnation of a worker."""

    dispatcher: Dispatcher
    pool: ChildPool
    heartbeat: Heartbeat
    leader: MaintenanceLeader
    listener: Callable[[], Listener]
    is_stopping: Callable[[], bool]
    _usage: UsageMeter = field(default_factory=UsageMeter)
    _children_usage: UsageMeter = field(default_factory=UsageMeter)

    def unready(self) -> Iterator[str]:
        heartbeat, wanted = self.heartbeat, self.dispatcher.processes
        if self.is_stopping():
            yield "the worker is stopping"
        if (ready := self.pool.ready_count) < wanted:
            yield f"{ready} of {wanted} children are ready"
        if heartbeat.answered_at is None:
            yield "the worker is not registered yet"
        else:
            yield from check_database(heartbeat.answered_at, heartbeat.interval_s, is_missing=heartbeat.is_missing)

    def stats(self) -> WorkerStats:
        dispatcher, listener, now = self.dispatcher, self.listener(), time.monotonic()
        heartbeat_at, notified_at = self.heartbeat.answered_at, listener.received_at
        memory_mb, _cpu = self._usage.measure([os.getpid()])
        children_memory_mb, _cpu = self._children_usage.measure(dispatcher.child_pids)
        return WorkerStats(
            children=self.pool.ready_count,
            children_wanted=dispatcher.processes,
            slots=dispatcher.processes * dispatcher.concurrency,
            running=dispatcher.running_count,
            buffered=dispatcher.buffered_count,
            memory_bytes=memory_mb * (1 << 20),
            children_memory_bytes=children_memory_mb * (1 << 20),
            heartbeat_age_s=None if heartbeat_at is None else now - heartbeat_at,
            is_leader=self.leader.is_elected,
            is_polling=listener.is_polling,
            notification_age_s=None if notified_at is None else now - notified_at,
        )
