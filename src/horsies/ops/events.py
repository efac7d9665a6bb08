"""What has happened lately: tasks and workflows that ended, workers that started or died, and what operators did, in the order of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from horsies.db.statement import Op, Query, load, plan_for_values

MAX_SCANNED: Final = 5_000
"""How many ended tasks are read before they are filtered."""

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened."""

    at: datetime
    kind: Literal["task", "workflow", "worker", "action"]
    id: str
    """Of the task, workflow, worker, or entry of the audit."""
    name: str
    """Of the task or workflow; the host and process of a worker; the target of an action."""
    outcome: str
    """The status of a task or workflow; STARTED or DIED; ACTION."""
    queue: str | None
    error_code: str | None
    message: str | None
    """The first line of the error of a task, unless it is sensitive; what a worker serves or held; what was done, and by whom."""
    took_s: float | None


def list_events(since: datetime, **options: Any) -> Op[list[Event]]:
    """Return the newest events, oldest first. The options are those of `query`."""
    return [Event(*row) for row in reversed((yield from plan_for_values(query(since, **options))))]


def query(
    since: datetime,
    *,
    limit: int,
    failures: bool,
    task_name: str | None,
    queue_name: str | None,
    sensitive: Sequence[str],
) -> Query:
    return SQL["list_events"](
        since=since,
        limit=limit,
        scanned=max(limit, MAX_SCANNED),
        failures=failures,
        task_name=task_name,
        queue_name=queue_name,
        of_tasks=task_name is not None or queue_name is not None,
        sensitive=list(sensitive),
    )
