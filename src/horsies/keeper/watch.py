"""Who is dead? Judged by one observer's own unbroken watch, never by comparing clocks.

A heartbeat is a value that changes. A worker is dead when *this* observer has seen its heartbeat unchanged for `dead_after_s`, asking and
being answered all that time. If the observer was away (its connection broke, its machine was paused, the database was gone), it cannot know
whether the silence was the worker's or its own, and begins anew. So an outage of the database, however long, kills nobody.

A worker that has *announced* a lock of its sessions is dead sooner: when nobody has held that lock for `gone_after_s`, and it has not beaten meanwhile. A
process that ends leaves no session behind, and one that lives makes lost sessions anew within a second. A machine that is cut off from its network keeps
them, as far as the server knows, and is judged by its heartbeat alone.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

GONE_AFTER_S = 2.0


@dataclass(slots=True)
class Watch:
    """All moments are on the observer's monotonic clock, in seconds."""

    dead_after_s: float
    gap_s: float
    """A longer silence of the observer itself breaks the watch."""
    gone_after_s: float = GONE_AFTER_S
    _seen: dict[str, tuple[datetime, float]] = field(default_factory=dict[str, tuple[datetime, float]])
    _gone: dict[str, float] = field(default_factory=dict[str, float])
    _last_look: float | None = None

    def observe(
        self, heartbeats: Mapping[str, datetime], asked_at: float, now: float, gone: Collection[str] = ()
    ) -> list[str]:
        """One answered question. `gone`: nobody holds the lock that they have announced. Returns the workers that are dead by now."""
        if self._last_look is not None and now - self._last_look > self.gap_s:
            self.break_off()
        self._last_look = now
        # The answer is as old as the question: a heartbeat seen now for the first time stood still only from now on.
        self._seen = {
            worker: (beat, self._seen[worker][1] if worker in self._seen and self._seen[worker][0] == beat else now)
            for worker, beat in heartbeats.items()
        }
        # Of one that has beaten since the last look the sessions were gone for a moment only, if at all.
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
    def is_alarmed(self) -> bool:
        """Somebody's sessions are gone."""
        return bool(self._gone)

    def break_off(self) -> None:
        self._seen.clear()
        self._gone.clear()
        self._last_look = None
