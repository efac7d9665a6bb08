"""Process many rows in one statement; if it fails, find the failing row and process the others.

The duties of maintenance are set-based: one statement for hundreds of rows. A row that makes the statement fail, by its own values or by a trigger of the
user, would block all others in every pass. So after a failure the rows are processed in halves, and these in halves, until the failing row is alone.
It is logged once, skipped for a while, and tried again later, less and less often. `horsies doctor` lists it, because it stays where it is.

Errors that no row is to blame for are raised: a lost connection, a missing privilege, a full disk. After contention the rows are left to the next pass.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from horsies.db.errors import DriverError, ErrorKind, classify, is_about_row, short_text
from horsies.db.statement import Op, Statement, rows

FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
"""How long a failed row is skipped; twice as long each time."""
MAX_REMEMBERED: Final = 10_000
"""Failed rows. Beyond that, the oldest are tried again."""

_ROLLBACK = Statement("rollback_duty", "rollback")

log = logging.getLogger("horsies.maintenance")
Row = TypeVar("Row")
T = TypeVar("T")


@dataclass(slots=True)
class FailedRows:
    """Rows that could not be processed, by duty and id, and until when they are skipped."""

    clock: Callable[[], float] = time.monotonic
    _failures: dict[tuple[str, str], tuple[str, float, float]] = field(
        default_factory=dict[tuple[str, str], tuple[str, float, float]]
    )
    """The error, how long the row is skipped, and until when."""

    def excluded(self, duty: str) -> list[str]:
        """Return the ids that the duty must skip now."""
        now = self.clock()
        return [row_id for (other, row_id), (_, _, until) in self._failures.items() if other == duty and now < until]

    def add(self, duty: str, row_id: str, error: str) -> None:
        """Skip a row for a while, and log it unless it failed with the same error before."""
        known_error, last_pause_s, _ = self._failures.pop((duty, row_id), (None, FIRST_PAUSE_S / 2, 0.0))
        pause_s = min(last_pause_s * 2, LONGEST_PAUSE_S)
        while len(self._failures) >= MAX_REMEMBERED:
            del self._failures[next(iter(self._failures))]
        self._failures[duty, row_id] = error, pause_s, self.clock() + pause_s
        if error != known_error:
            log.warning("maintenance: could not %s %s, continuing with the others: %s", duty, row_id, error)

    def remove(self, duty: str, row_id: str) -> None:
        self._failures.pop((duty, row_id), None)


def run_isolated(
    duty: str,
    items: Sequence[Row],
    work: Callable[[Sequence[Row]], Op[T]],
    *,
    id_of: Callable[[Row], str],
    failed: FailedRows,
    fallback: Callable[[Row, DriverError], Op[T] | None] = lambda _row, _error: None,
) -> Op[list[T]]:
    """Return what `work` returned for each group of rows that it could process; usually one group, of all rows.

    `fallback` is what to do with a row for which `work` fails even alone; None: nothing.
    """
    results: list[T] = []
    groups = [items] if items else []
    while groups:
        group = groups.pop()
        try:
            results.append((yield from work(group)))
        except DriverError as error:
            yield from _roll_back_after(error)
            if classify(error) is ErrorKind.CONTENTION:
                log.debug("maintenance: leaving %d rows to the next pass (%s): %s", len(group), duty, short_text(error))
            elif len(group) > 1:
                middle = len(group) // 2
                groups += (group[middle:], group[:middle])
            else:
                row = group[0]
                results += yield from _skip(duty, id_of(row), short_text(error), failed, fallback(row, error))
        else:
            for item in group:
                failed.remove(duty, id_of(item))
    return results


def _skip(duty: str, row_id: str, reason: str, failed: FailedRows, fallback: Op[T] | None) -> Op[list[T]]:
    if fallback is not None:
        try:
            result = yield from fallback
        except DriverError as error:
            yield from _roll_back_after(error)
        else:
            log.warning("maintenance: could not %s %s, ended it as FAILED: %s", duty, row_id, reason)
            return [result]
    failed.add(duty, row_id, reason)
    return []


def _roll_back_after(error: DriverError) -> Op[None]:
    """Roll back the transaction that the work may have begun. Raise the error if no row can be to blame."""
    if not (is_about_row(error) or classify(error) is ErrorKind.CONTENTION):
        raise error
    yield from rows(_ROLLBACK())
