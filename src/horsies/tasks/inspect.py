"""Inspect: read what is known, change nothing."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from horsies.db.statement import Op, Query, Statement, execute, load, one, plan_for_values, rows
from horsies.model.codec import decode_error
from horsies.model.error_codes import OperationalErrorCode
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
    found = yield from plan_for_values(SQL["get_worker_states"](worker_id=worker_id, limit=limit))
    return [WorkerState(*row) for row in found]


# --------
# List: tasks by what is known of them, newest first, a page at a time.
#
# In the order of their ids, which is that of their sending. Both tables have an index on it, so that a page is read off their ends however many
# there are. What a filter excludes on the way is looked at nevertheless: a rare status costs a walk over all that is newer, which
# `since` bounds, because it leaves out the days before it.

FINAL = tuple(status for status in TaskStatus if status.is_final)
LIVE = tuple(status for status in TaskStatus if not status.is_final)

_LIST = SQL["list_tasks"]
_COUNT = Statement("count_tasks", f"select count(*) from ({_LIST.text.rstrip(';')}) as found")  # noqa: S608 - our own


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks are meant; what is not given does not matter. `since` and `until` are about when a task ended or, if it has
    not, when it was sent; `workflow_id` means a run with everything below it.
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
    """The outermost run of a workflow that it belongs to."""


def list_tasks(wanted: TaskFilter, *, limit: int, after: TaskId | None = None) -> Op[list[TaskSummary]]:
    """The newest, or those that come after this one."""
    found = yield from plan_for_values(list_tasks_query(wanted, limit, after))
    return [_line(*row) for row in found]


def _line(task_id: TaskId, task_name: str, queue_name: str, priority: int, status: str, *rest: Any) -> TaskSummary:
    return TaskSummary(task_id, task_name, queue_name, priority, TaskStatus(status), *rest)


def count_tasks(wanted: TaskFilter) -> Op[int]:
    ((count,),) = yield from plan_for_values(list_tasks_query(wanted, None, None, _COUNT))
    return count


def read_clock() -> Op[datetime]:
    """The time on the database's clock, which alone decides how long ago something was."""
    ((now,),) = yield from rows(SQL["read_clock"]())
    return now


def list_tasks_query(
    wanted: TaskFilter, limit: int | None, after: TaskId | None, statement: Statement = _LIST
) -> Query:
    statuses = wanted.statuses or tuple(TaskStatus)
    # What is past its time has expired, whether or not it was moved yet.
    may_live = wanted.error_code is None and any(status in (*LIVE, TaskStatus.EXPIRED) for status in statuses)
    is_in_flight = wanted.worker is not None or {TaskStatus.PENDING, TaskStatus.EXPIRED}.isdisjoint(statuses)
    return statement(
        live=may_live,
        in_flight=is_in_flight,
        finished=any(status.is_final for status in statuses),
        statuses=[status.value for status in wanted.statuses] or None,
        queue_name=wanted.queue_name,
        task_name=wanted.task_name,
        error_code=wanted.error_code,
        worker=wanted.worker,
        since=wanted.since,
        until=wanted.until,
        workflow_id=wanted.workflow_id,
        after=after,
        limit=limit,
    )


# --------
# Show: everything that is stored about one task, for those who look into what went wrong.

WHOLE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """What `TaskInfo` leaves out. `args` and `result` are JSON, and None unless they were asked for."""

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
    """With so many characters of its arguments and of its result."""
    info = yield from get_info(task_id)
    if info is None:
        return None
    row = yield from one(SQL["get_task_detail"](id=task_id, task_name=info.task_name, characters=characters))
    return None if row is None else (info, TaskDetail(*row))


# --------
# Workers as those who operate them see them: who is registered, how it fares, and whether it answers.

_LONGEST = 32  # hexadecimal digits of an id


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """One registered incarnation. Memory is that of its newest snapshot; None before the first."""

    id: str
    hostname: str
    pid: int
    processes: int
    concurrency: int
    queues: Sequence[str]
    library_version: str
    started_at: datetime
    heartbeat_age_s: float
    """By the database's clock."""
    tasks_claimed: int
    tasks_running: int
    memory_usage_mb: float | None
    children_memory_mb: float | None
    app: str | None
    """The name of the app that it serves; None if its library is too old to tell."""


def list_workers() -> Op[list[WorkerSummary]]:
    """Oldest first."""
    found = yield from rows(SQL["list_workers"]())
    return [WorkerSummary(*row) for row in found]


def find_workers(prefix: str) -> Op[list[str]]:
    """The ids that begin like this, of workers that are registered, or that have left snapshots of their health behind."""
    digits = prefix.replace("-", "")
    found = yield from rows(
        SQL["find_workers"](lowest=digits.ljust(_LONGEST, "0"), highest=digits.ljust(_LONGEST, "f"))
    )
    return [worker for (worker,) in found]


def request_heartbeat(worker_ids: Sequence[str]) -> Op[Mapping[str, datetime]]:
    """Ask these workers for a heartbeat now. When they had the last one, of those that are registered."""
    found, _ = yield from execute(
        SQL["get_heartbeats"](ids=list(worker_ids)), SQL["request_heartbeat"](ids=list(worker_ids))
    )
    return dict(found)


def get_heartbeats(worker_ids: Sequence[str]) -> Op[Mapping[str, datetime]]:
    found = yield from rows(SQL["get_heartbeats"](ids=list(worker_ids)))
    return dict(found)
