"""A worker as a checkup sees it."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from horsies.db.listen import Listener
from horsies.keeper.keep import Keeper
from horsies.worker.books import Books
from horsies.worker.checkup import Vitals, silence
from horsies.worker.health import Health
from horsies.worker.heartbeat import Heartbeat
from horsies.worker.pool import Pool


@dataclass(frozen=True, slots=True)
class WorkerSubject:
    """The services of one incarnation of a worker."""

    books: Books
    pool: Pool
    heartbeat: Heartbeat
    keeper: Keeper
    listener: Callable[[], Listener]
    is_stopping: Callable[[], bool]
    _health: Health = field(default_factory=Health)

    def unready(self) -> Iterator[str]:
        heartbeat, wanted = self.heartbeat, self.books.frames.processes
        if self.is_stopping():
            yield "the worker is stopping"
        if (ready := self.pool.ready_count) < wanted:
            yield f"{ready} of {wanted} children are ready"
        if heartbeat.answered_at is None:
            yield "the worker is not registered yet"
        else:
            yield from silence(heartbeat.answered_at, heartbeat.beat_s, is_missing=heartbeat.is_missing)

    def vitals(self) -> Vitals:
        books, listener, now = self.books, self.listener(), time.monotonic()
        children = self._health.children([member.pid for member in list(books.roster)])
        return Vitals(
            children=self.pool.ready_count,
            children_wanted=books.frames.processes,
            slots=books.frames.processes * books.frames.concurrency,
            running=books.running_count,
            buffered=len(books.buffer),
            memory_bytes=self._health.parent().memory_mb * (1 << 20),
            children_memory_bytes=children.memory_mb * (1 << 20),
            heartbeat_age_s=_age(self.heartbeat.answered_at, now),
            is_keeper=self.keeper.is_elected,
            is_deaf=listener.is_deaf,
            notification_age_s=_age(listener.heard_at, now),
        )


def _age(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment
