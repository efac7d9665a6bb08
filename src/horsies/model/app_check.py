"""What `app.check()` and `horsies check` say about an app."""

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
    function: str


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """A queue of the app, and how many of its tasks it has."""

    name: str
    priority: int
    max_concurrency: int | None
    tasks: int


@dataclass(frozen=True, slots=True)
class KnownWorkflow:
    """A `WorkflowDefinition` class. One that takes parameters is checked when it is built with some: `nodes` is None."""

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
    """Each field is a part that `horsies check` shows. What an app has of a new kind gets a field here."""

    modules: list[str]
    queues: list[KnownQueue]
    tasks: list[KnownTask]
    workflows: list[KnownWorkflow]
    schedules: list[KnownSchedule]
    child_start_hooks: list[str]
    child_stop_hooks: list[str]
    problems: list[str]


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """What is wrong with the database, or with the workers, and what to do about it. `severity` is `info`, `warning` or `error`."""

    code: str
    severity: str
    seen: str
    fix: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AppCheck(Inventory):
    """What an app consists of, everything that is wrong with it (`problems`), and with `live=True` what is wrong around it (`findings`)."""

    name: str
    findings: list[CheckFinding] | None

    @property
    def is_good(self) -> bool:
        """As exit code 0 of `horsies check`: no problem, and no finding that is an error."""
        return not self.problems and not any(finding.severity == "error" for finding in self.findings or ())
