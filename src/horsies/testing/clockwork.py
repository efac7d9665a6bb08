"""A clock that tests can move. Only the database's clock decides what is due, expired or stale, and nobody can set that one: so what
moves is every moment in the sandbox's database, backwards.

The tables and their columns are read from the catalogue, so what is added to the schema moves along by itself.
"""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

from horsies.app import Horsies
from horsies.db.load import load
from horsies.db.op import Op, Statement, rows, script
from horsies.keeper.reap import (
    cancel_returned,
    end_overdue_workflows,
    expire,
    release_overdue,
    settle_workflows,
)
from horsies.model.options import as_span, span_problems
from horsies.model.problems import refuse
from horsies.tasks.promote import promote
from horsies.testing.sandbox import sandbox_of

SQL = load(__file__)


class Clock:
    """The time of the sandbox."""

    def advance(self, by: float | timedelta, *, app: Horsies | None = None) -> None:
        """Let so many seconds pass. What has become due can be drained then, what is too late has expired; nothing is run."""
        refuse("clock.advance()", _problems(by))
        broker = sandbox_of(app).broker
        broker.run(partial(_advance, as_span(by), broker.config.schema))


clock = Clock()


def _problems(by: object) -> Iterator[str]:
    yield from span_problems("the time to let pass", by)


def _advance(by: timedelta, schema: str) -> Op[None]:
    found = yield from rows(SQL["get_moves"](seconds=by.total_seconds(), schema=schema))
    moves = "; ".join(text for (text,) in found)
    yield from script(Statement("move_times", f"begin; {moves}; commit"))
    yield from keep_house()


def keep_house() -> Op[None]:
    """What a keeper does in the background: end what was cancelled or is too late, give back what was claimed and never begun, and
    let in what is due.
    """
    yield from release_overdue()
    yield from cancel_returned()
    while (yield from expire()):
        pass
    yield from end_overdue_workflows()
    yield from settle_workflows()
    while (yield from rows(promote())):
        pass
