"""How much more a worker may hold, and so how much the next batch claims.

`Capacity` counts what the worker holds, and what the batches in flight may still bring or take. `PrefetchPolicy` decides how much a child may hold: as many tasks
as it runs at once, or up to 20 ms of work.

RUNNING is durable before user code starts, so a child that runs short tasks one by one waits for a commit between any two. With
`prefetch_buffer="auto"` it is assigned as many tasks as it will run in 20 ms, by the measured durations, all started by one
commit. If one of them is slow, or all are slower than measured before, those behind are recalled and released. A child that runs many tasks
at once (`concurrency`) does not need this.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Literal

from horsies.model.status import TaskStatus
from horsies.tasks.claim import Caps, ClaimRequest
from horsies.tasks.unknown import KnownTasks
from horsies.worker.batch import Batch
from horsies.worker.child import Child
from horsies.worker.quarantine import SkippedRows

PREFETCH_US = 20_000
"""How much work a child may hold."""
PREFETCH_MAX = 1_024
REFILL_PART = 4
"""A child is assigned more when a quarter of its limit is free. Refilling earlier costs more commits; later, the child may run out of work."""
BATCH_DELAY_S, PREFETCH_BATCH_DELAY_S = 0.001, 0.005
SHORT_TASK_US = 1_000
AVERAGED_US = PREFETCH_US
"""The mean is taken over this amount of work, not over a number of tasks. Otherwise one task that the machine delayed would outweigh a hundred short ones."""


@dataclass(slots=True)
class PrefetchPolicy:
    """Limits by the app's `prefetch_buffer` and the measured durations of tasks."""

    prefetch_buffer: int | Literal["auto"]
    processes: int
    concurrency: int = 1
    _worked_us: float = PREFETCH_US  # until measured, a child holds one task
    _tasks: float = 1.0

    def observe(self, duration_us: int) -> None:
        decay = AVERAGED_US / (AVERAGED_US + duration_us)
        self._worked_us = self._worked_us * decay + duration_us
        self._tasks = self._tasks * decay + 1.0

    @property
    def tasks_are_short(self) -> bool:
        """Tasks take less time than the commit between two of them."""
        return self._worked_us < SHORT_TASK_US * self._tasks

    @property
    def is_adaptive(self) -> bool:
        """Tasks may wait in a child, as many as their durations allow. With a number they wait in the parent, as CLAIMED rows."""
        return self.prefetch_buffer == "auto" and self.concurrency == 1

    @property
    def has_buffer(self) -> bool:
        """Rows may wait as CLAIMED in the parent."""
        return self.prefetch_buffer != "auto" and self.prefetch_buffer > 0

    @property
    def child_limit(self) -> int:
        """How many tasks one child may hold."""
        if not self.is_adaptive:
            return self.concurrency
        return max(1, min(PREFETCH_MAX, int(PREFETCH_US * self._tasks / max(self._worked_us, 1.0))))

    @property
    def child_limit_max(self) -> int:
        """How many a child may be assigned that were claimed when its limit was higher: if they are too many, they are recalled."""
        return PREFETCH_MAX if self.is_adaptive else self.concurrency

    @property
    def worker_limit(self) -> int:
        """How many rows the worker may hold, RUNNING and CLAIMED together."""
        if self.prefetch_buffer == "auto":
            return self.processes * self.child_limit
        return self.processes * self.concurrency + self.prefetch_buffer

    @property
    def described_limit(self) -> str:
        """The limit of the worker, for the log."""
        return f"auto (at most {self.processes * PREFETCH_MAX})" if self.is_adaptive else str(self.worker_limit)

    def child_capacity(self, load: int) -> int:
        """Return how many more tasks a child with this load may hold. One that is nearly full counts as full."""
        free = self.child_limit - load
        if not self.is_adaptive:
            return max(0, free)
        return free if free * REFILL_PART >= self.child_limit else 0

    @property
    def batch_delay_s(self) -> float:
        """How long endings may wait for others to share their batch."""
        return PREFETCH_BATCH_DELAY_S if self.is_adaptive else BATCH_DELAY_S


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """What this worker may claim. 0 sets no limit."""

    lease_ms: int
    caps: Caps
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Reads the collections of `PendingWork`, and changes none of them."""

    worker: str
    limits: ClaimLimits
    prefetch: PrefetchPolicy
    children: Sequence[Child]
    buffer: Sized
    unread: Sized
    unfit: Sized
    in_flight: Sequence[Batch]
    skipped: SkippedRows
    known_tasks: KnownTasks

    def to_run(self) -> int:
        """Return how many more tasks the children can take now."""
        free = -len(self.unread)
        for child in self.children:
            if child.is_open:
                capacity = self.prefetch.child_capacity(child.load)
                free += capacity if child.budget_left is None else min(capacity, child.budget_left)
        for batch in self.in_flight:
            free -= len(batch.starts) + len(batch.loads) + _requested(batch, TaskStatus.RUNNING)
        return max(0, free)

    def claim_requests(self, starting: int, now: float) -> list[ClaimRequest]:
        """Return what to claim, some to run at once and some for the buffer, if `starting` tasks are started from the buffer now."""
        free = self._free(starting)
        if free <= 0:
            return []
        to_run = max(0, min(self.to_run() - starting, free))
        to_buffer = free - to_run if self.prefetch.has_buffer else 0
        queue_limit = self.limits.max_claim_batch
        requests = [self._request(TaskStatus.RUNNING, to_run, queue_limit or None, now)] if to_run else []
        if to_buffer > 0 and (not queue_limit or queue_limit > to_run):  # both together keep to the limit of a queue
            rest = queue_limit - to_run if queue_limit else None
            requests.append(self._request(TaskStatus.CLAIMED, to_buffer, rest, now))
        return requests

    def _free(self, starting: int) -> int:
        """Return how many more rows the worker may hold."""
        held = len(self.buffer) + len(self.unread) + len(self.unfit) + sum([child.load for child in self.children])
        for batch in self.in_flight:
            held += len(batch.starts) + len(batch.loads) + sum([request.limit for request in batch.claim_requests])
        free = self.prefetch.worker_limit - held - starting
        limit = self.limits.max_claim_per_worker
        if not limit:
            return free
        if self.prefetch.has_buffer:
            # With a buffer the limit is about hoarding, so running tasks do not count.
            buffered = sum(len(batch.starts) + _requested(batch, TaskStatus.CLAIMED) for batch in self.in_flight)
            return min(free, limit - len(self.buffer) - buffered)
        # Rows that end or are released by a batch in flight are held until it is committed.
        leaving = sum(
            len(batch.endings) + len(batch.interrupted) + len(batch.releases) + len(batch.unfit)
            for batch in self.in_flight
        )
        return min(free, limit - held - leaving)

    def _request(self, status: TaskStatus, limit: int, queue_limit: int | None, now: float) -> ClaimRequest:
        return ClaimRequest(
            worker=self.worker,
            status=status,
            limit=limit,
            lease_ms=self.limits.lease_ms,
            queue_limit=queue_limit,
            caps=self.limits.caps,
            excluded=self.skipped.ids(now),
            avoided_names=self.known_tasks.avoided_names(now),
            avoided_signatures=self.known_tasks.avoided_signatures(now),
        )


def _requested(batch: Batch, status: TaskStatus) -> int:
    """Return how many rows it may claim in this status."""
    return sum([request.limit for request in batch.claim_requests if request.status is status])
