"""Charts as paths of SVG. Templates draw them with `charts.html`; the numbers themselves are in a table beside each chart.

A chart is as wide as it has columns, and 100 high; the browser stretches it. Lines keep their width, and texts are outside.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final

from horsies.ops.statistics import MinutePoint
from horsies.tasks.inspect import WorkerState
from horsies.web.filters import count, milliseconds

HEIGHT: Final = 100
BAR: Final = 0.84  # of the width of a column
MAX_DECADES: Final = 4  # with a label each
MIN_MS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one colour of bars. `kind` is its class in the style sheet."""

    name: str
    kind: str
    path: str
    is_bar: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    name: str
    summary: str
    """For those who do not see it."""
    columns: int
    series: Sequence[Series]
    labels: Sequence[str]
    """Of the vertical axis, from the top."""
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Bucket:
    """What ended in some minutes. Of several minutes, the 95th percentiles are those of the worst one, and medians are averages."""

    start: datetime
    minutes: int
    completed: int
    failed: int
    other: int
    """Cancelled or expired."""
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    run_p50_ms: float | None
    run_p95_ms: float | None
    is_complete: bool

    @property
    def ended(self) -> int:
        return self.completed + self.failed + self.other


def to_buckets(points: Sequence[MinutePoint], minutes: int) -> list[Bucket]:
    """Join this many minutes into each bucket. The last bucket is not over yet."""
    parts = [
        list(part) for _, part in groupby(points, key=lambda point: int(point.minute.timestamp()) // 60 // minutes)
    ]
    return [
        Bucket(
            part[0].minute,
            len(part),
            sum(point.completed for point in part),
            sum(point.failed for point in part),
            sum(point.cancelled + point.expired for point in part),
            _average(part, [point.wait_p50_ms for point in part]),
            _worst([point.wait_p95_ms for point in part]),
            _average(part, [point.run_p50_ms for point in part]),
            _worst([point.run_p95_ms for point in part]),
            all(point.is_complete for point in part),
        )
        for part in parts
    ]


def _average(points: Sequence[MinutePoint], values: Sequence[float | None]) -> float | None:
    """Return the average of the known values, weighted by how many tasks ended."""
    known = [
        (value, point.completed + point.failed + point.cancelled + point.expired or 1)
        for point, value in zip(points, values, strict=True)
        if value is not None
    ]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


def _worst(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def throughput_chart(buckets: Sequence[Bucket]) -> Chart:
    """Draw how many tasks ended per minute: failures at the bottom, where they are seen."""
    rates = [[each / bucket.minutes for each in (bucket.failed, bucket.other, bucket.completed)] for bucket in buckets]
    limit = _round_up(max((sum(each) for each in rates), default=0))
    kinds = (("failed", "failed"), ("cancelled or expired", "other"), ("completed", "completed"))
    series = [
        Series(name, kind, _bars([(sum(each[:index]), each[index]) for each in rates], limit), is_bar=True)
        for index, (name, kind) in enumerate(kinds)
    ]
    ended, failed = sum(bucket.ended for bucket in buckets), sum(bucket.failed for bucket in buckets)
    summary = f"{count(ended)} tasks ended, {count(failed)} of them failed; at most {_rate(max((sum(each) for each in rates), default=0))} a minute"
    return _chart("Tasks ended per minute", summary, series, [_rate(limit), _rate(limit / 2), "0"], buckets)


def latency_chart(buckets: Sequence[Bucket]) -> Chart:
    """Draw how long tasks waited and ran, on a logarithmic scale: from milliseconds to hours."""
    kinds = (
        ("waited, 95 %", "wait", [bucket.wait_p95_ms for bucket in buckets]),
        ("waited, median", "wait thin", [bucket.wait_p50_ms for bucket in buckets]),
        ("ran, 95 %", "run", [bucket.run_p95_ms for bucket in buckets]),
        ("ran, median", "run thin", [bucket.run_p50_ms for bucket in buckets]),
    )
    known = [max(value, MIN_MS) for _, _, values in kinds for value in values if value is not None]
    low = math.floor(math.log10(min(known))) if known else 0
    high = max(math.ceil(math.log10(max(known))) if known else 0, low + 2)
    step = math.ceil((high - low) / MAX_DECADES)
    high = low + math.ceil((high - low) / step) * step

    def y(value: float) -> float:
        return HEIGHT * (high - math.log10(max(value, MIN_MS))) / (high - low)

    series = [
        Series(name, kind, _line([None if each is None else y(each) for each in values]))
        for name, kind, values in kinds
    ]
    labels = [milliseconds(10.0**exponent).replace(".0 ", " ") for exponent in range(high, low - 1, -step)]
    waited, ran = _worst([bucket.wait_p95_ms for bucket in buckets]), _worst([bucket.run_p95_ms for bucket in buckets])
    summary = (
        "no task ended"
        if waited is None and ran is None
        else f"95 % of the tasks waited at most {milliseconds(waited)} and ran at most {milliseconds(ran)} in the worst minute"
    )
    return _chart("How long tasks waited and ran", summary, series, labels, buckets)


def memory_chart(states: Sequence[WorkerState]) -> Chart:
    """Draw the memory of a worker, oldest state first."""
    return _states_chart(
        "Memory in MB",
        states,
        ("all children", "run", [state.children_memory_mb for state in states]),
        ("the worker itself", "wait", [state.memory_usage_mb for state in states]),
    )


def load_chart(states: Sequence[WorkerState]) -> Chart:
    """Draw the CPU usage of a worker, in percent of one core."""
    return _states_chart(
        "CPU in percent of a core",
        states,
        ("all children", "run", [state.children_cpu_percent for state in states]),
        ("the worker itself", "wait", [state.cpu_percent for state in states]),
    )


def _states_chart(name: str, states: Sequence[WorkerState], *kinds: tuple[str, str, Sequence[float]]) -> Chart:
    limit = _round_up(max(max(values) for _, _, values in kinds))
    series = [
        Series(label, kind, _line([HEIGHT * (1 - each / limit) for each in values])) for label, kind, values in kinds
    ]
    summary = "; ".join(f"{label}: {values[-1]:,.0f} now, at most {max(values):,.0f}" for label, _, values in kinds)
    labels = [_rate(limit), _rate(limit / 2), "0"]
    return Chart(name, summary, len(states), series, labels, states[0].snapshot_at, states[-1].snapshot_at)


def _chart(
    name: str, summary: str, series: Sequence[Series], labels: Sequence[str], buckets: Sequence[Bucket]
) -> Chart:
    return Chart(name, summary, len(buckets), series, labels, buckets[0].start, buckets[-1].start)


def _round_up(value: float) -> float:
    """Return the next number of the kind 1, 2, 5, 10, 20 ... ."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power)


def _rate(value: float) -> str:
    return f"{value:.1f}" if value % 1 and value < 10 else count(value)  # noqa: PLR2004 - one digit before the point


def _bars(parts: Sequence[tuple[float, float]], limit: float) -> str:
    """Draw one rectangle for each column: from a value upwards."""
    pieces: list[str] = []
    for column, (base, size) in enumerate(parts):
        if size > 0:
            height = max(HEIGHT * size / limit, 1.0)  # a single failure is visible
            pieces.append(
                f"M{column + (1 - BAR) / 2:g} {HEIGHT * (1 - base / limit):.4g}h{BAR:g}v{-height:.4g}h{-BAR:g}z"
            )
    return "".join(pieces)


def _line(heights: Sequence[float | None]) -> str:
    """Draw a line through the middles of the columns. It is interrupted where nothing is known; a value alone is a dot."""
    pieces: list[str] = []
    is_drawing = False
    for column, height in enumerate(heights):
        if height is None:
            is_drawing = False
        else:
            pieces.append(f"{'L' if is_drawing else 'M'}{column + 0.5:g} {height:.4g}" + ("" if is_drawing else "h0"))
            is_drawing = True
    return "".join(pieces)
