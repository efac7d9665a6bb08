"""Room: how much more this worker may hold, and so what a turn asks for. Counts what it has, and what the turns in flight may still bring or take.

How much work a child may hold: what it runs at once, or a few milliseconds' worth.

RUNNING is durable before user code starts, so a child that works through tiny tasks one by one waits for a commit between any
two. With `prefetch_buffer="auto"` it is given a *frame*: as many tasks as it works through in a few milliseconds by measurement, started
together. If the measurement was wrong and one of them is slow, or all are slower than thought, those behind are recalled and released. A child that runs many at
once (`concurrency`) needs no frames: its places are many.
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
PREFETCH_MAX = 1_024
REFILL = 4
"""A frame is filled up when a part of it, this one, is free: fewer at a time would cost more commits, more would let the child run dry."""
GATHER_S, GATHER_FRAMED_S = 0.001, 0.005

SHORT_TASK_US = 1_000
REMEMBERED_US = PREFETCH_US
"""How much work the mean is taken over. By work and not by number, or among a thousand tiny tasks one that the machine held up would count as much as a hundred."""


@dataclass(slots=True)
class PrefetchPolicy:
    """Sizes by the app's `prefetch_buffer`."""

    prefetch: int | Literal["auto"]
    processes: int
    concurrency: int = 1
    _worked_us: float = PREFETCH_US  # until measured, a frame is one task
    _tasks: float = 1.0

    def observe(self, duration_us: int) -> None:
        remembered = REMEMBERED_US / (REMEMBERED_US + duration_us)
        self._worked_us = self._worked_us * remembered + duration_us
        self._tasks = self._tasks * remembered + 1.0

    @property
    def tasks_are_short(self) -> bool:
        """Tasks take less time than the commit between two of them."""
        return self._worked_us < SHORT_TASK_US * self._tasks

    @property
    def is_framed(self) -> bool:
        """Tasks may wait in a child behind others. With a number they do not: rows wait as CLAIMED until a child begins them."""
        return self.prefetch == "auto" and self.concurrency == 1

    @property
    def size(self) -> int:
        """How many tasks one child may hold."""
        if not self.is_framed:
            return self.concurrency
        return max(1, min(PREFETCH_MAX, int(PREFETCH_US * self._tasks / max(self._worked_us, 1.0))))

    @property
    def most(self) -> int:
        """How many it may be given that were claimed for it when frames were larger: what turns out to be too much is recalled."""
        return PREFETCH_MAX if self.is_framed else self.concurrency

    @property
    def ceiling(self) -> int:
        """How many rows the worker may hold in all: RUNNING and CLAIMED."""
        if self.prefetch == "auto":
            return self.processes * self.size
        return self.processes * self.concurrency + self.prefetch

    @property
    def described_limit(self) -> str:
        """The ceiling for the log: with frames it changes with the measured length of tasks."""
        return f"auto (at most {self.processes * PREFETCH_MAX})" if self.is_framed else str(self.ceiling)

    @property
    def buffers(self) -> bool:
        """With a number, rows wait as CLAIMED in the parent. "auto" needs no such buffer: its frames keep the children fed."""
        return self.prefetch != "auto" and self.prefetch > 0

    def capacity(self, load: int) -> int:
        """What fits beside what a child already holds. A frame that is nearly full counts as full: small refills cost commits."""
        free = self.size - load
        if not self.is_framed:
            return max(0, free)
        return free if free * REFILL >= self.size else 0

    @property
    def gather_s(self) -> float:
        """For how long what has ended may wait for company."""
        return GATHER_FRAMED_S if self.is_framed else GATHER_S


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
    known_tasks: KnownTasks

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
            avoided_names=self.known_tasks.avoided_names(now),
            avoided_signatures=self.known_tasks.avoided_signatures(now),
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
