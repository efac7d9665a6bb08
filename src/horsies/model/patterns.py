"""The patterns of schedules. Each checks itself; all but intervals are cron expressions at heart, with seconds in front."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, time, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, cast

from horsies.model.errors import ConfigError
from horsies.model.problems import number_problems, refuse

SHORTEST: Final = timedelta(seconds=1)
LONGEST: Final = timedelta(days=3_650)
LARGEST_STEPS: Final = {"minute": 59, "hour": 23, "day": 31, "month": 12, "weekday": 7}
UNITS: Final = ("days", "hours", "minutes", "seconds")
_ANY_DAY: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - a local time


class Weekday(StrEnum):
    """A day of a `WeeklySchedule`; its text does as well."""

    MONDAY = "mon"
    TUESDAY = "tue"
    WEDNESDAY = "wed"
    THURSDAY = "thu"
    FRIDAY = "fri"
    SATURDAY = "sat"
    SUNDAY = "sun"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSchedule:
    """Again and again after the sum of these, in absolute time: `IntervalSchedule(minutes=5)` is due at :00, :05, :10 …"""

    days: int = 0
    hours: int = 0
    minutes: int = 0
    seconds: int = 0

    def __post_init__(self) -> None:
        refuse(self, self._problems())

    @property
    def length(self) -> timedelta:
        """From one slot to the next."""
        return timedelta(days=self.days, hours=self.hours, minutes=self.minutes, seconds=self.seconds)

    def __str__(self) -> str:
        parts = ((name[:-1] if (count := getattr(self, name)) == 1 else name, count) for name in UNITS)
        return "every " + " ".join(f"{count} {unit}" for unit, count in parts if count)

    def _problems(self) -> Iterator[str]:
        most = int(LONGEST.total_seconds())
        problems = [problem for name in UNITS for problem in number_problems(name, getattr(self, name), 0, most)]
        yield from problems
        if not problems and not SHORTEST <= self.length <= LONGEST:
            yield f"the interval is {self.length}; choose one of a second to ten years, such as IntervalSchedule(minutes=5)"


@dataclass(frozen=True, slots=True)
class HourlySchedule:
    """Once in every hour of the local clock."""

    minute: int = 0
    second: int = 0

    def __post_init__(self) -> None:
        refuse(self, [*number_problems("minute", self.minute, 0, 59), *number_problems("second", self.second, 0, 59)])

    @property
    def cron(self) -> str:
        """As cron has it, with seconds in front."""
        return f"{self.second} {self.minute} * * * *"

    def __str__(self) -> str:
        return f"hourly at :{self.minute:02}:{self.second:02}"


@dataclass(frozen=True, slots=True)
class DailySchedule:
    """Every day at this local time: `DailySchedule(time(9, 30))`."""

    time: time

    def __post_init__(self) -> None:
        refuse(self, _time_problems(self.time))

    @property
    def cron(self) -> str:
        """As cron has it, with seconds in front."""
        return f"{_time_of_day(self.time)} * * *"

    def __str__(self) -> str:
        return f"daily at {self.time}"


@dataclass(frozen=True, slots=True)
class WeeklySchedule:
    """On these days of the week at this local time: `WeeklySchedule(["mon", Weekday.FRIDAY], time(9, 30))`."""

    days: Sequence[Weekday | str]
    time: time

    def __post_init__(self) -> None:
        refuse(self, [*self._day_problems(), *_time_problems(self.time)])
        days = {Weekday(day) for day in self.days}
        object.__setattr__(self, "days", tuple(day for day in Weekday if day in days))

    @property
    def cron(self) -> str:
        """As cron has it, with seconds in front."""
        return f"{_time_of_day(self.time)} * * {','.join(self.days)}"

    def __str__(self) -> str:
        return f"{', '.join(self.days)} at {self.time}"

    def _day_problems(self) -> Iterator[str]:
        days = cast("object", self.days)
        known = ", ".join(repr(day.value) for day in Weekday)
        if isinstance(days, str) or not isinstance(days, Sequence) or not days:
            yield f"days must be a list of at least one day of {known}, not {days!r}"
            return
        for day in cast("Sequence[object]", days):
            if day not in list(Weekday):
                yield f"days has {day!r}; choose from {known}"


@dataclass(frozen=True, slots=True)
class MonthlySchedule:
    """On this day of the month at this local time. A month without that day is skipped; `"last"` is there in every month."""

    day: int | Literal["last"]
    time: time

    def __post_init__(self) -> None:
        refuse(self, [*self._day_problems(), *_time_problems(self.time)])

    @property
    def cron(self) -> str:
        """As cron has it, with seconds in front."""
        return f"{_time_of_day(self.time)} {'L' if self.day == 'last' else self.day} * *"

    def __str__(self) -> str:
        return f"{'last day' if self.day == 'last' else f'day {self.day}'} of the month at {self.time}"

    def _day_problems(self) -> Iterator[str]:
        if self.day != "last" and any(number_problems("day", self.day, 1, 31)):
            yield f'day is {self.day!r}; choose a whole number from 1 to 31, or "last"'


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Minute, hour, day of the month, month and day of the week, as in cron: `CronSchedule("*/5 9-17 * * mon-fri")`."""

    expression: str

    def __post_init__(self) -> None:
        refuse(self, self._problems())

    @property
    def cron(self) -> str:
        """With seconds in front."""
        return f"0 {self.expression}"

    def __str__(self) -> str:
        return self.expression

    def _problems(self) -> Iterator[str]:
        advice = "write five fields, minute hour day month weekday, such as '*/5 9-17 * * mon-fri'"
        if not isinstance(self.expression, str):  # pyright: ignore[reportUnnecessaryIsInstance] - anything may be given
            yield f"expression must be text, not {type(self.expression).__name__}; {advice}"
        elif len(self.expression.split()) != len(LARGEST_STEPS):
            yield f"expression {self.expression!r} has {len(self.expression.split())} fields; {advice}"
        elif problem := _step_problem(self.expression) or _cron_problem(self.cron):
            yield f"expression {self.expression!r} {problem}; {advice}"


Pattern: TypeAlias = IntervalSchedule | HourlySchedule | DailySchedule | WeeklySchedule | MonthlySchedule | CronSchedule


_KINDS: Final[dict[str, type[Pattern]]] = {
    "interval": IntervalSchedule,
    "hourly": HourlySchedule,
    "daily": DailySchedule,
    "weekly": WeeklySchedule,
    "monthly": MonthlySchedule,
    "cron": CronSchedule,
}


def as_stored(pattern: Pattern) -> dict[str, Any]:
    """As JSON values."""
    (kind,) = (name for name, known in _KINDS.items() if isinstance(pattern, known))
    values = {field.name: getattr(pattern, field.name) for field in fields(pattern)}
    return {"kind": kind} | {
        name: value.isoformat()
        if isinstance(value, time)
        else list(cast("tuple[str]", value))
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
    }


def from_stored(stored: Mapping[str, Any]) -> Pattern:
    """Raises ValueError for what this release does not know."""
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


def _time_of_day(at: time) -> str:
    return f"{at.second} {at.minute} {at.hour}"


def _time_problems(value: object) -> Iterator[str]:
    if not isinstance(value, time):
        yield f"time must be a datetime.time, not {value!r}; write time(9, 30)"
    elif value.tzinfo is not None or value.microsecond:
        yield f"time is {value!r}; leave out its zone, which the schedule has, and everything below seconds"


def _step_problem(expression: str) -> str | None:
    """cron takes any step; one that leads out of its field at once is never what was meant."""
    for (field, largest), text in zip(LARGEST_STEPS.items(), expression.split(), strict=True):
        for step in re.findall(r"/0*(\d+)", text):
            if len(step) > len(str(largest)) or int(step) > largest:
                return f"has a step in its {field} that is above {largest}"
    return None


def _cron_problem(cron: str) -> str | None:
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - a child that runs tasks needs no calendar

    try:
        never = next(CronSim(cron, _ANY_DAY), None) is None
    except CronSimError as error:
        return f"is no cron expression ({error})"
    return "never comes" if never else None
