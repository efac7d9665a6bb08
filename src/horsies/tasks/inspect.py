"""Inspect: read what is known, change nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from horsies.db.load import load
from horsies.db.op import Op, one
from horsies.db.values import planned_for_values
from horsies.model.codec import decode_error
from horsies.model.codes import OperationalErrorCode
from horsies.model.errors import PayloadError
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that failed and was followed by another."""

    attempt: int
    error_code: str
    error: TaskError | None
    worker: str | None
    started_at: datetime | None
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """All there is to know about one task now. A moment is None when it has not come; `worker` is who has, or had, the task."""

    id: TaskId
    task_name: str
    queue_name: str
    priority: int
    status: TaskStatus
    attempts: int
    sent_at: datetime
    enqueued_at: datetime
    good_until: datetime | None
    timeout_ms: int | None
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    unknown_since: datetime | None
    """Since when no living worker can run it."""
    error_code: str | None
    error: TaskError | None
    progress: dict[str, Any] | None
    failed_attempts: Sequence[FailedAttempt]
    """Those before the last one, the newest 20 of them."""


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


def get_status(task_id: TaskId) -> Op[TaskStatus | None]:
    row = yield from one(SQL["get_status"](id=task_id))
    return None if row is None else TaskStatus(row[0])


def get_info(task_id: TaskId) -> Op[TaskInfo | None]:
    row = yield from one(SQL["get_info"](id=task_id))
    if row is None:
        return None
    known: list[Any] = list(row)
    status, (error, progress, failed) = row[4], row[-3:]
    known[4] = TaskStatus(status)
    known[-3] = stored_error(error)
    known[-2:] = (
        json.loads(progress) if progress else None,
        [_failed_attempt(text, place) for place, text in enumerate(failed or (), 1)],
    )
    return TaskInfo(*known)


def _failed_attempt(text: object, place: int) -> FailedAttempt:
    """What was not written by us is told as it is: one bad row must not keep anybody from looking at it."""
    try:
        return _read_attempt(json.loads(cast("str", text)))
    except (TypeError, ValueError, LookupError, AttributeError):
        message = f"this attempt was not recorded by horsies: {str(text)[:1000]}"
        error = TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=message)
        return FailedAttempt(place, str(error.error_code), error, None, None, datetime.fromtimestamp(0, UTC))


def _read_attempt(stored: dict[str, Any]) -> FailedAttempt:
    return FailedAttempt(
        stored["attempt"],
        stored["error_code"],
        stored_error(json.dumps(stored["error"])),
        stored["worker"],
        datetime.fromisoformat(stored["started_at"]) if stored["started_at"] else None,
        datetime.fromisoformat(stored["ended_at"]),
    )


def stored_error(text: str | None) -> TaskError | None:
    """Of a column that may be null in two ways, as JSON and as none. What was not written by us is told as it is."""
    if text is None or text == "null":
        return None
    try:
        return decode_error(text)
    except PayloadError as error:
        return TaskError(
            error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=str(error), data=text[:1000]
        )


def get_worker_states(worker_id: str | None = None, *, limit: int = 1000) -> Op[list[WorkerState]]:
    """The newest snapshot of every worker, or the history of one."""
    found = yield from planned_for_values(SQL["get_worker_states"](worker_id=worker_id, limit=limit))
    return [WorkerState(*row) for row in found]
