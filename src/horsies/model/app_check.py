"""The result of `app.check()` and `horsies check`: what an app consists of, and what is wrong with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KnownTask:
    """A task of the app."""

    name: str
    queue: str
    retries: int
    retry_for: list[str]
    timeout_ms: int | None
    is_async: bool
    on_failure: str | None
    """The name of the task that is enqueued if it fails."""
    function: str


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A queue of the app. `tasks` is how many tasks of the app use it."""

    name: str
    priority: int
    max_concurrency: int | None
    tasks: int


@dataclass(frozen=True, slots=True)
class KnownWorkflow:
    """A `WorkflowDefinition` class. One that takes parameters can only be checked when it is built; its `nodes` is None."""

    name: str
    definition: str
    nodes: int | None


@dataclass(frozen=True, slots=True)
class KnownSchedule:
    """A schedule that the app declares."""

    name: str
    task: str
    pattern: str
    timezone: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """What an app consists of. Each field is a section of the output of `horsies check`."""

    modules: list[str]
    queues: list[KnownQueue]
    tasks: list[KnownTask]
    workflows: list[KnownWorkflow]
    schedules: list[KnownSchedule]
    child_start_hooks: list[str]
    child_stop_hooks: list[str]
    middleware: list[str]
    """The outermost first."""
    problems: list[str]


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """A problem of the database or of the workers, and how to fix it. `severity` is `info`, `warning` or `error`."""

    code: str
    severity: str
    seen: str
    fix: str
    target: Mapping[str, str] | None
    """What it is about, as `kind` and `id`."""
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AppCheck(Inventory):
    """What an app consists of, all problems in it (`problems`), and with `live=True` those of its database and workers (`findings`)."""

    name: str
    findings: list[CheckFinding] | None

    @property
    def is_good(self) -> bool:
        """Whether `horsies check` exits with 0: there is no problem, and no finding that is an error."""
        return not self.problems and not any(finding.severity == "error" for finding in self.findings or ())
