"""What was measured: each case beside the same run on an empty database, and whether it reaches its bar."""

from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from benchmarks.bars import Bar
from benchmarks.growth.passage import Passage

Settings = Literal["auto", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    rounds: int
    rows: int
    """Of those that are in place."""
    auto: int
    """Tasks that go through in one run, with `prefetch_buffer="auto"`."""
    default: int
    """The same with default settings."""
    held: int
    """Tasks that go through under a held snapshot."""
    blocks: int
    queues: int
    idle: int
    sends: int
    workflows: int
    nodes: int
    bulk: int
    same_queue: int

    def count(self, settings: Settings) -> int:
        return self.auto if settings == "auto" else self.default


FULL = Sizes(
    rounds=3,
    rows=1_000_000,
    auto=60_000,
    default=4_000,
    held=200_000,
    blocks=10,
    queues=500,
    idle=62,
    sends=3_000,
    workflows=50_000,
    nodes=50_000,
    bulk=1_000_000,
    same_queue=32,
)
QUICK = Sizes(
    rounds=1,
    rows=20_000,
    auto=6_000,
    default=300,
    held=20_000,
    blocks=10,
    queues=50,
    idle=4,
    sends=200,
    workflows=5_000,
    nodes=2_000,
    bulk=20_000,
    same_queue=2,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """Runs on `empty` and on `grown` alternated."""

    case: str
    label: str
    settings: Settings
    bar: float
    empty: list[Passage] = field(default_factory=list[Passage])
    grown: list[Passage] = field(default_factory=list[Passage])

    @property
    def empty_rate(self) -> float:
        return median(passage.rate for passage in self.empty)

    @property
    def grown_rate(self) -> float:
        return median(passage.rate for passage in self.grown)

    @property
    def ratio(self) -> float:
        return self.grown_rate / self.empty_rate

    def to_bar(self) -> Bar:
        return Bar(f"{self.label}, prefetch_buffer {self.settings}: ratio", self.ratio, self.bar, ">=", "")

    @property
    def problems(self) -> list[str]:
        return [f"{self.label}: {problem}" for passage in self.empty + self.grown for problem in passage.problems]


def block_rates(passages: list[Passage]) -> list[float]:
    """The median of each block over all rounds."""
    return [median(rates) for rates in zip(*(passage.block_rates for passage in passages), strict=True)]
