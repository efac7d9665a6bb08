"""Decide which workers are dead, without I/O.

It is decided by one observer from its own uninterrupted observation, never by comparing clocks. A heartbeat is a value that
changes. A worker is dead if *this* observer has seen its heartbeat unchanged for `dead_after_s`, and all its queries succeeded during that time. If the
observer itself was interrupted (its connection broke, its machine was paused, the database was unavailable), it cannot know whether the worker or it was
silent, and starts again. So an outage of the database, however long, never makes a worker dead.

A worker that has *announced* the lock of its sessions is dead sooner: if no session has held that lock for `gone_after_s` and its heartbeat has not changed
in that time. A process that ends leaves no session behind, and one that lives replaces lost sessions within a second. A machine that lost its network
keeps its sessions, as far as the server knows, and is judged by its heartbeat alone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

GONE_AFTER_S: Final = 2.0


@dataclass(slots=True)
class FailureDetector:
    """Decides which workers are dead. All times are on the observer's monotonic clock, in seconds."""

    dead_after_s: float
    gap_s: float
    """A longer silence of the observer itself interrupts the observation."""
    gone_after_s: float = GONE_AFTER_S
    _seen: dict[str, tuple[datetime, float]] = field(default_factory=dict[str, tuple[datetime, float]])
    _gone: dict[str, float] = field(default_factory=dict[str, float])
    _observed_at: float | None = None

    def observe(
        self, heartbeats: Mapping[str, datetime], asked_at: float, now: float, gone: Collection[str] = ()
    ) -> list[str]:
        """Add one query's result, and return the workers that are dead. `gone`: no session holds the lock that they have announced."""
        if self._observed_at is not None and now - self._observed_at > self.gap_s:
            self.reset()
        self._observed_at = now
        # The result may be as old as the query: a heartbeat seen for the first time counts as unchanged only from now on.
        self._seen = {
            worker: (beat, self._seen[worker][1] if worker in self._seen and self._seen[worker][0] == beat else now)
            for worker, beat in heartbeats.items()
        }
        # A worker with a new heartbeat has lost its sessions only for a moment, if at all: count again from now.
        self._gone = {
            worker: self._gone[worker] if worker in self._gone and self._seen[worker][1] <= self._gone[worker] else now
            for worker in gone
            if worker in self._seen
        }
        return [
            worker
            for worker, (_, since) in self._seen.items()
            if asked_at - since >= self.dead_after_s or asked_at - self._gone.get(worker, now) >= self.gone_after_s
        ]

    @property
    def has_gone_workers(self) -> bool:
        return bool(self._gone)

    def unchanged_since(self, worker: str) -> float:
        return self._seen[worker][1]

    def reset(self) -> None:
        self._seen.clear()
        self._gone.clear()
        self._observed_at = None
