"""A clock that tests can advance.

Only the clock of the database decides what is due, expired or stale, and it cannot be set. Instead, all times in the
sandbox's database are moved into the past. Tables and columns are read from the catalogue, so new ones are included.

Only schedules keep their calendar times; otherwise a daily one would drift with every step. For them the clock runs ahead
of the database's, and they are ticked at each slot on the way, as by a scheduler that has been running all the time.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from weakref import WeakKeyDictionary

from horsies.app import Horsies
from horsies.db.broker import PostgresBroker
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

SQL = load(__file__)


class Clock:
    """The time in the sandbox."""

    def __init__(self) -> None:
        self._ahead: WeakKeyDictionary[PostgresBroker, timedelta] = WeakKeyDictionary()

    def advance(self, by: float | timedelta, *, app: Horsies | None = None) -> None:
        """Advance the clock by this time (seconds). What has become due can be drained, what is too late has expired.

        No task is run.
        """
        raise_problems("clock.advance()", span_problems("the time to let pass", by))
        step, sandbox = to_timedelta(by), sandbox_of(app)
        broker, ahead = sandbox.broker, self._ahead.get(sandbox.broker, timedelta(0))
        schedules = declared_schedules(sandbox.app.config, sandbox.app.known_tasks)
        broker.run(partial(_move_times, step, broker.config.schema))
        if schedules is not None:
            broker.run(partial(_tick_schedules, sandbox.app, schedules, ahead, step))
        self._ahead[broker] = ahead + step


clock = Clock()
"""The clock of the open sandbox."""


def _move_times(step: timedelta, schema: str) -> Op[None]:
    shifts = yield from rows(SQL["get_time_shifts"](seconds=step.total_seconds(), schema=schema))
    updates = "; ".join(f"update {{schema}}.{table} set {shift}" for table, shift in shifts)  # noqa: S608 - quoted by the server
    yield from script(Statement("move_times", f"begin; {set_locally(PINNED)}; {updates}; commit"))
    yield from run_maintenance()


def _tick_schedules(app: Horsies, schedules: Sequence[DeclaredSchedule], ahead: timedelta, step: timedelta) -> Op[None]:
    ((now,),) = yield from rows(TICK["get_tick_time"](now=None))
    moment, end = now + ahead, now + ahead + step
    yield from sync_schedules(schedules, app=app.name, locator=app.locator, now=moment)
    while moment <= end:
        ticked = yield from tick(moment)
        if ticked.next_due_s is None:
            return
        moment += timedelta(seconds=max(0.0, ticked.next_due_s))


def run_maintenance() -> Op[None]:
    """Do what the maintenance leader does in the background: end cancelled and expired tasks, release claims that were
    never started, and promote what is due.
    """
    yield from release_expired_claims()
    yield from cancel_pending_tasks()
    while (yield from expire_tasks()):
        pass
    yield from end_overdue_workflows()
    yield from settle_workflows()
    while (yield from rows(promote_tasks())):
        pass
