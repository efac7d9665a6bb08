"""Who is dead? Judged by one observer's own unbroken watch, never by comparing clocks.

A heartbeat is a value that changes. A worker is dead when *this* observer has seen its heartbeat unchanged for `dead_after_s`, asking and
being answered all that time. If the observer was away (its connection broke, its machine was paused, the database was gone), it cannot know
whether the silence was the worker's or its own, and begins anew. So an outage of the database, however long, kills nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(slots=True)
class Watch:
    """All moments are on the observer's monotonic clock, in seconds."""

    dead_after_s: float
    gap_s: float
    """A longer silence of the observer itself breaks the watch."""
    _seen: dict[str, tuple[datetime, float]] = field(default_factory=dict[str, tuple[datetime, float]])
    _last_look: float | None = None

    def observe(self, heartbeats: Mapping[str, datetime], asked_at: float, now: float) -> list[str]:
        """One answered question. Returns the workers that are dead by now."""
        if self._last_look is not None and now - self._last_look > self.gap_s:
            self.break_off()
        self._last_look = now
        # The answer is as old as the question: a heartbeat seen now for the first time stood still only from now on.
        self._seen = {
            worker: (beat, self._seen[worker][1] if worker in self._seen and self._seen[worker][0] == beat else now)
            for worker, beat in heartbeats.items()
        }
        return [worker for worker, (_, since) in self._seen.items() if asked_at - since >= self.dead_after_s]

    def break_off(self) -> None:
        self._seen.clear()
        self._last_look = None
