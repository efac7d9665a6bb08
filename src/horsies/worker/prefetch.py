"""How much work a child may hold: what it runs at once, or a few milliseconds' worth.

RUNNING is durable before user code starts, so a child that works through tiny tasks one by one waits for a commit between any
two. With `prefetch_buffer="auto"` it is given a *frame*: as many tasks as it works through in a few milliseconds by measurement, started
together. If the measurement was wrong and one of them is slow, or all are slower than thought, those behind are recalled and released. A child that runs many at
once (`concurrency`) needs no frames: its places are many.
"""

from dataclasses import dataclass
from typing import Literal

PREFETCH_US = 20_000
PREFETCH_MAX = 1_024
REFILL = 4
"""A frame is filled up when a part of it, this one, is free: fewer at a time would cost more commits, more would let the child run dry."""
GATHER_S, GATHER_FRAMED_S = 0.001, 0.005
SLOW_AFTER_S = 0.02
"""A task that has run this long is slow: what waits behind it in its child is recalled."""
SLOW_TOGETHER_S = 0.05
"""The same for many that have run this long together. More, because a busy machine makes all of them slower, wherever they run."""

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
    def described_ceiling(self) -> str:
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
