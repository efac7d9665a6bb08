"""Cancel, requeue and purge tasks.

**Cancel.** A task that has not started ends at once. A running task is requested to stop.

**Requeue.** A finished task returns to its queue under its own id, and is due now. Its row moves from `finished` to `tasks` in one statement, which only
takes an ending that was seen before: the claim number identifies it, and increases with the requeue. So two requests for the same ending requeue it
once, and the repetition of a request whose answer was lost cannot undo a later ending. Attempts are counted on: a task that has no retries
left gets one more attempt. Its last error becomes one of its failed attempts. If an idempotency key still stands for the task, the task holds it again. If
another task has taken the key since, both would run under one key, and the requeue is refused. A send that takes a key over and a requeue of its former
holder meet at the row of the key: the requeue locks it and changes its `send_id`, which the statement of the send compares.

**Purge.** Finished tasks are deleted before their retention ends. Live tasks are never touched.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final

from horsies.db.statement import Op, Query, disable_sequential_scans, execute, load, rows
from horsies.model.codec import encode_error
from horsies.model.error_codes import OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId
from horsies.tasks.finish import notify_done
from horsies.tasks.inspect import TaskSummary

CANCELLED_BEFORE_START: Final = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="cancelled before it started")

SQL = load(__file__)


class CancelOutcome(Enum):
    """What a cancellation did."""

    CANCELLED = "it had not started, and will not"
    REQUESTED = "it is running; it was requested to stop and is killed after a grace period"
    ALREADY_ENDED = "it had already ended"
    NOT_FOUND = "there is no such task"


def cancel_task(task_id: TaskId) -> Op[CancelOutcome]:
    return (yield from cancel_tasks([task_id]))[task_id]


def cancel_tasks(task_ids: Sequence[TaskId]) -> Op[dict[TaskId, CancelOutcome]]:
    """Cancel all of these tasks in one transaction."""
    _, _, ended, requested, _, _, finished = yield from execute(
        SQL["begin_cancel"](),
        *cancel_queries(task_ids),
        SQL["commit_cancel"](),
        notify_done(task_ids),
        SQL["get_finished_ids"](ids=list(task_ids)),
    )
    outcomes = dict.fromkeys(task_ids, CancelOutcome.NOT_FOUND)
    outcomes |= {row[0]: CancelOutcome.ALREADY_ENDED for row in finished}
    outcomes |= {row[0]: CancelOutcome.REQUESTED for row in requested}
    return outcomes | {row[0]: CancelOutcome.CANCELLED for row in ended}


def cancel_unstarted_tasks(task_ids: Sequence[TaskId]) -> Op[list[TaskId]]:
    """Cancel those of these tasks that have not started, and return their ids."""
    lock, end, _ = cancel_queries(task_ids)
    _, _, ended, _, _ = yield from execute(
        SQL["begin_cancel"](), lock, end, SQL["commit_cancel"](), notify_done(task_ids)
    )
    return [task_id for (task_id,) in ended]


def cancel_running_tasks(task_ids: Sequence[TaskId]) -> Op[list[TaskId]]:
    """Request those of these tasks that are running to stop, and return their ids."""
    lock, _, request = cancel_queries(task_ids)
    _, _, requested, _ = yield from execute(SQL["begin_cancel"](), lock, request, SQL["commit_cancel"]())
    return [task_id for task_id, *_ in requested]


def cancel_queries(task_ids: Sequence[TaskId]) -> list[Query]:
    """Return three statements for a transaction: lock the tasks, end those that have not started, request the others to stop."""
    ids = sorted(task_ids)
    return [
        SQL["lock_tasks"](ids=ids),
        end_unstarted_tasks(ids, TaskStatus.CANCELLED, CANCELLED_BEFORE_START),
        SQL["request_cancel"](ids=ids),
    ]


def end_unstarted_tasks(ids: list[TaskId], status: TaskStatus, error: TaskError) -> Query:
    """End those of these tasks that have not started. The transaction must have locked them."""
    return SQL["end_unstarted_tasks"](
        ids=ids, status=status.value, error_code=error.error_code, error=encode_error(error)
    )


class RetryOutcome(Enum):
    """What a manual retry did."""

    RETRIED = "it is in its queue again, and due now"
    NOT_ENDED = "it has not ended, or was just retried"
    NOT_FOUND = "there is no such task"
    SUCCEEDED = "it has succeeded; force runs it again and discards its result"
    TOO_LATE = "its good_until has passed; force runs it without one"
    KEY_TAKEN = "its key stands for a task that was sent later; force runs both"
    IN_WORKFLOW = "it belongs to a node of a workflow; retry the workflow, which runs its failed nodes again"


@dataclass(frozen=True, slots=True)
class StoredEnding:
    """An ending as it was read. Only this ending is undone, not a later one of the same task."""

    id: TaskId
    claim_no: int
    task_name: str
    status: TaskStatus
    finished_at: datetime
    is_too_late: bool
    is_in_workflow: bool


class Requeue:
    """The operation that requeues tasks. It keeps the endings that it has read, so that it can be run again if its answer was lost."""

    def __init__(
        self, task_ids: Collection[TaskId], *, force: bool = False, claim_nos: Mapping[TaskId, int] | None = None
    ) -> None:
        """With `claim_nos`, tasks that have been claimed again since are left alone: they count as NOT_ENDED."""
        self._ids = sorted(set(task_ids))
        self._force = force
        self._claim_nos = claim_nos
        self._endings: list[StoredEnding] | None = None

    def __call__(self) -> Op[dict[TaskId, RetryOutcome]]:
        seen = {ending.id for ending in self._endings or ()}  # if this is a repetition
        if self._endings is None:
            found = yield from rows(SQL["get_finished_tasks"](ids=self._ids))
            self._endings = [
                StoredEnding(task_id, claim_no, task_name, TaskStatus(status), *rest)
                for task_id, claim_no, task_name, status, *rest in found
                if self._claim_nos is None or self._claim_nos[task_id] == claim_no
            ]
        outcomes = {ending.id: refusal for ending in self._endings if (refusal := self._refusal(ending))}
        if allowed := [ending for ending in self._endings if ending.id not in outcomes]:
            outcomes |= yield from self._requeue(allowed)
        if missing := [task_id for task_id in self._ids if task_id not in outcomes]:
            # There was nothing to requeue. If this is a repetition, the first run may have done it.
            existing = yield from rows(SQL["get_existing_ids"](ids=missing))
            outcomes |= dict.fromkeys(missing, RetryOutcome.NOT_FOUND) | {
                task_id: RetryOutcome.RETRIED if task_id in seen else RetryOutcome.NOT_ENDED for (task_id,) in existing
            }
        return outcomes

    def _refusal(self, ending: StoredEnding) -> RetryOutcome | None:
        if ending.is_in_workflow:
            return RetryOutcome.IN_WORKFLOW
        if self._force:
            return None
        if ending.status is TaskStatus.COMPLETED:
            return RetryOutcome.SUCCEEDED
        return RetryOutcome.TOO_LATE if ending.is_too_late else None

    def _requeue(self, endings: Sequence[StoredEnding]) -> Op[dict[TaskId, RetryOutcome]]:
        ids, names = [ending.id for ending in endings], sorted({ending.task_name for ending in endings})
        _, keys = yield from execute(SQL["begin_retry"](), SQL["lock_keys"](ids=ids, task_names=names))
        taken = set[TaskId]() if self._force else {former for (formers,) in keys for former in formers}
        free = [ending for ending in endings if ending.id not in taken]
        _, requeued, _, _ = yield from execute(
            disable_sequential_scans(),
            SQL["requeue_tasks"](
                ids=[ending.id for ending in free],
                claim_nos=[ending.claim_no for ending in free],
                since=min(ending.finished_at for ending in endings),
                until=max(ending.finished_at for ending in endings),
            ),
            SQL["renew_keys"](ids=[ending.id for ending in free], task_names=names),
            SQL["commit_retry"](),
        )
        return dict.fromkeys(taken.intersection(ids), RetryOutcome.KEY_TAKEN) | {
            task_id: RetryOutcome.RETRIED for (task_id,) in requeued
        }


def purge_finished(tasks: Sequence[TaskSummary]) -> Op[int]:
    """Delete these endings, but not later ones of tasks that were retried since. Returns the number of deleted tasks."""
    ordered = sorted((task.id, task.claim_no, task.finished_at) for task in tasks if task.finished_at is not None)
    if not ordered:
        return 0
    times = [finished_at for _, _, finished_at in ordered]
    _, _, deleted, _ = yield from execute(
        SQL["begin_purge"](),
        disable_sequential_scans(),
        SQL["purge_finished"](
            ids=[task_id for task_id, _, _ in ordered],
            claim_nos=[claim_no for _, claim_no, _ in ordered],
            since=min(times),
            until=max(times),
        ),
        SQL["commit_purge"](),
    )
    return len(deleted)
