"""Short forms to declare schedules without an app, store them and read them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

import psycopg

from horsies.db.broker import PostgresBroker
from horsies.db.driver import execute_on
from horsies.db.statement import AnyRequest, Op, Request
from horsies.model.schedule import Pattern, TaskSchedule
from horsies.model.task import TaskOptions
from horsies.schedules.control import ScheduleRun, get_schedule_runs
from horsies.schedules.sync import DeclaredSchedule, SyncResult, sync_schedules
from horsies.schedules.tick import TickResult, tick

T = TypeVar("T")


def declare(
    name: str, pattern: Pattern, *, args: str = "{}", terms: TaskOptions | None = None, **options: Any
) -> DeclaredSchedule:
    schedule = TaskSchedule(name=name, task_name="add", pattern=pattern, **options)
    return DeclaredSchedule(schedule, terms or TaskOptions("add", "default"), args)


def store(
    broker: PostgresBroker,
    *declared: DeclaredSchedule,
    now: datetime | None = None,
    app: str = "shop",
    locator: str | None = None,
) -> SyncResult:
    return broker.run(partial(sync_schedules, declared, app=app, locator=locator, now=now))


def tick_at(broker: PostgresBroker, now: datetime, **options: Any) -> TickResult:
    return broker.run(partial(tick, now, **options))


def outcomes(ticked: TickResult) -> list[tuple[str, datetime]]:
    return [(decision.outcome.value, decision.slot_at) for decision in ticked.decisions]


def history(broker: PostgresBroker, name: str, limit: int = 1_000) -> list[ScheduleRun]:
    """Return the runs of a schedule, oldest first."""
    return list(reversed(broker.run(partial(get_schedule_runs, name, limit))))


def slots_of(runs: Sequence[ScheduleRun], outcome: str = "ENQUEUED") -> list[datetime]:
    return [run.slot_at for run in runs if run.outcome == outcome and run.slot_at is not None]


def stored_row(sql: psycopg.Connection, name: str) -> Mapping[str, Any]:
    cursor = sql.execute("select to_jsonb(schedules) from horsies.schedules where name = %s", [name])
    (found,) = cursor.fetchone() or ({},)
    return found


def end_all_tasks(sql: psycopg.Connection) -> None:
    sql.execute("delete from horsies.tasks")


class Stepper(Generic[T]):
    """A verb that is executed request by request on its own connection, so that a test can stop it in between."""

    def __init__(self, connection: psycopg.Connection, op: Op[T]) -> None:
        self._connection = connection
        self._op = op
        self.result: T | None = None
        self.request: AnyRequest | None = next(op)

    @property
    def names(self) -> list[str]:
        """Return the names of the next statements."""
        return [query.statement.name for query in self.request.queries] if isinstance(self.request, Request) else []

    def step(self) -> bool:
        """Execute the next request. Returns whether there is another one."""
        assert isinstance(self.request, Request)
        answer = execute_on(self._connection, self.request, "horsies")
        try:
            self.request = self._op.send(answer)
        except StopIteration as end:
            self.request, self.result = None, end.value
        return self.request is not None

    def until(self, statement: str) -> None:
        while statement not in self.names:
            assert self.step(), f"the verb ended before {statement}"
