"""`ScheduleConfig`: which tasks an app enqueues by itself, the patterns that say when, and the slots that follow from them.

A *slot* is a point in time at which a schedule is due, in UTC, to the second. It follows from the pattern and the time zone alone, so any two
schedulers compute the same slots. This module does not read the clock.

**Local times.** All patterns except intervals are evaluated as cron expressions, with a field for seconds in front, on the local clock, which
knows nothing of offsets. Each local time is then looked up in the zone. One that does not exist (the clock was set forward over it) is skipped; of
one that occurs twice (the clock was set back) only the first is used. This applies to every pattern, hourly ones included. Intervals are
in absolute time, counted from 1970-01-01 00:00 UTC, so changes of the clock do not affect them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from itertools import islice, takewhile
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast, get_args
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from horsies.model.errors import ConfigError
from horsies.model.send_options import span_problems, to_timedelta
from horsies.model.validation import (
    Checked,
    freeze_list,
    instance_problems,
    list_problems,
    name_problems,
    number_problems,
    raise_problems,
    range_problems,
)

MAX_INTERVAL: Final = timedelta(days=3_650)
MAX_STEPS: Final = {"minute": 59, "hour": 23, "day": 31, "month": 12, "weekday": 7}
UNITS: Final = ("days", "hours", "minutes", "seconds")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ANY_DAY: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - a local time
# Files in the time zone database that are not zones: the machine's own, or those of clocks that count leap seconds.
_NOT_ZONES: Final = re.compile(r"(posix|right)/.*|posixrules|localtime|Factory")


class Weekday(StrEnum):
    """A day of a `WeeklySchedule`; its text is accepted as well."""

    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSchedule(Checked):
    """At an interval that is the sum of the fields, in absolute time: `IntervalSchedule(minutes=5)` is due at :00, :05, :10 …"""

    days: int = 0
    hours: int = 0
    minutes: int = 0
    seconds: int = 0

    @property
    def length(self) -> timedelta:
        """The time from one slot to the next."""
        return timedelta(days=self.days, hours=self.hours, minutes=self.minutes, seconds=self.seconds)

    def __str__(self) -> str:
        parts = ((name[:-1] if (count := getattr(self, name)) == 1 else name, count) for name in UNITS)
        return "every " + " ".join(f"{count} {unit}" for unit, count in parts if count)

    def _problems(self) -> Iterator[str]:
        longest_s = int(MAX_INTERVAL.total_seconds())
        problems = list(range_problems(self, **dict.fromkeys(UNITS, (0, longest_s))))
        yield from problems
        if not problems and not timedelta(seconds=1) <= self.length <= MAX_INTERVAL:
            yield f"the interval is {self.length}; choose one of a second to ten years, such as IntervalSchedule(minutes=5)"


@dataclass(frozen=True, slots=True)
class HourlySchedule(Checked):
    """Once in every hour on the local clock."""

    minute: int = 0
    second: int = 0

    def __str__(self) -> str:
        return f"hourly at :{self.minute:02}:{self.second:02}"

    def _problems(self) -> Iterator[str]:
        return range_problems(self, minute=(0, 59), second=(0, 59))


@dataclass(frozen=True, slots=True)
class DailySchedule(Checked):
    """Every day at this local time: `DailySchedule(time(9, 30))`."""

    time: time

    def __str__(self) -> str:
        return f"daily at {self.time}"

    def _problems(self) -> Iterator[str]:
        return _time_problems(self.time)


@dataclass(frozen=True, slots=True)
class WeeklySchedule:
    """On these days of the week at this local time: `WeeklySchedule(["mon", Weekday.FRIDAY], time(9, 30))`."""

    days: Sequence[Weekday | str]
    time: time

    def __post_init__(self) -> None:
        raise_problems(self, self._problems())
        days = {Weekday(day) for day in self.days}
        object.__setattr__(self, "days", tuple(day for day in Weekday if day in days))

    def __str__(self) -> str:
        return f"{', '.join(self.days)} at {self.time}"

    def _problems(self) -> Iterator[str]:
        days = cast("object", self.days)
        known = ", ".join(repr(day.value) for day in Weekday)
        if isinstance(days, str) or not isinstance(days, Sequence) or not days:
            yield f"days must be a list of at least one day of {known}, not {days!r}"
        else:
            unknown = [day for day in cast("Sequence[object]", days) if day not in list(Weekday)]
            yield from (f"days has {day!r}; choose from {known}" for day in unknown)
        yield from _time_problems(self.time)


@dataclass(frozen=True, slots=True)
class MonthlySchedule(Checked):
    """On this day of the month at this local time. A month without that day is skipped; every month has a `"last"` day."""

    day: int | Literal["last"]
    time: time

    def __str__(self) -> str:
        return f"{'last day' if self.day == 'last' else f'day {self.day}'} of the month at {self.time}"

    def _problems(self) -> Iterator[str]:
        if self.day != "last" and any(number_problems("day", self.day, 1, 31)):
            yield f'day is {self.day!r}; choose a whole number from 1 to 31, or "last"'
        yield from _time_problems(self.time)


@dataclass(frozen=True, slots=True)
class CronSchedule(Checked):
    """Minute, hour, day of the month, month and day of the week, as in cron: `CronSchedule("*/5 9-17 * * mon-fri")`."""

    expression: str

    def __str__(self) -> str:
        return self.expression

    def _problems(self) -> Iterator[str]:
        advice = "write five fields, minute hour day month weekday, such as '*/5 9-17 * * mon-fri'"
        if not isinstance(self.expression, str):  # pyright: ignore[reportUnnecessaryIsInstance] - anything may be given
            yield f"expression must be a string, not {type(self.expression).__name__}; {advice}"
        elif len(self.expression.split()) != len(MAX_STEPS):
            yield f"expression {self.expression!r} has {len(self.expression.split())} fields; {advice}"
        elif problem := _cron_problem(self):
            yield f"expression {self.expression!r} {problem}; {advice}"


Pattern: TypeAlias = IntervalSchedule | HourlySchedule | DailySchedule | WeeklySchedule | MonthlySchedule | CronSchedule


# By the names under which they are stored: interval, hourly, daily, weekly, monthly and cron.
_KINDS: Final[dict[str, type[Pattern]]] = {
    kind.__name__.removesuffix("Schedule").lower(): kind for kind in get_args(Pattern)
}


def pattern_to_json(pattern: Pattern) -> dict[str, Any]:
    """Return a pattern as JSON values."""
    (kind,) = (name for name, known in _KINDS.items() if isinstance(pattern, known))
    stored: dict[str, Any] = {"kind": kind}
    for each in fields(pattern):
        value = getattr(pattern, each.name)
        if isinstance(value, time):
            value = value.isoformat()
        stored[each.name] = list(cast("tuple[str]", value)) if isinstance(value, tuple) else value
    return stored


def pattern_from_json(stored: Mapping[str, Any]) -> Pattern:
    """Return the pattern of stored JSON values. Raises ValueError for those that this release does not know."""
    try:
        values = dict(stored)
        kind = _KINDS.get(values.pop("kind", ""))
        if kind is None:
            raise ValueError(f"a pattern of kind {stored.get('kind')!r} is not known; a newer release has stored it")
        if "time" in values:
            values["time"] = time.fromisoformat(values["time"])
        return kind(**values)
    except (TypeError, AttributeError, ConfigError) as error:
        raise ValueError(f"the stored pattern {stored!r} cannot be read: {error}") from None


def _cron(pattern: HourlySchedule | DailySchedule | WeeklySchedule | MonthlySchedule | CronSchedule) -> str:
    """Return the cron expression of a pattern, with a field for seconds in front."""
    match pattern:
        case CronSchedule():
            return f"0 {pattern.expression}"
        case HourlySchedule():
            return f"{pattern.second} {pattern.minute} * * * *"
        case DailySchedule():
            days = "* * *"
        case WeeklySchedule():
            days = f"* * {','.join(pattern.days)}"
        case MonthlySchedule():
            days = f"{'L' if pattern.day == 'last' else pattern.day} * *"
    return f"{pattern.time.second} {pattern.time.minute} {pattern.time.hour} {days}"


def _time_problems(value: object) -> Iterator[str]:
    if not isinstance(value, time):
        yield f"time must be a datetime.time, not {value!r}; write time(9, 30)"
    elif value.tzinfo is not None or value.microsecond:
        yield f"time is {value!r}; leave out its zone, which belongs to the schedule, and everything below seconds"


def _cron_problem(schedule: CronSchedule) -> str | None:
    # cron accepts a step that is larger than its field, but it is never intended.
    for (part, largest), text in zip(MAX_STEPS.items(), schedule.expression.split(), strict=True):
        for step in re.findall(r"/0*(\d+)", text):
            if len(step) > len(str(largest)) or int(step) > largest:
                return f"has a step in its {part} that is above {largest}"
    try:
        is_never = next(CronSim(_cron(schedule), _ANY_DAY), None) is None
    except CronSimError as error:
        return f"is not a cron expression ({error})"
    return "is never due" if is_never else None


# -- schedules


class Overlap(StrEnum):
    """What happens at a slot while the last run of the schedule has not ended."""

    ALLOW = "allow"
    """The task is enqueued."""
    SKIP = "skip"
    """The slot is skipped, and recorded as skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSchedule:
    """Enqueue a task with these arguments at every slot of the pattern, in `timezone` (an IANA name).

    After a time without a scheduler, only the newest missed slot runs. With `catch_up_missed` all of them run, but at most the newest
    `max_catch_up_runs`; 0 runs none. `jitter` (seconds or a timedelta) delays each slot by a random time up to this. `overlap="skip"`
    skips a slot while the last run has not ended. `queue_name` defaults to the queue of the task.
    """

    name: str
    task_name: str
    pattern: Pattern
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    queue_name: str | None = None
    timezone: str = "UTC"
    enabled: bool = True
    catch_up_missed: bool = False
    max_catch_up_runs: int = 100
    jitter: float | timedelta = 0
    overlap: Overlap | str = Overlap.ALLOW

    def __post_init__(self) -> None:
        raise_problems(f"TaskSchedule {self.name!r}", self._problems())
        object.__setattr__(self, "kwargs", MappingProxyType(dict(self.kwargs)))  # the caller may change its own dict
        object.__setattr__(self, "overlap", Overlap(self.overlap))

    @property
    def jitter_ms(self) -> int:
        """The longest delay of a slot."""
        return round(to_timedelta(self.jitter) / timedelta(milliseconds=1))

    def _problems(self) -> Iterator[str]:
        yield from name_problems("name", self.name)
        yield from name_problems("task_name", self.task_name)
        if not isinstance(self.pattern, Pattern):  # pyright: ignore[reportUnnecessaryIsInstance] - anything may be given
            kinds = ", ".join(kind.__name__ for kind in get_args(Pattern))
            yield f"pattern must be one of {kinds}, not {type(self.pattern).__name__}; write pattern=DailySchedule(time(9, 30))"
        yield from instance_problems("kwargs", self.kwargs, Mapping, "{'name': value}")
        if self.queue_name is not None:
            yield from instance_problems("queue_name", self.queue_name, str, "'media'")
        try:
            zone_named(self.timezone)
        except ValueError as error:
            yield str(error)
        for name in ("enabled", "catch_up_missed"):
            yield from instance_problems(name, getattr(self, name), bool, "True")
        yield from range_problems(self, max_catch_up_runs=(0, 10_000))
        jitter = list(span_problems("jitter", self.jitter))
        yield from jitter
        if not jitter and to_timedelta(self.jitter) > timedelta(days=1):
            yield f"jitter is {self.jitter}; choose at most a day, or a later slot"
        if self.overlap not in list(Overlap):
            yield f'overlap must be "allow" or "skip", not {self.overlap!r}'


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """All schedules of an app, each with a name of its own."""

    schedules: Sequence[TaskSchedule] = ()

    def __post_init__(self) -> None:
        freeze_list(self, "schedules")
        raise_problems(self, list_problems("schedules", self.schedules, TaskSchedule, "there are {} schedules"))


# -- slots


def zone_named(name: str) -> tzinfo:
    """Return a time zone. Raises ValueError with what to change. UTC needs no time zone database."""
    if name == "UTC":
        return UTC
    try:
        if not _NOT_ZONES.fullmatch(name):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        pass
    if not available_timezones():
        raise ValueError(
            f"timezone {name!r} cannot be looked up, because there is no time zone database here; install the package tzdata, "
            "with pip or with the system's package manager"
        )
    raise ValueError(f"timezone {name!r} is not known; choose an IANA name, such as 'Europe/Berlin' or 'UTC'")


@lru_cache(maxsize=4_096)  # schedules that are due together often share pattern and zone
def next_slot(pattern: Pattern, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the first slot after a point in time; None if there is none in the next 50 years."""
    if isinstance(pattern, IntervalSchedule):
        return EPOCH + ((after - EPOCH) // pattern.length + 1) * pattern.length
    local = after.astimezone(zone).replace(tzinfo=None, fold=0)
    slots = (_to_slot(time, zone) for time in CronSim(_cron(pattern), local))
    return next((slot for slot in slots if slot is not None and slot > after), None)


def newest_slots(pattern: Pattern, zone: tzinfo, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """Return the newest slots after `after` and up to `until`, at most `limit`, oldest first. Older slots are not computed."""
    slots = takewhile(lambda slot: slot > after, _slots_backwards(pattern, zone, until))
    return list(islice(slots, limit))[::-1]


def _slots_backwards(pattern: Pattern, zone: tzinfo, until: datetime) -> Iterator[datetime]:
    if isinstance(pattern, IntervalSchedule):
        slot = EPOCH + (until - EPOCH) // pattern.length * pattern.length
        while True:
            yield slot
            slot -= pattern.length
    local_until = until.astimezone(zone)
    # When the clock was just set back, local times that will be repeated have already occurred once, and count.
    repeated = _offset(local_until.replace(fold=0)) - _offset(local_until.replace(fold=1))
    start = local_until.replace(tzinfo=None, fold=0) + max(repeated, timedelta(0)) + timedelta(seconds=1)
    for local in CronSim(_cron(pattern), start, reverse=True):
        slot = _to_slot(local, zone)
        if slot is not None and slot <= until:
            yield slot


def _to_slot(local: datetime, zone: tzinfo) -> datetime | None:
    """Return the first time at which the local clock shows this; None if it never does."""
    slot = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    return slot if slot.astimezone(zone).replace(tzinfo=None) == local else None


def _offset(local: datetime) -> timedelta:
    return local.utcoffset() or timedelta(0)
