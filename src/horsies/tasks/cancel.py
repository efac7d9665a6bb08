"""Cancel: what has not begun ends at once, what runs is asked to stop."""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from horsies.db.load import load
from horsies.db.op import Op, Query, ask
from horsies.model.codec import encode_error
from horsies.model.codes import OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId
from horsies.tasks.finish import notify_done

UNBEGUN: Final = TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="cancelled before it began")

SQL = load(__file__)


class CancelOutcome(Enum):
    """What became of a cancellation."""

    CANCELLED = "it had not begun, and never will"
    REQUESTED = "it runs; it was asked to stop and is killed after a grace period"
    ALREADY_ENDED = "it had ended before"
    NOT_FOUND = "no such task is known"


def cancel(task_id: TaskId) -> Op[CancelOutcome]:
    return (yield from cancel_many([task_id]))[task_id]


def cancel_many(task_ids: Sequence[TaskId]) -> Op[dict[TaskId, CancelOutcome]]:
    """In one transaction: all of them or, if it fails, none."""
    _, _, gone, asked, _, _, finished = yield from ask(
        SQL["begin_cancel"](),
        *cancel_all(task_ids),
        SQL["commit_cancel"](),
        notify_done(task_ids),
        SQL["get_finished_ids"](ids=list(task_ids)),
    )
    outcomes = dict.fromkeys(task_ids, CancelOutcome.NOT_FOUND)
    outcomes |= {row[0]: CancelOutcome.ALREADY_ENDED for row in finished}
    outcomes |= {row[0]: CancelOutcome.REQUESTED for row in asked}
    return outcomes | {row[0]: CancelOutcome.CANCELLED for row in gone}


def cancel_unstarted(task_ids: Sequence[TaskId]) -> Op[list[TaskId]]:
    """Only what has not begun; the ids of those. What runs is left alone."""
    lock, end, _ = cancel_all(task_ids)
    _, _, gone, _, _ = yield from ask(SQL["begin_cancel"](), lock, end, SQL["commit_cancel"](), notify_done(task_ids))
    return [task_id for (task_id,) in gone]


def cancel_all(task_ids: Sequence[TaskId]) -> list[Query]:
    """Three statements, inside a transaction: lock them, end what has not begun, ask what runs."""
    ids = sorted(task_ids)
    return [
        SQL["lock_tasks"](ids=ids),
        end_unbegun(ids, TaskStatus.CANCELLED, UNBEGUN),
        SQL["request_cancel"](ids=ids),
    ]


def end_unbegun(ids: list[TaskId], status: TaskStatus, error: TaskError) -> Query:
    """Those of them that have not begun. They are locked already."""
    return SQL["end_unstarted_tasks"](
        ids=ids, status=status.value, error_code=error.error_code, error=encode_error(error)
    )
