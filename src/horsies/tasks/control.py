"""Cancel: what has not begun ends at once, what runs is asked to stop."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from horsies.db.statement import Op, Query, disable_sequential_scans, execute, load, rows
from horsies.model.codec import encode_error
from horsies.model.error_codes import OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId
from horsies.tasks.finish import notify_done
from horsies.tasks.inspect import TaskSummary

CANCELLED_BEFORE_START: Final = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="cancelled before it began")

SQL = load(__file__)


class CancelOutcome(Enum):
    """What became of a cancellation."""

    CANCELLED = "it had not begun, and never will"
    REQUESTED = "it runs; it was asked to stop and is killed after a grace period"
    ALREADY_ENDED = "it had ended before"
    NOT_FOUND = "no such task is known"


def cancel_task(task_id: TaskId) -> Op[CancelOutcome]:
    return (yield from cancel_tasks([task_id]))[task_id]


def cancel_tasks(task_ids: Sequence[TaskId]) -> Op[dict[TaskId, CancelOutcome]]:
    """In one transaction: all of them or, if it fails, none."""
    _, _, gone, asked, _, _, finished = yield from execute(
        SQL["begin_cancel"](),
        *cancel_queries(task_ids),
        SQL["commit_cancel"](),
        notify_done(task_ids),
        SQL["get_finished_ids"](ids=list(task_ids)),
    )
    outcomes = dict.fromkeys(task_ids, CancelOutcome.NOT_FOUND)
    outcomes |= {row[0]: CancelOutcome.ALREADY_ENDED for row in finished}
    outcomes |= {row[0]: CancelOutcome.REQUESTED for row in asked}
    return outcomes | {row[0]: CancelOutcome.CANCELLED for row in gone}


def cancel_unstarted_tasks(task_ids: Sequence[TaskId]) -> Op[list[TaskId]]:
    """Only what has not begun; the ids of those. What runs is left alone."""
    lock, end, _ = cancel_queries(task_ids)
    _, _, gone, _, _ = yield from execute(
        SQL["begin_cancel"](), lock, end, SQL["commit_cancel"](), notify_done(task_ids)
    )
    return [task_id for (task_id,) in gone]


def cancel_queries(task_ids: Sequence[TaskId]) -> list[Query]:
    """Three statements, inside a transaction: lock them, end what has not begun, ask what runs."""
    ids = sorted(task_ids)
    return [
        SQL["lock_tasks"](ids=ids),
        end_unstarted_tasks(ids, TaskStatus.CANCELLED, CANCELLED_BEFORE_START),
        SQL["request_cancel"](ids=ids),
    ]


def end_unstarted_tasks(ids: list[TaskId], status: TaskStatus, error: TaskError) -> Query:
    """Those of them that have not begun. They are locked already."""
    return SQL["end_unstarted_tasks"](
        ids=ids, status=status.value, error_code=error.error_code, error=encode_error(error)
    )


# --------
# Retry: a finished task comes back, under its own id, and is due now.
#
# Its row moves from `finished` to `tasks` in one statement, which takes an ending only if it is the one that was seen: the claim number says
# so, and rises with the retry itself. So two who retry the same ending bring it back once, and one who repeats a retry whose answer was lost cannot
# bring back an ending that came after it.
#
# Attempts are counted on: a task that has used up its retries gets one more attempt. What it failed with is remembered among its failed attempts.
#
# A key goes with its task: if it still stands for the task, it is held again. If it has been given to another one since, both would run under one key, and
# the retry is refused. A send that takes a key over and a retry of its former holder meet at the row of the key: the retry locks it and leaves a mark
# (`send_id`) that the other's statement looks for.


class RetryOutcome(Enum):
    """What became of a retry."""

    RETRIED = "it is back, and due now"
    NOT_ENDED = "it has not ended, or was brought back just now"
    NOT_FOUND = "no such task is known"
    SUCCEEDED = "it has succeeded; force runs it again, and its result is forgotten"
    TOO_LATE = "its good_until has passed; force runs it without one"
    KEY_TAKEN = "its key stands for a task that was sent later; force runs it beside that one"
    IN_WORKFLOW = "it is a node's of a workflow: retry the workflow, which runs what failed in it again"


@dataclass(frozen=True, slots=True)
class StoredEnding:
    """An ending as it was seen: only this very one is undone."""

    id: TaskId
    claim_no: int
    task_name: str
    status: TaskStatus
    finished_at: datetime
    is_too_late: bool
    is_in_workflow: bool


class Requeue:
    """The verb. It remembers the endings that it has seen, so that it can be run again when its answer was lost."""

    def __init__(self, task_ids: Sequence[TaskId], *, force: bool = False) -> None:
        self._ids = sorted(set(task_ids))
        self._force = force
        self._seen: list[StoredEnding] | None = None
        self._is_repeated = False

    def __call__(self) -> Op[dict[TaskId, RetryOutcome]]:
        if self._seen is None:
            self._seen = yield from get_finished_tasks(self._ids)
        else:
            self._is_repeated = True
        outcomes = {ending.id: why for ending in self._seen if (why := self._refusal(ending))}
        if wanted := [ending for ending in self._seen if ending.id not in outcomes]:
            outcomes |= yield from self._bring_back(wanted)
        return outcomes | (yield from self._rest([task_id for task_id in self._ids if task_id not in outcomes]))

    def _rest(self, task_ids: list[TaskId]) -> Op[dict[TaskId, RetryOutcome]]:
        """What was not there to be brought back. Ours may have been the hand that did it, if the answer was lost."""
        if not task_ids:
            return {}
        known = yield from rows(SQL["get_existing_ids"](ids=task_ids))
        seen = {ending.id for ending in self._seen or ()} if self._is_repeated else set[TaskId]()
        return dict.fromkeys(task_ids, RetryOutcome.NOT_FOUND) | {
            task_id: RetryOutcome.RETRIED if task_id in seen else RetryOutcome.NOT_ENDED for (task_id,) in known
        }

    def _refusal(self, ending: StoredEnding) -> RetryOutcome | None:
        if ending.is_in_workflow:
            return RetryOutcome.IN_WORKFLOW
        if self._force:
            return None
        if ending.status is TaskStatus.COMPLETED:
            return RetryOutcome.SUCCEEDED
        return RetryOutcome.TOO_LATE if ending.is_too_late else None

    def _bring_back(self, endings: Sequence[StoredEnding]) -> Op[dict[TaskId, RetryOutcome]]:
        ids, names = [ending.id for ending in endings], sorted({ending.task_name for ending in endings})
        _, keys = yield from execute(SQL["begin_retry"](), SQL["lock_keys"](ids=ids, task_names=names))
        taken = set[TaskId]() if self._force else {former for (others,) in keys for former in others}
        free = [ending for ending in endings if ending.id not in taken]
        _, back, _, _ = yield from execute(
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
            task_id: RetryOutcome.RETRIED for (task_id,) in back
        }


def get_finished_tasks(task_ids: Sequence[TaskId]) -> Op[list[StoredEnding]]:
    """In order of their ids."""
    found = yield from rows(SQL["get_finished_tasks"](ids=list(task_ids)))
    return [_ending(*row) for row in found]


def _ending(task_id: TaskId, claim_no: int, task_name: str, status: str, *rest: Any) -> StoredEnding:
    return StoredEnding(task_id, claim_no, task_name, TaskStatus(status), *rest)


# --------
# Purge: finished tasks are deleted before their retention would take them. What is live is never touched.


def purge_finished(lines: Sequence[TaskSummary]) -> Op[int]:
    """Delete these very endings; one that has been retried since is another, or none. How many there were."""
    ordered = sorted((line.id, line.claim_no, line.finished_at) for line in lines if line.finished_at is not None)
    if not ordered:
        return 0
    moments = [finished_at for _, _, finished_at in ordered]
    _, _, deleted, _ = yield from execute(
        SQL["begin_purge"](),
        disable_sequential_scans(),
        SQL["purge_finished"](
            ids=[task_id for task_id, _, _ in ordered],
            claim_nos=[claim_no for _, claim_no, _ in ordered],
            since=min(moments),
            until=max(moments),
        ),
        SQL["commit_purge"](),
    )
    return len(deleted)
