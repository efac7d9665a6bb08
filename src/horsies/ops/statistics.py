"""Statistics of the last day: how many tasks ended in each minute, how long they waited and ran, and which errors they had.

The maintenance leader counts each minute when it is over (`maintenance/minutes.py`). What has ended since then is read from `finished`, the newest tasks up
to `MAX_TAIL`. If there are more, the points and groups concerned say `is_complete=False`, and their numbers are too low, until the leader has counted them.

A task counts in the minute in which it ended. If it is retried or deleted more than about two minutes later, it still counts there.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from itertools import accumulate

from horsies.db.statement import Op, load, rows_in_index_order
from horsies.model.status import TaskStatus
from horsies.tasks.inspect import TaskFilter

MAX_MINUTES = 24 * 60
MAX_TAIL, MAX_FAILURES = 20_000, 5_000
MAX_GROUPS = 1_000
MAX_NAME = 200  # characters of the name of a task
_SHOWN = (0.5, 0.95)

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class MinutePoint:
    """The tasks that ended in one minute, and how long they waited (from due to start) and ran, in milliseconds; None if that is not known of any.

    Percentiles come from a histogram with the limits 1, 2, 4, 8 ... ms, and are interpolated between these: the true value lies between the same two limits.
    So they are at most twice, and at least half of it. From 33554432 ms (9.3 hours) on they are that number.
    """

    minute: datetime
    completed: int
    failed: int
    cancelled: int
    expired: int
    retried: int
    """Attempts before the last one."""
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    run_p50_ms: float | None
    run_p95_ms: float | None
    is_complete: bool
    """False: more tasks have ended lately than were read, so the numbers are too low."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failures of one task with the same code and message. Numbers and ids in the message are masked.

    If a minute had many kinds of errors, the rest is in a group without a name; messages beyond the first 20 000 of a minute are empty.
    """

    task_name: str
    error_code: str
    message: str
    """The first line, up to 200 characters. Control characters are masked, too."""
    count: int
    first_at: datetime
    last_at: datetime
    example_id: str
    """The newest."""
    is_complete: bool
    """False: more tasks have failed lately than were read, so the count may be too low."""

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that follow from the task, the code and the message, so that the group has the same id tomorrow."""
        return sha256(json.dumps([self.task_name, self.error_code, self.message]).encode()).hexdigest()[:8]

    def to_filter(self) -> TaskFilter:
        """Return the filter that selects exactly these failures, in the time from the first to the last of them.

        Raises ValueError for the group without a name, which has the rest of minutes with too many kinds of errors.
        """
        if not self.task_name:
            raise ValueError(
                "this group has the rest of many kinds of errors, and no common name; choose by error code or time"
            )
        return TaskFilter(
            statuses=[TaskStatus.FAILED],
            task_name=self.task_name,
            error_code=self.error_code,
            error_summary=self.message,
            since=self.first_at,
            until=self.last_at + timedelta(microseconds=1),
        )


@dataclass(frozen=True, slots=True)
class EndedTotals:
    """The tasks of one queue, or of one name, that ended in a time; and how long they waited and ran, as in `MinutePoint`."""

    name: str
    """Empty for the rest of minutes with too many queues and tasks."""
    completed: int
    failed: int
    cancelled: int
    expired: int
    retried: int
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    run_p50_ms: float | None
    run_p95_ms: float | None
    run_total_s: float
    """How long they ran in all, estimated from a histogram: the true value is between half of it and twice it."""
    is_complete: bool

    @property
    def ended(self) -> int:
        """How many tasks ended, in whatever way."""
        return self.completed + self.failed + self.cancelled + self.expired


class TotalsOrder(StrEnum):
    """Which totals come first."""

    COUNT = "count"
    FAILURES = "failures"
    DURATION = "duration"
    """The 95th percentile of how long they ran."""
    RUN_TOTAL = "run_total"


_ORDERS: Mapping[TotalsOrder, Callable[[EndedTotals], float]] = {
    TotalsOrder.COUNT: lambda totals: totals.ended,
    TotalsOrder.FAILURES: lambda totals: totals.failed,
    TotalsOrder.DURATION: lambda totals: totals.run_p95_ms or 0,
    TotalsOrder.RUN_TOTAL: lambda totals: totals.run_total_s,
}


def get_time_series(minutes: int, queue_name: str | None = None, task_name: str | None = None) -> Op[list[MinutePoint]]:
    """Return a point for each of the last minutes, oldest first; the last one is the current minute."""
    window = max(1, min(minutes, MAX_MINUTES))
    names = {"queue_name": queue_name, "task_name": task_name}
    query = SQL["get_time_series"](minutes=window, **names, by_queue=task_name is None, limit=MAX_TAIL)
    points: list[MinutePoint] = []
    for *counts, waited, ran, is_complete in (yield from rows_in_index_order(query)):
        percentiles = _get_percentiles(waited, _SHOWN) + _get_percentiles(ran, _SHOWN)
        points.append(MinutePoint(*counts, *percentiles, is_complete=is_complete))
    return points


def count_ended(
    minutes: int, queue_name: str | None = None, task_name: str | None = None
) -> Op[Mapping[TaskStatus, int]]:
    """Sum up the points of the same window by status."""
    return sum_up((yield from get_time_series(minutes, queue_name, task_name)))


def sum_up(points: Sequence[MinutePoint]) -> Mapping[TaskStatus, int]:
    return {status: sum(getattr(point, status.lower()) for point in points) for status in TaskStatus if status.is_final}


def get_totals(
    minutes: int, *, by_queue: bool, queue_name: str | None = None, order: TotalsOrder = TotalsOrder.COUNT
) -> Op[list[EndedTotals]]:
    """Return the totals of the last minutes by queue or by task, the greatest first."""
    window = max(1, min(minutes, MAX_MINUTES))
    query = SQL["get_totals"](minutes=window, by_queue=by_queue, queue_name=queue_name, limit=MAX_TAIL)
    totals: list[EndedTotals] = []
    for *counts, waited, ran, is_complete in (yield from rows_in_index_order(query)):
        percentiles = _get_percentiles(waited, _SHOWN) + _get_percentiles(ran, _SHOWN)
        totals.append(EndedTotals(*counts, *percentiles, run_total_s=_estimate_total_s(ran), is_complete=is_complete))
    return sorted(totals, key=lambda each: (-_ORDERS[order](each), each.name))


def _estimate_total_s(histogram: Sequence[int] | None) -> float:
    """Take each task for three quarters of the upper limit of its bucket."""
    return sum(count * 0.75 * 2.0**bucket for bucket, count in enumerate(histogram or ())) / 1000


def get_error_groups(
    hours: float, limit: int, task_name: str | None = None, sensitive: Sequence[str] = ()
) -> Op[list[ErrorGroup]]:
    """Return the groups of errors of the last hours, the most frequent first. Those of these sensitive tasks have no message."""
    window, size = max(1, math.ceil(min(MAX_MINUTES, hours * 60))), max(1, min(limit, MAX_GROUPS))
    hidden = [name[:MAX_NAME] for name in sensitive]
    query = SQL["get_error_groups"](
        minutes=window, task_name=task_name, limit=size, tail=MAX_FAILURES, sensitive=hidden
    )
    return [ErrorGroup(*row) for row in (yield from rows_in_index_order(query))]


def get_percentile(histogram: Sequence[int] | None, share: float) -> float | None:
    """Return the duration in milliseconds that this share of a histogram does not exceed. Bucket n ends at 2**n ms; the last one has no end."""
    return _get_percentiles(histogram, (share,))[0]


def _get_percentiles(histogram: Sequence[int] | None, shares: Sequence[float]) -> list[float | None]:
    """Return several percentiles of one histogram. A day has thousands of histograms."""
    sums = list(accumulate(histogram or ()))
    if histogram is None or not sums or not sums[-1]:
        return [None] * len(shares)
    found: list[float | None] = []
    for share in shares:
        wanted = sums[-1] * share
        bucket = bisect_left(sums, wanted)
        low = 2.0 ** (bucket - 1) if bucket else 0.0
        count = histogram[bucket]
        is_last = bucket == len(sums) - 1
        found.append(low if is_last else low + (2.0**bucket - low) * (wanted - (sums[bucket] - count)) / count)
    return found
