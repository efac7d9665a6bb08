"""Isolate: of many rows that are served together, find the one that fails, and serve the others.

The keeper's duties are set-based: one statement for hundreds of rows. A row that the statement cannot serve (its own values make it fail, or a trigger of the
user's refuses it) would keep all others from being served, at every look again. So after a failure the rows are served in halves, and these in halves, until
the row is alone. It is *set aside*: logged once, left out for a while, and tried again later, less and less often. `horsies doctor` shows it, because it
stays where it is.

What is not the fault of a row is raised as it is: a lost connection, a missing right, a full disk. Contention passes: those rows are left to the next look.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from horsies.db.errors import DriverError, ErrorKind, classify, is_about_row, short_text
from horsies.db.statement import Op, Statement, rows

FIRST_S, LONGEST_S = 60.0, 3600.0
"""After which a row that was set aside is tried again; each time twice as long."""
AT_MOST = 10_000
"""Rows that are remembered. Beyond them, the oldest are tried again."""

_ROLLBACK = Statement("rollback_duty", "rollback")

log = logging.getLogger("horsies.maintenance")
Row = TypeVar("Row")
T = TypeVar("T")


@dataclass(slots=True)
class _Attempted:
    error: str
    pause_s: float
    until: float


@dataclass(slots=True)
class SkippedRow:
    """The rows that could not be served, by duty and id, and until when they are left out."""

    _cases: dict[tuple[str, str], _Attempted] = field(default_factory=dict[tuple[str, str], _Attempted])

    def excluded(self, duty: str) -> list[str]:
        """Their ids, for the statement that looks for work."""
        now = time.monotonic()
        return [row_id for (other, row_id), case in self._cases.items() if other == duty and now < case.until]

    def add(self, duty: str, row_id: str, error: str) -> None:
        """Log it, unless it failed in the same way before."""
        before = self._cases.pop((duty, row_id), None)
        pause_s = FIRST_S if before is None else min(before.pause_s * 2, LONGEST_S)
        while len(self._cases) >= AT_MOST:
            del self._cases[next(iter(self._cases))]
        self._cases[duty, row_id] = _Attempted(error, pause_s, time.monotonic() + pause_s)
        if before is None or before.error != error:
            log.warning("the keeper could not %s %s, and goes on with the others: %s", duty, row_id, error)

    def forget(self, duty: str, row_id: str) -> None:
        """It could be served after all."""
        self._cases.pop((duty, row_id), None)


def run_isolated(
    duty: str,
    items: Sequence[Row],
    work: Callable[[Sequence[Row]], Op[T]],
    *,
    id_of: Callable[[Row], str],
    aside: SkippedRow,
    last_resort: Callable[[Row, DriverError], Op[T] | None] = lambda _row, _error: None,
) -> Op[list[T]]:
    """What the work returned for each group of rows that could be served together; most often there is one group, of all rows.

    `last_resort` is what to do with a row that the work fails for even alone; None, nothing.
    """
    if not items:
        return []
    try:
        done = yield from work(items)
    except DriverError as error:
        why = error
        yield from _roll_back_after(error)
        if classify(error) is ErrorKind.CONTENTION:
            log.debug("the keeper leaves %d rows to its next look (%s): %s", len(items), duty, short_text(error))
            return []
    else:
        for item in items:
            aside.forget(duty, id_of(item))
        return [done]
    if len(items) == 1:
        return (yield from _give_up_on(duty, items[0], why, id_of, aside, last_resort(items[0], why)))
    middle = len(items) // 2
    found: list[T] = []
    for half in (items[:middle], items[middle:]):
        found += yield from run_isolated(duty, half, work, id_of=id_of, aside=aside, last_resort=last_resort)
    return found


def _give_up_on(
    duty: str,
    item: Row,
    why: DriverError,
    id_of: Callable[[Row], str],
    aside: SkippedRow,
    last_resort: Op[T] | None,
) -> Op[list[T]]:
    reason = short_text(why)
    if last_resort is not None:
        try:
            done = yield from last_resort
        except DriverError as error:
            yield from _roll_back_after(error)
        else:
            log.warning("the keeper could not %s %s, and ended it as FAILED: %s", duty, id_of(item), reason)
            return [done]
    aside.add(duty, id_of(item), reason)
    return []


def _roll_back_after(error: DriverError) -> Op[None]:
    """Raises it again if no row can be to blame. The work may have begun a transaction."""
    if not (is_about_row(error) or classify(error) is ErrorKind.CONTENTION):
        raise error
    yield from rows(_ROLLBACK())
