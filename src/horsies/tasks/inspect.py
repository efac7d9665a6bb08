"""Read tasks and workers, without changing anything.

Lists of tasks are in order of the ids, which is the order of sending, newest first, a page at a time. Both tables have an index on the id, so a page costs
the same however many tasks there are. Rows that a filter excludes are read nevertheless: a rare status costs a walk over all newer tasks, which `since`
limits, because it excludes the partitions before it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, cast

from horsies.db.statement import Op, Query, Statement, execute, load, one, plan_for_values, rows
from horsies.model.codec import decode_error
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.errors import PayloadError
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId

FINAL = tuple(status for status in TaskStatus if status.is_final)
LIVE = tuple(status for status in TaskStatus if not status.is_final)
_ID_DIGITS = 32  # hexadecimal digits of a UUID

SQL = load(__file__)
_LIST = SQL["list_tasks"]
_COUNT = Statement("count_tasks", f"select count(*) from ({_LIST.text.rstrip(';')}) as found")  # noqa: S608 - no user input


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
    """The state of one task. A time is None if it has not come yet; `worker` is the one that holds the task, or held it last."""

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
    """Since when no live worker can run it."""
    error_code: str | None
    error: TaskError | None
    progress: dict[str, Any] | None
    failed_attempts: Sequence[FailedAttempt]
    """The newest 20 of those before the last attempt."""


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A snapshot of the health of one worker."""

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
    task_id, task_name, queue_name, priority, status, *rest, error, progress, failed = row
    return TaskInfo(
        task_id,
        task_name,
        queue_name,
        priority,
        TaskStatus(status),
        *rest,
        error=decode_stored_error(error),
        progress=json.loads(progress) if progress else None,
        failed_attempts=[_decode_attempt(text, number) for number, text in enumerate(failed or (), 1)],
    )


def _decode_attempt(text: object, number: int) -> FailedAttempt:
    try:
        stored: dict[str, Any] = json.loads(cast("str", text))
        return FailedAttempt(
            stored["attempt"],
            stored["error_code"],
            decode_stored_error(json.dumps(stored["error"])),
            stored["worker"],
            datetime.fromisoformat(stored["started_at"]) if stored["started_at"] else None,
            datetime.fromisoformat(stored["ended_at"]),
        )
    except (TypeError, ValueError, LookupError, AttributeError):
        # A row that other software has written must still be readable.
        message = f"this attempt was not recorded by horsies: {str(text)[:1000]}"
        error = TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=message)
        return FailedAttempt(number, str(error.error_code), error, None, None, datetime.fromtimestamp(0, UTC))


def decode_stored_error(text: str | None) -> TaskError | None:
    """Decode a column that may be null, or JSON null. Text that horsies has not written becomes the data of an error."""
    if text is None or text == "null":
        return None
    try:
        return decode_error(text)
    except PayloadError as error:
        return TaskError(
            error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=str(error), data=text[:1000]
        )


def get_worker_states(worker_id: str | None = None, *, limit: int = 1000) -> Op[list[WorkerState]]:
    """Read the newest snapshot of each worker, or the history of one worker."""
    query = SQL["get_worker_states"](worker_id=worker_id, limit=limit)
    return [WorkerState(*row) for row in (yield from plan_for_values(query))]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Conditions that all have to hold. `since` and `until` refer to the end of a task or, if it has not ended, to its send.
    `workflow_id` includes the runs of sub-workflows.
    """

    statuses: Sequence[TaskStatus] = ()
    queue_name: str | None = None
    task_name: str | None = None
    error_code: str | None = None
    worker: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    workflow_id: str | None = None


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """One task of a list."""

    id: TaskId
    task_name: str
    queue_name: str
    priority: int
    status: TaskStatus
    attempts: int
    claim_no: int
    sent_at: datetime
    enqueued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: str | None
    error_code: str | None
    root_id: str | None
    """The outermost run of the workflow that it belongs to."""


def list_tasks(filters: TaskFilter, *, limit: int, after: TaskId | None = None) -> Op[list[TaskSummary]]:
    """List the newest tasks, or those after the last one of the previous page."""
    found = yield from plan_for_values(list_tasks_query(filters, limit, after))
    return [
        TaskSummary(task_id, task_name, queue_name, priority, TaskStatus(status), *rest)
        for task_id, task_name, queue_name, priority, status, *rest in found
    ]


def count_tasks(filters: TaskFilter) -> Op[int]:
    ((count,),) = yield from plan_for_values(list_tasks_query(filters, None, None, _COUNT))
    return count


def read_clock() -> Op[datetime]:
    """Read the clock of the database. All ages are measured by it."""
    ((now,),) = yield from rows(SQL["read_clock"]())
    return now


def list_tasks_query(
    filters: TaskFilter, limit: int | None, after: TaskId | None, statement: Statement = _LIST
) -> Query:
    statuses = filters.statuses or tuple(TaskStatus)
    # A task whose good_until has passed counts as EXPIRED, even if it has not been moved yet.
    may_live = filters.error_code is None and any(status in (*LIVE, TaskStatus.EXPIRED) for status in statuses)
    is_in_flight = filters.worker is not None or {TaskStatus.PENDING, TaskStatus.EXPIRED}.isdisjoint(statuses)
    params = asdict(filters) | {"statuses": [status.value for status in filters.statuses] or None}
    is_final = any(status.is_final for status in statuses)
    return statement(live=may_live, in_flight=is_in_flight, finished=is_final, after=after, limit=limit, **params)


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """What `TaskInfo` leaves out. `args` and `result` are JSON, and None unless they were requested."""

    claim_no: int
    max_retries: int
    cancel_requested_at: datetime | None
    lease_until: datetime | None
    workflow_id: str | None
    workflow_name: str | None
    node_id: str | None
    key: str | None
    args_bytes: int
    result_bytes: int | None
    args: str | None
    result: str | None


def get_task_detail(task_id: TaskId, *, characters: int = 0) -> Op[tuple[TaskInfo, TaskDetail] | None]:
    """Read everything that is stored about one task, with this many characters of its arguments and of its result."""
    info = yield from get_info(task_id)
    if info is None:
        return None
    row = yield from one(SQL["get_task_detail"](id=task_id, task_name=info.task_name, characters=characters))
    return None if row is None else (info, TaskDetail(*row))


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """One registered incarnation of a worker. Memory is that of the newest snapshot; None before the first one."""

    id: str
    hostname: str
    pid: int
    processes: int
    concurrency: int
    queues: Sequence[str]
    library_version: str
    started_at: datetime
    heartbeat_age_s: float
    """By the clock of the database."""
    tasks_claimed: int
    tasks_running: int
    memory_usage_mb: float | None
    children_memory_mb: float | None
    app: str | None
    """The name of its app; None if its library is too old to store it."""
    leave_requested_at: datetime | None = None
    """When it was asked to leave: it finishes its tasks."""


def list_workers() -> Op[list[WorkerSummary]]:
    """List the registered workers, oldest first."""
    return [WorkerSummary(*row) for row in (yield from rows(SQL["list_workers"]()))]


def find_workers(prefix: str) -> Op[list[str]]:
    """Return the ids with this prefix, of registered workers and of those that have left snapshots of their health."""
    digits = prefix.replace("-", "")
    query = SQL["find_workers"](lowest=digits.ljust(_ID_DIGITS, "0"), highest=digits.ljust(_ID_DIGITS, "f"))
    return [worker for (worker,) in (yield from rows(query))]


def request_heartbeat(worker_ids: Sequence[str]) -> Op[Mapping[str, datetime]]:
    """Request a heartbeat from these workers. Returns the times of the last ones, of those that are registered."""
    found, _ = yield from execute(
        SQL["get_heartbeats"](ids=list(worker_ids)), SQL["request_heartbeat"](ids=list(worker_ids))
    )
    return dict(found)


def get_heartbeats(worker_ids: Sequence[str]) -> Op[Mapping[str, datetime]]:
    return dict((yield from rows(SQL["get_heartbeats"](ids=list(worker_ids)))))
