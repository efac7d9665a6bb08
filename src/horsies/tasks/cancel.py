"""Cancel: what has not begun ends at once, what runs is asked to stop."""

from enum import Enum

from horsies.db.load import load
from horsies.db.op import Op, ask
from horsies.model.codec import encode_error
from horsies.model.codes import OutcomeCode
from horsies.model.result import TaskError
from horsies.model.task import TaskId

SQL = load(__file__)


class CancelOutcome(Enum):
    """What became of a cancellation."""

    CANCELLED = "it had not begun, and never will"
    REQUESTED = "it runs; it was asked to stop and is killed after a grace period"
    ALREADY_ENDED = "it had ended before"
    NOT_FOUND = "no such task is known"


def cancel(task_id: TaskId) -> Op[CancelOutcome]:
    error = encode_error(TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="cancelled before it began"))
    _, live, gone, asked, _, _, finished = yield from ask(
        SQL["begin_cancel"](),
        SQL["lock_task"](id=task_id),
        SQL["cancel_unstarted"](id=task_id, error=error),
        SQL["ask_to_cancel"](id=task_id),
        SQL["commit_cancel"](),
        SQL["notify_cancelled"](id=task_id),
        SQL["is_finished"](id=task_id),
    )
    if gone:
        return CancelOutcome.CANCELLED
    if live and asked:
        return CancelOutcome.REQUESTED
    return CancelOutcome.ALREADY_ENDED if finished[0][0] else CancelOutcome.NOT_FOUND
