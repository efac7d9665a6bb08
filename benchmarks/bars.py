"""The bars: what horsies is to reach beside the limits measured in the same run. Every benchmark is judged by them (`judge`)."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.cost import Cost
from benchmarks.measures import Measure, Numbers

MAX_ROUND_TRIPS = 6
MAX_COMMITS = 3
LATENCY_COMMITS, LATENCY_EXTRA_MS = 3, 3.0
DEFAULT_SHARE, AUTO_SHARE = 0.5, 0.35
CHAIN_STEPS, CHAIN_SLACK = 10, 1.2
FAN_SHARE = 0.5
MAX_CHAIN_TRIPS, MAX_START_MS, MAX_MAP_MB = 12, 500, 20
FORK_TIMES, FOUR_IMPORTS_S, MIN_SHORT = 1.5, 4.0, 2_500
SEND_SHARE, PRODUCERS_SHARE, BULK_SHARE = 0.7, 0.9, 0.4


@dataclass(frozen=True, slots=True)
class Bar:
    """`judged` False is shown beside a bar for comparison only."""

    label: str
    value: float
    limit: float
    sense: Literal["<=", ">="]
    unit: str
    judged: bool = True

    @property
    def passed(self) -> bool:
        return self.value <= self.limit if self.sense == "<=" else self.value >= self.limit

    @property
    def verdict(self) -> str:
        return ("PASS" if self.passed else "FAIL") if self.judged else ("(pass)" if self.passed else "(fail)")


def judge(bars: Iterable[Bar], problems: Sequence[str] = (), *, are_judged: bool = True) -> int:
    """Print each result that was wrong and each bar that was missed. Return the exit code: 1 if there is one. Tiny sizes are not judged."""
    missed = [bar for bar in bars if bar.judged and not bar.passed] if are_judged else []
    for problem in problems:
        print(f"WRONG: {problem}", file=sys.stderr)
    for bar in missed:
        print(f"MISSED: {bar.label}: {bar.value:,.2f}, wanted {bar.sense} {bar.limit:,.2f} {bar.unit}", file=sys.stderr)
    return 1 if problems or missed else 0


def bars(numbers: Numbers, one: Cost, two_nodes: Cost) -> Iterator[Bar]:
    yield Bar("one task, send to get: client round trips", one.round_trips, MAX_ROUND_TRIPS, "<=", "")
    yield Bar("one task, send to get: durable commits", one.durable_commits, MAX_COMMITS, "<=", "")
    commit_ms = numbers.median(Measure.RAW_INSERT_P50)
    yield Bar(
        f"latency p50, {LATENCY_COMMITS} x raw insert p50 + {LATENCY_EXTRA_MS:g} ms",
        numbers.median(Measure.LATENCY_P50),
        LATENCY_COMMITS * commit_ms + LATENCY_EXTRA_MS,
        "<=",
        "ms",
    )
    yield from _drain(numbers, Measure.DRAIN_DEFAULT, DEFAULT_SHARE, Measure.RAW_2_FUSED, Measure.RAW_2_APART)
    yield from _drain(numbers, Measure.DRAIN_STEADY, DEFAULT_SHARE, Measure.RAW_2_FUSED, Measure.RAW_2_APART)
    yield from _drain(numbers, Measure.DRAIN_AUTO, AUTO_SHARE, Measure.RAW_100_FUSED, Measure.RAW_100_APART)
    yield _share(numbers, Measure.SEND, SEND_SHARE, Measure.RAW_INSERT_NOTIFY)
    yield _share(numbers, Measure.PRODUCERS, PRODUCERS_SHARE, Measure.RAW_PRODUCERS_NOTIFY)
    yield _share(numbers, Measure.BULK, BULK_SHARE, Measure.RAW_COPY)
    yield _share(numbers, Measure.BULK_WITH_CALLS, BULK_SHARE, Measure.RAW_COPY, judged=False)
    yield from _workflows(numbers, two_nodes)
    steady_s = numbers.median(Measure.SLOW_STEADY)
    label = f"{Measure.SLOW_FORK.label}: {FORK_TIMES:g} x without recycling"
    yield Bar(label, numbers.median(Measure.SLOW_FORK), FORK_TIMES * steady_s, "<=", "s")
    label = f"{Measure.SLOW_DEFAULT.label}: the imports of four children on two cores, and the tasks"
    yield Bar(label, numbers.median(Measure.SLOW_DEFAULT), FOUR_IMPORTS_S + steady_s, "<=", "s")
    yield Bar(Measure.SHORT.label, numbers.median(Measure.SHORT), MIN_SHORT, ">=", "/s")


def _workflows(numbers: Numbers, two_nodes: Cost) -> Iterator[Bar]:
    yield Bar("workflow of 2 nodes, start to get: round trips", two_nodes.round_trips, MAX_CHAIN_TRIPS, "<=", "")
    limit_ms = CHAIN_STEPS * CHAIN_SLACK * numbers.median(Measure.CHAIN_SINGLE)
    label = f"{Measure.CHAIN.label}, {CHAIN_STEPS} x a single task + 20 %"
    yield Bar(label, numbers.median(Measure.CHAIN), limit_ms, "<=", "ms")
    yield _share(numbers, Measure.FAN, FAN_SHARE, Measure.FAN_PLAIN)
    yield _share(numbers, Measure.FAN_AUTO, FAN_SHARE, Measure.FAN_PLAIN_AUTO, judged=False)
    yield Bar(Measure.START_LARGE.label, numbers.median(Measure.START_LARGE), MAX_START_MS, "<=", "ms")
    yield Bar(Measure.MAP_MEMORY.label, numbers.median(Measure.MAP_MEMORY), MAX_MAP_MB, "<=", "MB")


def _drain(numbers: Numbers, ours: Measure, share: float, fused: Measure, apart: Measure) -> Iterator[Bar]:
    """Judged against the fused loop, the faster one as a rule."""
    for raw in (fused, apart):
        yield _share(numbers, ours, share, raw, judged=raw is fused)


def _share(numbers: Numbers, ours: Measure, share: float, raw: Measure, *, judged: bool = True) -> Bar:
    label = f"{ours.label}, {share:g} x {raw.label}"
    return Bar(label, numbers.median(ours), share * numbers.median(raw), ">=", "/s", judged=judged)
