"""Sync: what the app declares becomes what is stored.

Done once, when a scheduler starts. Where releases that declare different things run side by side, the last one to start wins, for all of them: a tick
goes by what is stored. A schedule whose pattern, zone or `enabled` has changed begins anew with its first slot from now on; any other change leaves its
next slot alone, and a schedule that did not change is not touched. One that is no longer declared is kept, disabled. What an operator has paused stays
paused.

Several apps may share a schema. Each row belongs to the app that stored it: an app removes only its own rows, and a name that another app declares is left
as that app stored it. A row that no app declares any more, and a row without an app (stored by an older library), belong to the next app that declares the name.
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
from horsies.model.task import TaskOptions
from horsies.model.validation import raise_problems
from horsies.schedules.tick import SQL as TICK
from horsies.tasks.enqueue import option_params
from horsies.tasks.task import BaseTask

# --------
# What an app declares, checked against its tasks and queues: all problems at once, before anything is stored.


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A schedule with all that it takes to enqueue its task."""

    schedule: TaskSchedule
    options: TaskOptions
    args: str


def declared_schedules(config: AppConfig, tasks: Mapping[str, BaseTask[..., Any]]) -> list[DeclaredSchedule] | None:
    """The schedules of an app, by name; None if it says nothing about schedules. Raises ConfigError for those that could never run."""
    if config.schedule is None:
        return None
    schedules = sorted(config.schedule.schedules, key=lambda schedule: schedule.name)
    raise_problems(
        "the schedules", [problem for schedule in schedules for problem in _problems(schedule, config, tasks)]
    )
    return [_declared(schedule, tasks[schedule.task_name]) for schedule in schedules]


def _problems(schedule: TaskSchedule, config: AppConfig, tasks: Mapping[str, BaseTask[..., Any]]) -> Iterator[str]:
    task = tasks.get(schedule.task_name)
    if task is None:
        yield (
            f"schedule {schedule.name!r}: there is no task {schedule.task_name!r}; this app has {_listed(sorted(tasks))}. "
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


def _declared(schedule: TaskSchedule, task: BaseTask[..., Any]) -> DeclaredSchedule:
    options = task.options._replace(queue_name=schedule.queue_name or task.queue_name)
    return DeclaredSchedule(schedule, options, task.arguments.encode((), schedule.kwargs))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


SQL = load(__file__)

_TERMS = ("task_name", "queue_name", "priority", "timeout_ms", "retry_delays_ms", "retry_jitter", "retry_for")


@dataclass(frozen=True, slots=True)
class SyncResult:
    """The names of schedules that were stored for the first time, were changed, and were retired."""

    added: Sequence[str]
    changed: Sequence[str]
    retired: Sequence[str]
    clashes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Not stored: schedules that another app declares, and that app."""
    unowned: Sequence[str] = field(default_factory=list[str])
    """Not changed: schedules that an older library stored and that this app does not declare."""


class StoredSchedule(NamedTuple):
    """A schedule as it stands; as its row is read."""

    name: str
    pattern: Mapping[str, Any]
    timezone: str
    enabled: bool
    next_slot_at: datetime | None
    is_paused: bool
    declared: bool
    app: str | None


def sync_schedules(
    declared: Sequence[DeclaredSchedule], *, app: str, locator: str | None = None, now: datetime | None = None
) -> Op[SyncResult]:
    """Store the schedules of an app; safe to repeat.

    What the app stored under its `locator`, before it was given a name, is taken over. `now` is for tests.
    """
    *_, found, ((moment,),) = yield from execute(
        TICK["begin_tick"](),
        TICK["set_tick_limits"](),
        SQL["lock_schedules_table"](),
        SQL["lock_schedules"](),
        TICK["get_tick_time"](now=now),
    )
    stored = {row[0]: StoredSchedule(*row) for row in found}
    names = {each.schedule.name for each in declared}
    clashes = {
        row.name: row.app
        for row in stored.values()
        if row.name in names and row.declared and row.app is not None and row.app not in (app, locator)
    }
    ours = [each for each in declared if each.schedule.name not in clashes]
    next_slots = {each.schedule.name: _next_slot(each.schedule, stored, moment) for each in ours}
    affected = {row.name: row for row in stored.values() if row.name in next_slots or row.app == app}
    written, retired, *_ = yield from execute(
        SQL["store_schedules"](app=app, schedules=json.dumps([_row(each, next_slots) for each in ours])),
        SQL["disable_schedules"](app=app, names=list(next_slots)),
        _record_dropped(affected, next_slots, moment),
        SQL["notify_schedules"](),
        TICK["commit_tick"](),
    )
    return SyncResult(
        added=[name for (name,) in written if name not in stored],
        changed=[name for (name,) in written if name in stored],
        retired=[name for (name,) in retired],
        clashes=clashes,
        unowned=[row.name for row in stored.values() if row.declared and row.app is None and row.name not in names],
    )


def _next_slot(schedule: TaskSchedule, stored: Mapping[str, StoredSchedule], moment: datetime) -> datetime | None:
    if not schedule.enabled:
        return None
    known = stored.get(schedule.name)
    if (
        known is not None
        and known.enabled
        and (known.pattern, known.timezone) == (pattern_to_json(schedule.pattern), schedule.timezone)
    ):
        return known.next_slot_at
    return next_slot(schedule.pattern, zone_named(schedule.timezone), moment)


def _record_dropped(
    stored: Mapping[str, StoredSchedule], next_slots: Mapping[str, datetime | None], moment: datetime
) -> Query:
    dropped = {
        name: row.next_slot_at
        for name, row in stored.items()
        if row.next_slot_at is not None
        and row.next_slot_at <= moment
        and row.next_slot_at != next_slots.get(name)
        and not row.is_paused
    }
    return SQL["record_missed_slots"](names=list(dropped), slots=list(dropped.values()))


def _row(each: DeclaredSchedule, next_slots: Mapping[str, datetime | None]) -> dict[str, Any]:
    schedule, options = each.schedule, option_params(each.options)
    slot = next_slots[schedule.name]
    return {
        "name": schedule.name,
        **{name: options[name] for name in _TERMS},
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
