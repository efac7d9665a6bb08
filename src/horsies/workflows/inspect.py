"""Inspect: read what is known of runs, change nothing."""

from dataclasses import dataclass

from horsies.db.load import load
from horsies.db.op import Op, rows

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Stuck:
    """A tree of runs that would not move by itself, and why."""

    root_id: str
    why: str


def get_stuck() -> Op[list[Stuck]]:
    """None, ever, for longer than a step or the keeper's next look."""
    found = yield from rows(SQL["get_stuck"]())
    return [Stuck(*row) for row in found]
