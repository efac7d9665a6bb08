"""What a run is to do, and what came of each of its sections."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos.check import Violation
from benchmarks.chaos.faults import KINDS
from benchmarks.chaos.history import History

DURABLE = {"fsync": "on", "max_connections": "80"}


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    """Of load and faults, over all sections."""
    seed: int
    kinds: frozenset[str] = frozenset(KINDS)
    dead_after_s: float = 5.0
    pause_s: float = 0.04
    """Of a producer between two sends."""
    rest_s: tuple[float, float] = (0.5, 2.0)
    """From one fault to the next."""
    faults: tuple[str, ...] | None = None
    """Exactly these, one after the other, instead of random ones until the time is over."""
    settings: dict[str, str] = field(default_factory=lambda: dict(DURABLE))
    patience_s: float = 180.0
    """How long to wait for the remaining tasks after the last fault."""

    def rng(self, section: str) -> random.Random:
        return random.Random(f"{self.seed} {section}")  # noqa: S311 - a run is to be repeated


@dataclass(slots=True)
class Account:
    """The result of one section."""

    section: str
    history: History = field(default_factory=History)
    violations: list[Violation] = field(default_factory=list[Violation])
    problems: list[str] = field(default_factory=list[str])
    """What is wrong apart from the history: a worker that exited by itself, a process left behind."""
    late_runs: list[float] = field(default_factory=list[float])
    seconds: float = 0.0
    skipped: str | None = None
    interrupted: bool = False
    kept: Path | None = None
    """The folder with its history and its logs, if something is wrong."""

    @property
    def faults(self) -> Counter[str]:
        return Counter(injection.kind for injection in self.history.injections)

    @property
    def is_good(self) -> bool:
        return not self.violations and not self.problems


OnProgress = Callable[[str], None]
"""Called now and then with a description of the state."""
