"""Pause, resume, run and read schedules; create, change and remove those that no app declares. The operations return False if there is no schedule of
the name.

**Schedules that are created at run time** have `is_dynamic` set, and no app. Otherwise they are rows like all others, so any scheduler ticks them, each
slot once, whichever apps share the schema. Like the storing of declarations, a creation takes the lock of the table: of two schedules of one name the
second is refused. The history of a schedule that is removed stays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from horsies.db.statement import Op, Query, execute, load, rows
from horsies.model.errors import ConfigError
from horsies.model.schedule import next_slot, pattern_from_json, zone_named
from horsies.model.task import TaskId
from horsies.schedules.sync import SQL as SYNC
from horsies.schedules.sync import DeclaredSchedule, StoredSchedule, next_slot_of, store_schedules
from horsies.schedules.tick import SQL as TICK
from horsies.tasks.inspect import first_line

SQL = load(__file__)


def pause_schedule(name: str) -> Op[bool]:
    """Stop enqueuing tasks of this schedule until it is resumed, whatever apps declare."""
    found, _ = yield from execute(SQL["pause_schedule"](name=name), SYNC["notify_schedules"]())
    return bool(found)


def resume_schedule(name: str, now: datetime | None = None) -> Op[bool]:
    """Continue with the first slot from now on; slots that were due during the pause are left out. Does nothing if it is not paused."""
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
    """Enqueue the task of a schedule once, now, without changing its slots. Can be repeated with the same id."""
    _, _, found, *_ = yield from execute(
        TICK["begin_tick"](),
        TICK["set_tick_limits"](),
        SQL["lock_schedule"](name=name),
        SQL["run_schedule"](name=name, id=task_id),
        TICK["commit_tick"](),
    )
    return bool(found)


def create_schedule(new: DeclaredSchedule, now: datetime | None = None) -> Op[None]:
    """Store a schedule that no app declares. Can be repeated: one that is stored already, as it is given here, is left alone."""
    name = new.schedule.name
    row, moment = yield from _begin_change(name, now)
    if row is not None and row.declared and not row.is_dynamic:
        yield from _refuse(_declared(row))
    # What its app no longer declares gives its name away, with its pause.
    retired = [SYNC["delete_schedule"](name=name)] if row is not None and not row.is_dynamic else []
    slots = {name: next_slot_of(new.schedule, None if retired else row, moment)}
    *_, written = yield from execute(*retired, store_schedules([new], slots, app=None))
    # What is stored alike is not written again, so one that was written differed. The refusal rolls that back.
    if written and row is not None and row.is_dynamic:
        yield from _refuse(
            f"schedule {name!r} exists already, with another definition; change it, or choose another name"
        )
    yield from execute(SYNC["notify_schedules"](), TICK["commit_tick"]())


def change_schedule(new: DeclaredSchedule, now: datetime | None = None) -> Op[bool]:
    """Replace a schedule that was created at run time. A paused one stays paused."""
    name = new.schedule.name
    row, moment = yield from _begin_change(name, now)
    changes: list[Query] = []
    if row is not None:
        if not row.is_dynamic:
            yield from _refuse(_declared(row))
        slots = {name: next_slot_of(new.schedule, row, moment)}
        changes = [store_schedules([new], slots, app=None), SYNC["notify_schedules"]()]
        if row.drops_slot(slots[name], moment):
            changes.append(SYNC["record_missed_slots"](names=[name], slots=[row.next_slot_at]))
    yield from execute(*changes, TICK["commit_tick"]())
    return row is not None


def remove_schedule(name: str) -> Op[bool]:
    """Delete a schedule that was created at run time."""
    row, _ = yield from _begin_change(name)
    if row is not None and not row.is_dynamic:
        yield from _refuse(_declared(row))
    yield from execute(SYNC["delete_schedule"](name=name), SYNC["notify_schedules"](), TICK["commit_tick"]())
    return row is not None


def _begin_change(name: str, now: datetime | None = None) -> Op[tuple[StoredSchedule | None, datetime]]:
    """Begin a transaction in which no other process stores schedules, and lock the row."""
    *_, found, ((moment,),) = yield from execute(
        TICK["begin_tick"](),
        TICK["set_tick_limits"](),
        SYNC["lock_schedules_table"](),
        SYNC["lock_one_schedule"](name=name),
        TICK["get_tick_time"](now=now),
    )
    return (StoredSchedule(*found[0]) if found else None), moment


def _declared(row: StoredSchedule) -> str:
    owner = "an app" if row.app is None else f"app {row.app!r}"
    if row.declared:
        return f"schedule {row.name!r} is declared by {owner}; change it in the configuration of that app, or choose another name"
    return f"schedule {row.name!r} was declared by {owner} and is never due; create a new one with this name if it is to run again"


def _refuse(problem: str) -> Op[None]:
    yield from rows(TICK["roll_back_tick"]())
    raise ConfigError("the schedule", [problem])


class ScheduleState(StrEnum):
    """Whether a schedule enqueues tasks and, if not, why."""

    ACTIVE = "active"
    PAUSED = "paused"
    """By an operator."""
    DISABLED = "disabled"
    """By the app, which declares it with enabled=False."""
    REMOVED = "removed"
    """Its app does not declare it any more."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it is stored. `args` is the JSON object of the arguments of its task; None if the task is sensitive."""

    name: str
    task_name: str
    queue_name: str
    args: str | None
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
    """The app that it belongs to; None if an older library has stored it, or if it was created at run time."""
    is_dynamic: bool = False
    """Created at run time, and not declared by an app."""
    last_status: str | None = None
    """How its newest run that has ended did so; None if there is none, or its task has been deleted. Cancelled runs do not count."""
    last_error_code: str | None = None
    failures_in_a_row: int = 0
    """How many of its newest runs, of at most 10, failed or expired since the last that succeeded."""

    @property
    def state(self) -> ScheduleState:
        if not self.declared:
            return ScheduleState.REMOVED
        if not self.enabled:
            return ScheduleState.DISABLED
        return ScheduleState.ACTIVE if self.paused_at is None else ScheduleState.PAUSED

    @property
    def pattern_text(self) -> str:
        """The pattern as text for users; its JSON if this process does not know it."""
        try:
            return str(pattern_from_json(self.pattern))
        except ValueError:
            return str(self.pattern)

    def next_slots(self, count: int) -> list[datetime]:
        """Return the next slots. Raises ValueError for a pattern or a time zone that this process does not know."""
        slots: list[datetime] = []
        slot = self.next_slot_at
        while slot is not None and len(slots) < count:
            slots.append(slot)
            slot = next_slot(pattern_from_json(self.pattern), zone_named(self.timezone), slot)
        return slots


@dataclass(frozen=True, slots=True)
class ScheduleRun:
    """What happened to a slot, or to all slots from `slot_at` to `last_slot_at`; and to its task, if it has one."""

    outcome: str
    slot_at: datetime | None
    last_slot_at: datetime | None
    task_id: str | None
    decided_at: datetime
    task_status: str | None = None
    """None if the task has been deleted since."""
    error_code: str | None = None
    message: str | None = None
    """The first line of its error."""
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class FailingSchedule:
    """An active schedule whose last runs have failed."""

    name: str
    task_name: str
    failures_in_a_row: int
    error_code: str | None
    message: str | None
    never_succeeded: bool
    """None of its newest runs has."""
    since: datetime | None
    """When the first of these failures was."""


def get_schedules(
    name: str | None = None, task_name: str | None = None, queue_name: str | None = None
) -> Op[list[ScheduleInfo]]:
    """Read the stored schedules, by name."""
    query = SQL["get_schedules"](name=name, task_name=task_name, queue_name=queue_name)
    return [ScheduleInfo(*row) for row in (yield from rows(query))]


def get_next_slots(name: str, count: int) -> Op[Sequence[datetime]]:
    """Return the next slots of a schedule that is active."""
    found = yield from get_schedules(name)
    return [slot for info in found if info.state is ScheduleState.ACTIVE for slot in info.next_slots(count)]


def get_schedule_runs(name: str, limit: int) -> Op[Sequence[ScheduleRun]]:
    """Read the history of a schedule, newest first."""
    return (yield from get_recent_runs([name], limit))[name]


def get_recent_runs(names: Sequence[str], limit: int) -> Op[Mapping[str, Sequence[ScheduleRun]]]:
    """Read the history of each of these schedules, newest first."""
    found: dict[str, list[ScheduleRun]] = {name: [] for name in names}
    for name, *row in (yield from rows(SQL["get_schedule_runs"](names=list(found), limit=limit))):
        run = ScheduleRun(*row)
        found[name].append(run if run.message is None else replace(run, message=first_line(run.message)))
    return found


def get_failing_schedules(limit: int) -> Op[list[FailingSchedule]]:
    """Read the active schedules whose last three runs failed, or whose last run failed and that have not succeeded lately."""
    found = yield from rows(SQL["get_failing_schedules"](limit=limit))
    return [replace(each, message=first_line(each.message)) for each in (FailingSchedule(*row) for row in found)]
