"""A clock that tests can move. Only the database's clock decides what is due, expired or stale, and nobody can set that one: so what
moves is every moment in the sandbox's database, backwards.

The tables and their columns are read from the catalogue, so what is added to the schema moves along by itself. Schedules alone stay where they
are in the calendar, or a daily one would drift with every step: for them the clock goes ahead, and they are ticked at each slot on the way, as by a scheduler
that has been running all the time.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from horsies.app import Horsies
from horsies.db.pooler import PINNED, set_locally
from horsies.db.statement import Op, Statement, load, rows, script
from horsies.maintenance.rescue import (
    cancel_pending_tasks,
    end_overdue_workflows,
    expire_tasks,
    release_expired_claims,
    settle_workflows,
)
from horsies.model.send_options import span_problems, to_timedelta
from horsies.model.validation import raise_problems
from horsies.schedules.sync import DeclaredSchedule, declared_schedules, sync_schedules
from horsies.schedules.tick import SQL as TICK
from horsies.schedules.tick import tick
from horsies.tasks.claim import promote_tasks
from horsies.testing.sandbox import sandbox_of

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

SQL = load(__file__)


class Clock:
    """The time of the sandbox."""

    def advance(self, by: float | timedelta, *, app: Horsies | None = None) -> None:
        """Let so many seconds pass. What has become due can be drained then, what is too late has expired; nothing is run."""
        raise_problems("clock.advance()", _problems(by))
        sandbox = sandbox_of(app)
        broker, ahead = sandbox.broker, _ahead.get(sandbox.broker, timedelta(0))
        schedules = declared_schedules(sandbox.app.config, sandbox.app.known_tasks)
        broker.run(partial(_advance, to_timedelta(by), broker.config.schema))
        if schedules is not None:
            broker.run(partial(_follow_schedules, sandbox.app, schedules, ahead, to_timedelta(by)))
        _ahead[broker] = ahead + to_timedelta(by)


clock = Clock()
_ahead: "WeakKeyDictionary[PostgresBroker, timedelta]" = WeakKeyDictionary()


def _problems(by: object) -> Iterator[str]:
    yield from span_problems("the time to let pass", by)


def _advance(by: timedelta, schema: str) -> Op[None]:
    found = yield from rows(SQL["get_time_shifts"](seconds=by.total_seconds(), schema=schema))
    moves = "; ".join(f"update {{schema}}.{table} set {moved}" for table, moved in found)  # noqa: S608 - quoted by the server
    yield from script(Statement("move_times", f"begin; {set_locally(PINNED)}; {moves}; commit"))
    yield from run_maintenance()


def _follow_schedules(app: Horsies, schedules: Sequence[DeclaredSchedule], ahead: timedelta, by: timedelta) -> Op[None]:
    ((now,),) = yield from rows(TICK["get_tick_time"](now=None))
    moment, end = now + ahead, now + ahead + by
    yield from sync_schedules(schedules, app=app.name, locator=app.locator, now=moment)
    while moment <= end:
        ticked = yield from tick(moment)
        if ticked.next_due_s is None:
            return
        moment += timedelta(seconds=max(0.0, ticked.next_due_s))


def run_maintenance() -> Op[None]:
    """What a keeper does in the background: end what was cancelled or is too late, give back what was claimed and never begun, and
    let in what is due.
    """
    yield from release_expired_claims()
    yield from cancel_pending_tasks()
    while (yield from expire_tasks()):
        pass
    yield from end_overdue_workflows()
    yield from settle_workflows()
    while (yield from rows(promote_tasks())):
        pass
