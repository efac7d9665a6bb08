"""What an operator may do to a schedule. None or False: there is none of that name."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from horsies.db.statement import Op, execute, load, rows
from horsies.model.errors import ConfigError
from horsies.model.schedule import next_slot, pattern_from_json, zone_named
from horsies.model.task import TaskId
from horsies.schedules.sync import SQL as SYNC
from horsies.schedules.tick import SQL as TICK

SQL = load(__file__)


def pause_schedule(name: str) -> Op[bool]:
    """Nothing more is enqueued by this schedule, whatever apps declare, until it is resumed."""
    found, _ = yield from execute(SQL["pause_schedule"](name=name), SYNC["notify_schedules"]())
    return bool(found)


def resume_schedule(name: str, now: datetime | None = None) -> Op[bool]:
    """It goes on with its first slot from now on: what came while it was paused was not wanted. Nothing changes if it is not paused."""
    _, _, found, ((moment,),) = yield from execute(
        TICK["begin_tick"](), TICK["set_tick_limits"](), SQL["lock_schedule"](name=name), TICK["get_tick_time"](now=now)
    )
    changes = []
    for pattern, timezone, enabled, is_paused in found:
        if is_paused:
            try:
                slot = next_slot(pattern_from_json(pattern), zone_named(timezone), moment) if enabled else None
            except ValueError as error:
                raise ConfigError(f"schedule {name!r}", [str(error)]) from None
            changes = [SQL["resume_schedule"](name=name, next_slot=slot), SYNC["notify_schedules"]()]
    yield from execute(*changes, TICK["commit_tick"]())
    return bool(found)


def run_schedule(name: str, task_id: TaskId) -> Op[bool]:
    """Enqueue its task once, now, on the terms of the schedule; its slots are as before. The same id never does it twice."""
    _, _, found, *_ = yield from execute(
        TICK["begin_tick"](),
        TICK["set_tick_limits"](),
        SQL["lock_schedule"](name=name),
        SQL["run_schedule"](name=name, id=task_id),
        TICK["commit_tick"](),
    )
    return bool(found)


# --------
# What is stored about schedules, for those who look.


class ScheduleState(StrEnum):
    """Whether a schedule enqueues anything, and if not, why."""

    ACTIVE = "active"
    PAUSED = "paused"
    """By an operator."""
    DISABLED = "disabled"
    """By the app, which declares it with enabled=False."""
    REMOVED = "removed"
    """Its app does not declare it any more."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it is stored. `args` is the JSON of what its task is called with."""

    name: str
    task_name: str
    queue_name: str
    args: str
    pattern: Mapping[str, Any]
    timezone: str
    catch_up_missed: bool
    max_catch_up_runs: int
    jitter_ms: int
    overlap: str
    enabled: bool
    declared: bool
    paused_at: datetime | None
    next_slot_at: datetime | None
    last_slot_at: datetime | None
    last_task_id: str | None
    changed_at: datetime
    app: str | None
    """The app that it belongs to; None if an older library has stored it."""

    @property
    def state(self) -> ScheduleState:
        """The first of the reasons not to enqueue, if there is one."""
        if not self.declared:
            return ScheduleState.REMOVED
        if not self.enabled:
            return ScheduleState.DISABLED
        return ScheduleState.ACTIVE if self.paused_at is None else ScheduleState.PAUSED

    @property
    def shown_pattern(self) -> str:
        """For people."""
        try:
            return str(pattern_from_json(self.pattern))
        except ValueError:
            return str(dict(self.pattern))

    def next_slots(self, count: int) -> list[datetime]:
        """The next so many. Raises ValueError for a pattern or a zone that is not known here."""
        found: list[datetime] = []
        slot = self.next_slot_at
        while slot is not None and len(found) < count:
            found.append(slot)
            slot = next_slot(pattern_from_json(self.pattern), zone_named(self.timezone), slot)
        return found


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """What became of a slot, or of all those from `slot_at` to `last_slot_at`."""

    outcome: str
    slot_at: datetime | None
    last_slot_at: datetime | None
    task_id: str | None
    decided_at: datetime


def get_schedules(
    name: str | None = None, task_name: str | None = None, queue_name: str | None = None
) -> Op[list[ScheduleInfo]]:
    """By name."""
    found = yield from rows(SQL["get_schedules"](name=name, task_name=task_name, queue_name=queue_name))
    return [ScheduleInfo(*row) for row in found]


def get_schedule_runs(name: str, limit: int) -> Op[list[ScheduleRun]]:
    """Newest first."""
    found = yield from rows(SQL["get_schedule_runs"](name=name, limit=limit))
    return [ScheduleRun(*row) for row in found]
