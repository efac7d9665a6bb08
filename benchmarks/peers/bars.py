"""What ours is to reach beside the peers, by the medians of one run."""

from collections.abc import Iterator
from typing import Literal

from benchmarks.bars import Bar
from benchmarks.peers.results import Results
from benchmarks.peers.systems import OURS
from benchmarks.peers.units import UNITS

Side = tuple[str, str]
"""An entry's key, and a measure of it."""


def bars(results: Results) -> Iterator[Bar]:
    """Those for which both sides were measured."""
    yield from _bar(results, "drain", "default", ">=", 10, ("reference-default", "drain"))
    yield from _bar(results, "drain", "default", ">=", 1.5, ("celery-default", "drain"))
    yield from _bar(results, "drain", "default", ">=", 2, ("celery-default", "drain"), judged=False)
    yield from _bar(results, "drain", "best", ">=", 1.2, ("pgqueuer-best", "drain"))
    yield from _bar(results, "latency p50", "default", "<=", 1, ("celery-default", "latency p50"))
    yield from _bar(results, "latency p99", "default", "<=", 3, (f"{OURS}-default", "latency p50"))
    for settings in ("default", "best"):
        yield from _bar(results, "workflows", settings, ">=", 20, (f"reference-{settings}", "workflows"))
    yield from _bar(results, "workflows", "default", ">=", 3, ("celery-default", "workflows"))
    yield from _bar(results, "workflows", "best", ">=", 3, ("celery-best", "workflows"), judged=False)
    # Only `best` forks its children, as Celery does in both.
    yield from _bar(results, "memory", "best", "<=", 1, ("celery-default", "memory"))
    yield from _bar(results, "memory", "default", "<=", 1, ("celery-default", "memory"), judged=False)


def _bar(
    results: Results,
    measure: str,
    settings: str,
    sense: Literal["<=", ">="],
    times: float,
    beside: Side,
    *,
    judged: bool = True,
) -> Iterator[Bar]:
    value, other = results.median(f"{OURS}-{settings}", measure), results.median(*beside)
    if value is not None and other is not None:
        share = "" if times == 1 else f"{times:g} x "
        label = f"{measure} of ours, {settings}: {share}{beside[1]} of {beside[0].replace('-', ', ')}"
        yield Bar(label, value, times * other, sense, UNITS[measure], judged)
