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
    celery, reference = "celery-default", "reference-default"
    yield from _bar(results, "drain", "default", ">=", 18, (reference, "drain"))
    yield from _bar(results, "drain", "default", ">=", 2, (celery, "drain"))
    yield from _bar(results, "drain", "default", ">=", 2.4, (celery, "drain"), judged=False)
    yield from _bar(results, "drain", "best", ">=", 1.4, ("pgqueuer-best", "drain"))
    yield from _bar(results, "pipeline sent", "default", ">=", 1.1, (celery, "pipeline sent"))
    rounds = (results.rounds.get(key, {}).get("latency p50", []) for key in (f"{OURS}-default", celery))
    for number, (ours, theirs) in enumerate(zip(*rounds, strict=False), 1):
        yield Bar(f"latency p50 of ours, default, round {number}: that of celery, default", ours, theirs, "<=", "ms")
    yield from _bar(results, "latency p50", "default", "<=", 0.9, (celery, "latency p50"), judged=False)
    yield from _bar(results, "latency p99", "default", "<=", 2.5, (f"{OURS}-default", "latency p50"))
    for settings in ("default", "best"):
        yield from _bar(results, "workflows", settings, ">=", 20, (f"reference-{settings}", "workflows"))
    yield from _bar(results, "workflows", "default", ">=", 2, (celery, "workflows"))
    yield from _bar(results, "workflows", "default", ">=", 3, (celery, "workflows"), judged=False)
    yield from _bar(results, "workflows", "best", ">=", 7, ("celery-best", "workflows"))
    yield from _bar(results, "chain p50", "default", "<=", 1, (celery, "chain p50"))
    yield from _bar(results, "memory", "default", "<=", 0.7, (celery, "memory"))
    yield from _bar(results, "memory", "best", "<=", 0.6, (celery, "memory"))  # its children are forked


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
        yield Bar(label, value, times * other, sense, UNITS.get(measure, "/s"), judged)
