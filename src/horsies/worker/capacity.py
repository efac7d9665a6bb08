"""Room: how much more this worker may hold, and so what a turn asks for. Counts what it has, and what the turns in flight may still bring or take."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass

from horsies.model.status import TaskStatus
from horsies.tasks.claim import Caps, ClaimRequest
from horsies.tasks.unknown import KnownTasks
from horsies.worker.batch import Batch
from horsies.worker.child import Child
from horsies.worker.prefetch import PrefetchPolicy
from horsies.worker.quarantine import SkippedRows


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """What this worker may claim. 0 sets no limit."""

    lease_ms: int
    caps: Caps
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """It looks at the books' own lists, and changes none."""

    worker: str
    limits: ClaimLimits
    prefetch: PrefetchPolicy
    children: Sequence[Child]
    buffer: Sized
    unread: Sized
    unfit: Sized
    in_flight: Sequence[Batch]
    left_out: SkippedRows
    known: KnownTasks

    def to_run(self) -> int:
        """How many more tasks the children can take now."""
        free = -len(self.unread)
        for child in self.children:
            if child.is_open:
                capacity = self.prefetch.capacity(child.load)
                free += capacity if child.budget_left is None else min(capacity, child.budget_left)
        for planned in self.in_flight:
            free -= len(planned.starts) + len(planned.loads) + _promised(planned, TaskStatus.RUNNING)
        return max(0, free)

    def wanted(self, starting: int, now: float) -> list[ClaimRequest]:
        """What to claim beside so many that are started now: some to run at once, and some to wait."""
        free = self._free(starting)
        if free <= 0:
            return []
        run = max(0, min(self.to_run() - starting, free))
        hold = free - run if self.prefetch.buffers else 0
        batch = self.limits.max_claim_batch
        wanted = [self._want(TaskStatus.RUNNING, run, batch or None, now)] if run else []
        if hold > 0 and (not batch or batch > run):  # both together take no more than a batch from any queue
            wanted.append(self._want(TaskStatus.CLAIMED, hold, batch - run if batch else None, now))
        return wanted

    def _free(self, starting: int) -> int:
        """How many more rows may be ours, beside those that are started now."""
        free = self.prefetch.ceiling - self._held() - starting
        ceiling = self.limits.max_claim_per_worker
        if not ceiling:
            return free
        if self.prefetch.buffers:
            # With a buffer the ceiling is about hoarding, so what already runs does not count against it.
            buffered = sum(len(planned.starts) + _promised(planned, TaskStatus.CLAIMED) for planned in self.in_flight)
            return min(free, ceiling - len(self.buffer) - buffered)
        return min(free, ceiling - self._held() - self._leaving())

    def _want(self, status: TaskStatus, limit: int, queue_limit: int | None, now: float) -> ClaimRequest:
        return ClaimRequest(
            worker=self.worker,
            status=status,
            limit=limit,
            lease_ms=self.limits.lease_ms,
            queue_limit=queue_limit,
            caps=self.limits.caps,
            excluded=self.left_out.ids(now),
            avoided_names=self.known.avoided_names(now),
            avoided_signatures=self.known.avoided_signatures(now),
        )

    def _held(self) -> int:
        """Rows that are ours, or may be when the turns in flight come back."""
        held = len(self.buffer) + len(self.unread) + len(self.unfit)
        for child in self.children:
            held += child.load
        for planned in self.in_flight:
            held += len(planned.starts) + len(planned.loads) + sum([wanted.limit for wanted in planned.wanted])
        return held

    def _leaving(self) -> int:
        """Rows that are still ours until the turns in flight are committed."""
        return sum(
            len(planned.endings) + len(planned.interrupted) + len(planned.releases) + len(planned.unfit)
            for planned in self.in_flight
        )


def _promised(planned: Batch, status: TaskStatus) -> int:
    """How many rows it may claim in this status."""
    return sum([wanted.limit for wanted in planned.wanted if wanted.status is status])
