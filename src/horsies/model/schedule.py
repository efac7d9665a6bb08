"""`ScheduleConfig`: what an app enqueues by itself, and when."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, cast, get_args

from horsies.model.calendar import zone_named
from horsies.model.options import as_span, span_problems
from horsies.model.patterns import Pattern
from horsies.model.problems import instance_problems, number_problems, refuse

MAX_NAME: Final = 200
MAX_CATCH_UP: Final = 10_000
MAX_JITTER: Final = timedelta(days=1)


class Overlap(StrEnum):
    """What happens at a slot while the last run of the schedule is still going."""

    ALLOW = "allow"
    """It is enqueued all the same."""
    SKIP = "skip"
    """It is skipped, and recorded as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSchedule:
    """Enqueue this task with these arguments at every slot of the pattern, on the clocks of `timezone` (an IANA name).

    After a time without a scheduler only the newest missed slot runs; with `catch_up_missed` all of them, but no more than the newest
    `max_catch_up_runs`. 0 for that runs nothing that was missed. `jitter` (seconds or a timedelta) delays each slot by up to so much, `overlap="skip"`
    leaves a slot out while the last run is still going. `queue_name` is the task's own unless given.
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
        refuse(f"TaskSchedule {self.name!r}", self._problems())
        object.__setattr__(self, "kwargs", MappingProxyType(dict(self.kwargs)))  # frozen means frozen
        object.__setattr__(self, "overlap", Overlap(self.overlap))

    @property
    def jitter_ms(self) -> int:
        """The longest delay of a slot."""
        return round(as_span(self.jitter) / timedelta(milliseconds=1))

    def _problems(self) -> Iterator[str]:
        for name in ("name", "task_name"):
            yield from _name_problems(name, getattr(self, name))
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
        yield from number_problems("max_catch_up_runs", self.max_catch_up_runs, 0, MAX_CATCH_UP)
        jitter = list(span_problems("jitter", self.jitter))
        yield from jitter
        if not jitter and as_span(self.jitter) > MAX_JITTER:
            yield f"jitter is {self.jitter}; choose at most a day, or a later slot"
        if self.overlap not in list(Overlap):
            yield f'overlap must be "allow" or "skip", not {self.overlap!r}'


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """All schedules of an app, each with a name of its own."""

    schedules: Sequence[TaskSchedule] = ()

    def __post_init__(self) -> None:
        given = cast("object", self.schedules)
        if isinstance(given, Sequence) and not isinstance(given, str):
            object.__setattr__(self, "schedules", tuple(cast("Sequence[object]", given)))
        refuse(self, self._problems())

    def _problems(self) -> Iterator[str]:
        if not isinstance(self.schedules, tuple):
            yield f"schedules must be a list of TaskSchedule, not {type(self.schedules).__name__}"
            return
        for position, schedule in enumerate(self.schedules):
            yield from instance_problems(f"schedules[{position}]", schedule, TaskSchedule, "TaskSchedule(...)")
        names = [schedule.name for schedule in self.schedules if isinstance(schedule, TaskSchedule)]  # pyright: ignore[reportUnnecessaryIsInstance] - anything may be given
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"there are {names.count(name)} schedules named {name!r}; give each its own name"


def _name_problems(name: str, value: object) -> Iterator[str]:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME or not value.isprintable():
        yield f"{name} must be 1 to {MAX_NAME} printable characters, not {value!r}"
