"""Depths: how much waits in each queue, and for how long, at a cost that does not grow with it.

Less than `queues.list_queues` tells, of the app's queues only, and cheaper: every worker is asked for it at every scrape.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from horsies.db.load import load
from horsies.db.op import Op, rows

COUNTED_AT_MOST = 100_000
PRIORITIES_AT_MOST = 100

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Depth:
    """One queue. `waiting` is counted up to `COUNTED_AT_MOST`; what is not due yet does not wait."""

    queue_name: str
    waiting: int
    oldest_s: float
    in_flight: int
    is_paused: bool
    unknown: int = 0
    """Tasks that no living worker can run, in all queues together counted up to `COUNTED_AT_MOST`."""


def get_depths(queues: Sequence[str]) -> Op[list[Depth]]:
    found = yield from rows(
        SQL["get_queue_depths"](queues=list(queues), counted=COUNTED_AT_MOST, priorities_at_most=PRIORITIES_AT_MOST)
    )
    return [Depth(*row) for row in found]
