"""List: tasks by what is known of them, newest first, a page at a time.

In the order of their ids, which is that of their sending. Both tables have an index on it, so that a page is read off their ends however many
there are. What a filter excludes on the way is looked at nevertheless: a rare status costs a walk over all that is newer, which
`since` bounds, because it leaves out the days before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from horsies.db.load import load
from horsies.db.op import Op, Query, Statement, rows
from horsies.db.values import planned_for_values
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId

FINAL = tuple(status for status in TaskStatus if status.is_final)
LIVE = tuple(status for status in TaskStatus if not status.is_final)

SQL = load(__file__)
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
class TaskLine:
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


def list_tasks(wanted: TaskFilter, *, limit: int, after: TaskId | None = None) -> Op[list[TaskLine]]:
    """The newest, or those that come after this one."""
    found = yield from planned_for_values(list_query(wanted, limit, after))
    return [_line(*row) for row in found]


def _line(task_id: TaskId, task_name: str, queue_name: str, priority: int, status: str, *rest: Any) -> TaskLine:
    return TaskLine(task_id, task_name, queue_name, priority, TaskStatus(status), *rest)


def count_tasks(wanted: TaskFilter) -> Op[int]:
    ((count,),) = yield from planned_for_values(list_query(wanted, None, None, _COUNT))
    return count


def read_clock() -> Op[datetime]:
    """The time on the database's clock, which alone decides how long ago something was."""
    ((now,),) = yield from rows(SQL["read_clock"]())
    return now


def list_query(wanted: TaskFilter, limit: int | None, after: TaskId | None, statement: Statement = _LIST) -> Query:
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
