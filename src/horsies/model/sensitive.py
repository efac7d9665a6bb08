"""What of the errors of sensitive tasks may be shown: the code, the class of an exception, and the messages that the library writes itself."""

from dataclasses import replace
from typing import Final

from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.result import TaskError

HIDDEN: Final = "hidden, because the task is sensitive"
_SHOWN_CODES: Final = frozenset(
    map(
        str,
        (
            OutcomeCode.TASK_TIMEOUT,
            OutcomeCode.TASK_CANCELLED,
            OutcomeCode.TASK_EXPIRED,
            OutcomeCode.INTERRUPTED,
            OperationalErrorCode.WORKER_CRASHED,
        ),
    )
)
"""Their messages contain no values, and no task can end with them by itself."""


def hide_message(error_code: str | None, message: str | None) -> str | None:
    return message if message is None or error_code in _SHOWN_CODES else HIDDEN


def hide_error(error: TaskError | None) -> TaskError | None:
    """Return an error without what may quote a value: its message, its data and its traceback."""
    if error is None:
        return None
    message = hide_message(str(error.error_code), str(error.message))
    match error.data:
        case {"exception": str() as exception, "traceback": str()} if message == HIDDEN:
            message = f"{exception}: {HIDDEN}"
        case _:
            pass
    return replace(error, message=message, data=None)
