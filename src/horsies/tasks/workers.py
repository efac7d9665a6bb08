"""What operators ask of single workers: to leave, and what each of their children runs.

A worker writes what its children run with its heartbeats, into a column of its own row. So what is read is as old as the last heartbeat, and of many
running tasks only those that have run for the longest are named.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, cast

from horsies.db.statement import Op, execute, load, one, rows
from horsies.model.codec import parse_json
from horsies.model.task import TaskId
from horsies.tasks.ids import to_id

MAX_TASKS, MAX_CHILDREN = 200, 1_000
"""How many are stored of one worker."""
MAX_NAME = 200  # characters
MAX_HOURS = 24 * 365

SQL = load(__file__)


class ChildStatus(StrEnum):
    """What a child process does."""

    STARTING = "starting"
    """It loads the app."""
    IDLE = "idle"
    BUSY = "busy"
    """It runs tasks."""
    SPARE = "spare"
    """It has started, and waits to take the place of another child."""
    STOPPING = "stopping"
    """It gets no more tasks, and leaves when its own have ended."""


@dataclass(frozen=True, slots=True)
class ChildTask:
    """A task that a child runs, and since when, by the clock of the database."""

    id: TaskId
    name: str
    since: datetime


@dataclass(frozen=True, slots=True)
class ChildState:
    """A child process of a worker, as of the last heartbeat."""

    pid: int
    state: ChildStatus
    memory_mb: float | None
    """Resident memory, as of the heartbeat before; None if it was not read yet."""
    started_at: datetime
    tasks: Sequence[ChildTask]
    """The running tasks, those that have run for the longest first. Of one worker at most 200 are stored."""
    running: int
    """How many tasks run in it."""
    waiting: int
    """How many tasks wait in it for a free slot."""


@dataclass(frozen=True, slots=True)
class DeadWorker:
    """A worker that ended without deregistering, as its removal found it, and what has become of its tasks since."""

    id: str
    hostname: str
    pid: int
    app: str | None
    started_at: datetime
    last_heartbeat_at: datetime
    found_at: datetime
    tasks_held: int
    outcomes: Mapping[str, int]
    """How many of `task_ids` are in each status now; GONE: deleted."""
    task_ids: Sequence[TaskId]
    """The tasks that it held, the first 100 of them."""


def list_dead_workers(hours: int, limit: int) -> Op[list[DeadWorker]]:
    """List the workers that died in the last hours, the newest first."""
    query = SQL["list_dead_workers"](hours=max(1, min(hours, MAX_HOURS)), limit=limit)
    return [DeadWorker(*row) for row in (yield from rows(query))]


def request_leave(worker_ids: Sequence[str]) -> Op[Mapping[str, bool]]:
    """Ask workers to finish their tasks and exit. Returns which of them are registered."""
    ids = list(worker_ids)
    found, _ = yield from execute(SQL["request_leave"](ids=ids), SQL["notify_workers"](ids=ids))
    return {worker: (worker,) in found for worker in worker_ids}


def list_children(worker_id: str) -> Op[list[ChildState]]:
    """Read the children of a worker. A worker that is not registered has none."""
    row = yield from one(SQL["get_children"](id=worker_id))
    return [] if row is None else children_from_json(row[0])


def to_worker_id(given: str) -> str:
    return to_id(given, "worker id", "pass the id of `list_workers()`, a UUID as text")


def children_to_json(children: Sequence[ChildState]) -> str:
    """Return what is stored: a bounded number of children and tasks."""
    by_age = sorted(task.since for child in children[:MAX_CHILDREN] for task in child.tasks)
    newest = by_age[MAX_TASKS - 1] if len(by_age) > MAX_TASKS else None
    left, stored = MAX_TASKS, list[dict[str, Any]]()
    for child in children[:MAX_CHILDREN]:
        tasks = [task for task in sorted(child.tasks, key=_since) if newest is None or task.since <= newest][:left]
        left -= len(tasks)
        stored.append(
            {
                "pid": child.pid,
                "state": child.state.value,
                "memory_mb": child.memory_mb,
                "started_at": child.started_at.timestamp(),
                "running": child.running,
                "waiting": child.waiting,
                "tasks": [[task.id, task.name[:MAX_NAME], task.since.timestamp()] for task in tasks],
            }
        )
    return json.dumps(stored, separators=(",", ":"))


def children_from_json(text: str | None) -> list[ChildState]:
    """Return what a worker has stored, without what other software may have written there."""
    try:
        stored = parse_json(text or "[]")
    except ValueError:
        return []
    each_stored = cast("list[object]", stored) if isinstance(stored, list) else []
    return [child for each in each_stored if (child := _to_child(each)) is not None]


def _to_child(stored: Any) -> ChildState | None:
    try:
        return ChildState(
            int(stored["pid"]),
            ChildStatus(stored["state"]),
            None if stored["memory_mb"] is None else float(stored["memory_mb"]),
            to_time(stored["started_at"]),
            [ChildTask(str(task_id), str(name), to_time(since)) for task_id, name, since in stored["tasks"]],
            int(stored["running"]),
            int(stored["waiting"]),
        )
    except (TypeError, ValueError, LookupError, OverflowError, OSError):  # the last two for times that no clock has
        return None


def to_time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _since(task: ChildTask) -> datetime:
    return task.since
