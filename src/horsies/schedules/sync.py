"""Store the schedules that an app declares.

A scheduler does this once, when it starts. If releases with different declarations run at the same time, the last one to start wins, for all of them: a
tick only reads what is stored. A schedule whose pattern, time zone or `enabled` has changed starts again with its first slot from now on. Any other
change leaves its next slot as it is, and a schedule that has not changed is not updated. A schedule that is no longer declared is kept, disabled. What an
operator has paused stays paused.

Several apps can share a schema. Each row belongs to the app that stored it: an app removes only its own rows, and does not change a schedule of the same
name that another app declares. A row that no app declares any more, and a row without an app (stored by an older library), goes to the next app that
declares the name. A schedule that was created at run time (`control.py`) belongs to no app: storing declarations never changes or removes it, and a
declared schedule of the same name is not stored.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from horsies.db.statement import Op, Query, execute, load
from horsies.model.config import AppConfig
from horsies.model.errors import PayloadError, QueueError
from horsies.model.schedule import TaskSchedule, next_slot, pattern_to_json, zone_named
from horsies.model.send_options import sent_values
from horsies.model.task import TaskOptions
from horsies.model.validation import instance_problems, raise_problems
from horsies.schedules.tick import SQL as TICK
from horsies.tasks.task import BaseTask

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A schedule with everything that enqueuing its task needs."""

    schedule: TaskSchedule
    options: TaskOptions
    args: str


def declared_schedules(config: AppConfig, tasks: Mapping[str, BaseTask[..., Any]]) -> list[DeclaredSchedule] | None:
    """Return the schedules of an app, by name; None if its configuration has no `schedule`. Raises ConfigError with all problems."""
    if config.schedule is None:
        return None
    schedules = sorted(config.schedule.schedules, key=lambda schedule: schedule.name)
    raise_problems(
        "the schedules", [problem for schedule in schedules for problem in _problems(schedule, config, tasks)]
    )
    return [_with_task(schedule, tasks[schedule.task_name]) for schedule in schedules]


def prepare_schedule(
    schedule: TaskSchedule, config: AppConfig, tasks: Mapping[str, BaseTask[..., Any]]
) -> DeclaredSchedule:
    """Return a schedule that is to be created at run time. Raises ConfigError with all problems.

    The app must have its task: the row needs the task's queue, retries and timeout, and only the task can check the arguments.
    """
    raise_problems("the schedule", instance_problems("schedule", schedule, TaskSchedule, "TaskSchedule(name=..., ...)"))
    problems = list(_problems(schedule, config, tasks))
    if config.schedule is not None and any(each.name == schedule.name for each in config.schedule.schedules):
        problems.append(
            f"schedule {schedule.name!r} is declared in the configuration of this app; change it there, or choose another name"
        )
    raise_problems("the schedule", problems)
    return _with_task(schedule, tasks[schedule.task_name])


def _with_task(schedule: TaskSchedule, task: BaseTask[..., Any]) -> DeclaredSchedule:
    options = task.options._replace(queue_name=schedule.queue_name or task.queue_name)
    return DeclaredSchedule(schedule, options, task.arguments.encode((), schedule.kwargs))


def _problems(schedule: TaskSchedule, config: AppConfig, tasks: Mapping[str, BaseTask[..., Any]]) -> Iterator[str]:
    task = tasks.get(schedule.task_name)
    if task is None:
        known = ", ".join(map(repr, sorted(tasks))) or "none"
        yield (
            f"schedule {schedule.name!r}: there is no task {schedule.task_name!r}; this app has {known}. "
            "Name one of them, or add its module to app.discover_tasks([...])"
        )
    else:
        try:
            task.arguments.encode((), schedule.kwargs)
        except PayloadError as error:
            yield f"schedule {schedule.name!r}: kwargs: {error}"
    if schedule.queue_name is not None:
        try:
            config.queue_named(schedule.queue_name)
        except QueueError as error:
            yield f"schedule {schedule.name!r}: queue_name: {error}"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The names of the schedules that were stored for the first time, changed, and disabled because they are not declared any more."""

    added: Sequence[str]
    changed: Sequence[str]
    retired: Sequence[str]
    clashes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Not stored: schedules that another app declares, each with that app."""
    unowned: Sequence[str] = field(default_factory=list[str])
    """Not changed: schedules that an older library stored and that this app does not declare."""
    taken: Sequence[str] = field(default_factory=list[str])
    """Not stored: the names of schedules that were created at run time."""


class StoredSchedule(NamedTuple):
    """A stored schedule. The fields are the columns of `{stored_schedule}`."""

    name: str
    pattern: Mapping[str, Any]
    timezone: str
    enabled: bool
    next_slot_at: datetime | None
    is_paused: bool
    declared: bool
    app: str | None
    is_dynamic: bool

    def drops_slot(self, next_slot_at: datetime | None, now: datetime) -> bool:
        """Return whether a slot that is due would be left out if this were the next one."""
        due = self.next_slot_at
        return due is not None and due <= now and due != next_slot_at and not self.is_paused


def sync_schedules(
    declared: Sequence[DeclaredSchedule], *, app: str, locator: str | None = None, now: datetime | None = None
) -> Op[SyncResult]:
    """Store the schedules of an app. Can be repeated.

    Rows that the app stored under its `locator`, before it was given a name, become its own. `now` is for tests.
    """
    *_, found, ((moment,),) = yield from execute(
        TICK["begin_tick"](),
        TICK["set_tick_limits"](),
        SQL["lock_schedules_table"](),
        SQL["lock_schedules"](names=sorted(each.schedule.name for each in declared)),
        TICK["get_tick_time"](now=now),
    )
    stored = {row[0]: StoredSchedule(*row) for row in found}
    names = {each.schedule.name for each in declared}
    taken = [row.name for row in stored.values() if row.is_dynamic]
    clashes = {
        row.name: row.app
        for row in stored.values()
        if row.name in names and row.declared and row.app is not None and row.app not in (app, locator)
    }
    own = [each for each in declared if each.schedule.name not in clashes and each.schedule.name not in taken]
    next_slots = {
        each.schedule.name: next_slot_of(each.schedule, stored.get(each.schedule.name), moment) for each in own
    }
    missed = {  # the due slots that this change drops; they are recorded, so that the history has no gaps
        row.name: row.next_slot_at
        for row in stored.values()
        if (row.name in next_slots or row.app == app) and row.drops_slot(next_slots.get(row.name), moment)
    }
    written, retired, *_ = yield from execute(
        store_schedules(own, next_slots, app=app),
        SQL["disable_schedules"](app=app, names=list(next_slots)),
        SQL["record_missed_slots"](names=list(missed), slots=list(missed.values())),
        SQL["notify_schedules"](),
        TICK["commit_tick"](),
    )
    return SyncResult(
        added=[name for (name,) in written if name not in stored],
        changed=[name for (name,) in written if name in stored],
        retired=[name for (name,) in retired],
        clashes=clashes,
        unowned=[row.name for row in stored.values() if row.declared and row.app is None and row.name not in names],
        taken=taken,
    )


def next_slot_of(schedule: TaskSchedule, row: StoredSchedule | None, now: datetime) -> datetime | None:
    """Return the stored slot if pattern and time zone are the same, otherwise the first one from now on."""
    if not schedule.enabled:
        return None
    pattern_and_zone = (pattern_to_json(schedule.pattern), schedule.timezone)
    if row is not None and row.enabled and (row.pattern, row.timezone) == pattern_and_zone:
        return row.next_slot_at
    return next_slot(schedule.pattern, zone_named(schedule.timezone), now)


def store_schedules(
    schedules: Sequence[DeclaredSchedule], next_slots: Mapping[str, datetime | None], *, app: str | None
) -> Query:
    """Store schedules; without an app, as created at run time. Returns the names of those that are new or have changed."""
    stored = json.dumps([_to_row(each, next_slots) for each in schedules])
    return SQL["store_schedules"](app=app, is_dynamic=app is None, schedules=stored)


def _to_row(each: DeclaredSchedule, next_slots: Mapping[str, datetime | None]) -> dict[str, Any]:
    schedule = each.schedule
    slot = next_slots[schedule.name]
    return {
        "name": schedule.name,
        **sent_values(each.options),
        "args": each.args,
        "pattern": pattern_to_json(schedule.pattern),
        "timezone": schedule.timezone,
        "catch_up_missed": schedule.catch_up_missed,
        "max_catch_up_runs": schedule.max_catch_up_runs,
        "jitter_ms": schedule.jitter_ms,
        "overlap": schedule.overlap,
        "enabled": schedule.enabled,
        "next_slot_at": slot.isoformat() if slot else None,
    }
