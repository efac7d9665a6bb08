"""Inspect: read what is known, change nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from horsies.db.load import load
from horsies.db.op import Op, one, rows
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """All there is to know about one task now."""

    id: TaskId
    task_name: str
    queue_name: str
    priority: int
    status: TaskStatus
    attempts: int
    sent_at: datetime
    enqueued_at: datetime
    good_until: datetime | None
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error_code: str | None
    progress: dict[str, Any] | None
    failed_attempts: Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The health of one worker at one moment."""

    worker_id: str
    snapshot_at: datetime
    hostname: str
    pid: int
    processes: int
    concurrency: int
    queues: Sequence[str]
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float
    children_memory_mb: float
    cpu_percent: float
    children_cpu_percent: float
    worker_started_at: datetime


def get_info(task_id: TaskId) -> Op[TaskInfo | None]:
    row = yield from one(SQL["get_info"](id=task_id))
    if row is None:
        return None
    known: list[Any] = list(row)
    status, progress, failed = row[4], row[-2], row[-1]
    known[4] = TaskStatus(status)
    known[-2:] = json.loads(progress) if progress else None, [json.loads(text) for text in failed or ()]
    return TaskInfo(*known)


def get_worker_states(worker_id: str | None = None, *, limit: int = 1000) -> Op[list[WorkerState]]:
    """The newest snapshot of every worker, or the history of one."""
    found = yield from rows(SQL["get_worker_states"](worker_id=worker_id, limit=limit))
    return [WorkerState(*row) for row in found]
