"""Read tasks and workers, without changing anything.

Lists of tasks are in order of the ids, which is the order of sending, newest first, a page at a time. Both tables have an index on the id, so a page costs
the same however many tasks there are. Rows that a filter excludes are read nevertheless, and a statement reads at most `MAX_SCANNED` of them: then the page
ends where it stands, and the next one continues there. So a search for something rare streams, and never holds a connection for long. Tasks that have not
succeeded have an index of their own, and so do those of a workflow, a schedule and a key.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, cast

from horsies.db.errors import DeniedError
from horsies.db.statement import Op, Query, Rows, execute, load, one, plan_for_values, rows
from horsies.model.codec import decode_error, parse_json
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.errors import PayloadError
from horsies.model.result import TaskError
from horsies.model.sensitive import hide_message
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId

FINAL = tuple(status for status in TaskStatus if status.is_final)
LIVE = tuple(status for status in TaskStatus if not status.is_final)

SQL = load(__file__)
MAX_SCANNED = 1_000
"""How many rows of each table one statement of a list reads."""
MAX_SEARCHED = 500
"""The same for a list of those whose message contains a text: to compare an error takes ten times as long as all other conditions."""
MAX_COUNTED = 20_000
"""The same for one step of a count."""
MAX_PREVIEWED = 5_000
"""The same for a preview."""
MAX_MESSAGE = 200  # characters


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


def get_statuses(task_ids: Sequence[TaskId]) -> Op[Mapping[TaskId, TaskStatus]]:
    """Return the statuses of those that exist."""
    found = yield from rows(SQL["get_statuses"](ids=list(task_ids)))
    return {task_id: TaskStatus(status) for task_id, status in found}


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
        progress=decode_progress(progress),
        failed_attempts=[
            attempt
            for number, text in enumerate(failed or (), 1)
            if (attempt := _decode_attempt(text, number)) is not None
        ],
    )


def decode_progress(text: str | None) -> dict[str, Any] | None:
    """Decode a column that may be null. What horsies has not written is left out."""
    try:
        stored = parse_json(text or "null")
    except ValueError:
        return None
    return cast("dict[str, Any]", stored) if isinstance(stored, dict) else None


def _decode_attempt(text: object, number: int) -> FailedAttempt | None:
    """Return an attempt that has failed and counts; None for others. `tasks/attempts.py` has all of them."""
    try:
        stored: dict[str, Any] = parse_json(cast("str", text))
        if stored["error_code"] is None or stored.get("counted") is False:
            return None
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

    Of a live task that was tried before, `error_code` and `message` refer to its last failed attempt.
    """

    statuses: Sequence[TaskStatus] = ()
    queue_name: str | None = None
    task_name: str | None = None
    error_code: str | None = None
    message: str | None = None
    """Text that is contained in the first 1000 characters of the error's message, in upper or lower case."""
    error_summary: str | None = None
    """The message of an `ErrorGroup`: selects the failures whose message, masked, is this."""
    worker: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    workflow_id: str | None = None
    """Includes the runs of sub-workflows."""
    key: str | None = None
    """The task that this idempotency key stands for, and those that had it before."""
    schedule_name: str | None = None
    ids: Sequence[str] | None = None
    """These tasks only."""

    @property
    def kinds(self) -> int:
        """How many conditions name their tasks, so that these are read, instead of the tables."""
        return sum(given is not None for given in (self.workflow_id, self.key, self.schedule_name, self.ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeTaskFilter(TaskFilter):
    """A filter of a reader whose code calls more tasks sensitive than the rows say: it does not find out what their errors contain."""

    sensitive: Sequence[str] = ()
    """The names of these tasks."""


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
    """Of its error; if it has not ended, of its last failed attempt."""
    root_id: str | None
    """The outermost run of the workflow that it belongs to."""
    message: str | None = None
    """The first line of its error, or of the error of its last failed attempt, up to 200 characters."""
    running_for_s: float | None = None
    """By the clock of the database; None unless it is RUNNING."""
    node_id: str | None = None
    """The name of the node of a workflow that it runs."""
    is_sensitive: bool = False
    """Its payload is not shown, nor what its errors say."""
    max_retries: int = 0
    """By its policy."""


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A part of a list of tasks. `next_after` is the `after` of the next page; None if this is the last one."""

    tasks: Sequence[TaskSummary]
    next_after: TaskId | None
    is_complete: bool = True
    """False: so many rows were read that did not match that the search was stopped before the page was full. It continues with `next_after`."""
    searched_until: datetime | None = None
    """If it is not complete: all tasks that were sent since then were searched."""


def list_tasks(
    filters: TaskFilter, *, limit: int, after: TaskId | None = None, scanned: int = MAX_SCANNED
) -> Op[TaskPage]:
    """List the newest tasks, or those after the last one of the previous page."""
    found = yield from _read_list(list_tasks_query(filters, limit + 1, after, scanned))
    page = _to_page(found, limit)
    return replace(page, tasks=(yield from _name_nodes([*page.tasks])))


def _to_page(found: Rows, limit: int) -> TaskPage:
    tasks: list[TaskSummary] = []
    for is_match, is_last, *row in found:
        if is_match and len(tasks) == limit:
            return TaskPage(tasks, tasks[-1].id)
        if is_match:
            tasks.append(_to_summary(row))
        if is_last:  # below it, one of the tables was not searched
            return TaskPage(tasks, row[0], is_complete=False, searched_until=row[7])
    return TaskPage(tasks, None)


def list_all_tasks(filters: TaskFilter, *, limit: int, after: TaskId | None = None) -> Op[TaskPage]:
    """Fill the page, however much must be read."""
    tasks: list[TaskSummary] = []
    while True:
        page = yield from list_tasks(filters, limit=limit - len(tasks), after=after)
        tasks += page.tasks
        after = page.next_after
        if page.is_complete or len(tasks) >= limit or after is None:
            return TaskPage(tasks, after)


@dataclass(frozen=True, slots=True)
class TaskCount:
    """How many tasks match. If it is not complete, there may be more among the older ones, which were not read."""

    count: int
    is_complete: bool


def count_newest(filters: TaskFilter, newest: int | None = None) -> Op[TaskCount]:
    """Count the matches among the newest rows: this many of each table, and at most `MAX_PREVIEWED`."""
    query = list_tasks_query(filters, None, None, min(newest or MAX_PREVIEWED, MAX_PREVIEWED), counted=True)
    ((found, after),) = yield from _read_list(query)
    return TaskCount(found, after is None)


def count_tasks(filters: TaskFilter) -> Op[int]:
    """Count all of them, in steps, each of which reads a bounded number of rows."""
    count, after = 0, None
    while True:
        query = list_tasks_query(filters, None, after, MAX_COUNTED, counted=True)
        ((found, after),) = yield from _read_list(query)
        count += found
        if after is None:
            return count


def list_running(limit: int) -> Op[list[TaskSummary]]:
    """List the running tasks, those that have run for the longest first."""
    found = yield from rows(SQL["list_running"](limit=limit))
    return (yield from _name_nodes([_to_summary(row) for _, _, *row in found]))


def _name_nodes(tasks: list[TaskSummary]) -> Op[list[TaskSummary]]:
    """Replace the ids of nodes by their names. A role that may not read the nodes gets none."""
    ids = [task.node_id for task in tasks if task.node_id is not None]
    if not ids:
        return tasks
    try:
        names = dict((yield from rows(SQL["get_node_names"](ids=ids))))
    except DeniedError:
        yield from rows(SQL["roll_back_read"]())
        names = {}
    return [task if task.node_id is None else replace(task, node_id=names.get(task.node_id)) for task in tasks]


def _to_summary(row: Sequence[Any]) -> TaskSummary:
    (
        task_id,
        task_name,
        queue_name,
        priority,
        status,
        *times,
        worker,
        code,
        root,
        message,
        running_s,
        node,
        is_sensitive,
        deaths,
        max_retries,
    ) = row
    if code is None and message is None and deaths:
        code, message = str(OperationalErrorCode.WORKER_CRASHED), f"{deaths} child processes died before it started"
    return TaskSummary(
        task_id,
        task_name,
        queue_name,
        priority,
        TaskStatus(status),
        *times,
        worker=worker,
        error_code=first_line(code),
        root_id=root,
        message=hide_message(code, first_line(message)) if is_sensitive else first_line(message),
        running_for_s=running_s,
        node_id=node,
        is_sensitive=is_sensitive,
        max_retries=max_retries,
    )


def first_line(message: str | None) -> str | None:
    """Return the first line of a message, up to 200 characters. It was cut out of JSON, and still has its escapes; the last one may be incomplete."""
    if message is None:
        return None
    text = re.sub(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$", r"\1", message)
    try:
        text = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        text = message
    return (text.strip().splitlines() or [""])[0][:MAX_MESSAGE]


def read_clock() -> Op[datetime]:
    """Read the clock of the database. All ages are measured by it."""
    ((now,),) = yield from rows(SQL["read_clock"]())
    return now


def list_tasks_query(
    filters: TaskFilter, limit: int | None, after: TaskId | None, scanned: int = MAX_SCANNED, *, counted: bool = False
) -> Query:
    name = f"{'count' if counted else 'list'}_{'selected_tasks' if filters.kinds else 'tasks'}"
    params = (
        {"sensitive": []}
        | {field.name: getattr(filters, field.name) for field in fields(filters)}
        | {
            "statuses": [TaskStatus(status).value for status in filters.statuses] or None,
            "ids": None if filters.ids is None else list(filters.ids),
            "message": filters.message and json.dumps(filters.message, ensure_ascii=False)[1:-1],
            "is_ascii": filters.message is not None and filters.message.isascii(),
        }
    )
    if limit is not None and filters == TaskFilter():
        scanned = min(scanned, limit)  # every row matches
    if filters.message is not None and not counted:
        scanned = min(scanned, MAX_SEARCHED)
    if filters.kinds:
        params["kinds"] = filters.kinds
    else:
        params |= _read_parts(filters)
    return SQL[name](after=after, limit=limit, scanned=scanned, **params)


def _read_list(query: Query) -> Op[Rows]:
    """Return the rows of a list or a count. One that names its tasks reads the same indexes whatever its parameters are, so it is planned once."""
    return rows(query) if "kinds" in query.params else plan_for_values(query)


def _read_parts(filters: TaskFilter) -> dict[str, bool]:
    """Return which parts of the tables can contain matches."""
    statuses = {TaskStatus(status) for status in filters.statuses or TaskStatus}
    if filters.error_summary is not None:
        statuses &= {TaskStatus.FAILED}
    has_error = filters.error_code is not None or filters.message is not None
    # A task whose good_until has passed counts as EXPIRED, even if it has not been moved yet.
    return {
        "live": not statuses.isdisjoint((*LIVE, TaskStatus.EXPIRED)),
        "in_flight": filters.worker is not None or statuses.isdisjoint((TaskStatus.PENDING, TaskStatus.EXPIRED)),
        "tried": has_error,
        "expired": statuses.isdisjoint(LIVE),
        "finished": any(status.is_final for status in statuses),
        "unsuccessful": has_error or TaskStatus.COMPLETED not in statuses,
    }


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
    schedule_name: str | None
    """The schedule that has enqueued it, while its run is remembered."""
    trace_id: str | None
    """That of its sender's trace, 32 hexadecimal digits, if the sender is instrumented."""


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


def request_heartbeat(worker_ids: Sequence[str]) -> Op[Mapping[str, datetime]]:
    """Request a heartbeat from these workers. Returns the times of the last ones, of those that are registered."""
    found, _ = yield from execute(
        SQL["get_heartbeats"](ids=list(worker_ids)), SQL["request_heartbeat"](ids=list(worker_ids))
    )
    return dict(found)


def get_heartbeats(worker_ids: Sequence[str]) -> Op[Mapping[str, datetime]]:
    return dict((yield from rows(SQL["get_heartbeats"](ids=list(worker_ids)))))
