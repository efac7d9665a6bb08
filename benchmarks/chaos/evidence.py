"""A history with indexes: the attempts as the database and as the tasks have recorded them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from benchmarks.chaos.history import History, Row
from benchmarks.chaos.notes import Note

CRASHED = "WORKER_CRASHED"
FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"})

Span = tuple[float, float]
Finding = Iterator[tuple[str, str]]
"""The entity, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt as the database has it; `error_code` is None for one that succeeded."""

    row: Row
    number: int
    error_code: str | None
    started: float
    ended: float


class Evidence:
    def __init__(self, history: History) -> None:
        self.history = history
        self.starts: defaultdict[tuple[str, int], list[Note]] = defaultdict(list)
        self.ends: dict[tuple[str, int], Note] = {}
        for note in history.notes:
            key = note.task_id, note.attempt
            if note.what == "start":
                self.starts[key].append(note)
            elif note.what == "end":
                self.ends[key] = note
        self.rows = {row.task_id: row for row in history.rows}

    @cached_property
    def attempts(self) -> list[Attempt]:
        return [attempt for row in self.history.rows for attempt in _attempts(row)]

    @cached_property
    def ended_at(self) -> dict[tuple[str, int], float]:
        """When each attempt ended in the database. A run that continues after that has no effect."""
        return {(attempt.row.task_id, attempt.number): attempt.ended for attempt in self.attempts}

    def start(self, task_id: str, attempt: int) -> Note | None:
        found = self.starts.get((task_id, attempt))
        return found[0] if found else None

    def starts_of(self, task_id: str, attempts: int) -> list[Note]:
        return [note for number in range(1, attempts + 2) for note in self.starts.get((task_id, number), [])]

    def spans(self, rows: Iterable[Row]) -> list[Span]:
        """When tasks ran while they held their claim: from their start to their end, or until the database ended the attempt, if
        that came first. A paused worker whose task went to another one continues for a moment when it is resumed. No queue can
        prevent that, and it has no effect.
        """
        return [span for row in rows for span in self._held(row)]

    def _held(self, row: Row) -> Iterator[Span]:
        for number in range(1, row.attempts + 1):
            start, end = self.start(row.task_id, number), self.ends.get((row.task_id, number))
            moments = [end.clock] if end else []
            if (ended := self.ended_at.get((row.task_id, number))) is not None:
                moments.append(ended)
            if start and moments and min(moments) > start.clock:
                yield start.clock, min(moments)

    def late_runs(self) -> list[float]:
        """Return how long each late run continued after its attempt had ended in the database."""
        late = [note.clock - self.ended_at.get(key, note.clock) for key, note in self.ends.items()]
        return [seconds for seconds in late if seconds > 0]


def _attempts(row: Row) -> Iterator[Attempt]:
    for failed in row.failed:
        yield Attempt(row, failed.attempt, failed.error_code, failed.started, failed.ended)
    if row.started is not None and row.finished is not None:
        yield Attempt(row, row.attempts, row.error_code, row.started, row.finished)


def most_at_once(spans: Iterable[Span]) -> int:
    """Return the largest number of spans at one time. A span that ends when another begins does not overlap it."""
    changes = sorted(change for begin, end in spans for change in ((begin, 1), (end, -1)))
    return max(accumulate(change for _, change in changes), default=0)
