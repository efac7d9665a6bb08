"""What an app declares, checked against its tasks and queues: all problems at once, before anything is stored."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horsies.model.config import AppConfig
from horsies.model.errors import PayloadError, QueueError
from horsies.model.problems import refuse
from horsies.model.schedule import TaskSchedule
from horsies.model.task import Terms
from horsies.tasks.task import Sendable


@dataclass(frozen=True, slots=True)
class Declared:
    """A schedule with all that it takes to enqueue its task."""

    schedule: TaskSchedule
    terms: Terms
    args: str


def declared(config: AppConfig, tasks: Mapping[str, Sendable[..., Any]]) -> list[Declared] | None:
    """The schedules of an app, by name; None if it says nothing about schedules. Raises ConfigError for those that could never run."""
    if config.schedule is None:
        return None
    schedules = sorted(config.schedule.schedules, key=lambda schedule: schedule.name)
    refuse("the schedules", [problem for schedule in schedules for problem in _problems(schedule, config, tasks)])
    return [_declared(schedule, tasks[schedule.task_name]) for schedule in schedules]


def _problems(schedule: TaskSchedule, config: AppConfig, tasks: Mapping[str, Sendable[..., Any]]) -> Iterator[str]:
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


def _declared(schedule: TaskSchedule, task: Sendable[..., Any]) -> Declared:
    terms = task.terms._replace(queue_name=schedule.queue_name or task.queue_name)
    return Declared(schedule, terms, task.arguments.encode((), schedule.kwargs))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
