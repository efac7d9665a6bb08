"""The attempts of one task: how each ended, and where it ran.

The attempts that were followed by another are in `failed_attempts`, a JSON array of the row, the newest 20 of them. The last one is in the columns of the
row itself, whether it is running or has ended. Rows that other software has written must be readable, too: what is missing or makes no sense is None.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, cast

from horsies.db.statement import Op, Row, load, one, rows
from horsies.model.attempt_log import LogLine, lines_from_json
from horsies.model.codec import parse_json
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.result import TaskError
from horsies.model.sensitive import hide_error
from horsies.model.status import TaskStatus
from horsies.model.task import TaskId
from horsies.tasks.inspect import decode_stored_error
from horsies.tasks.workers import children_from_json

_MAX_UNREADABLE: Final = 1_000

SQL = load(__file__)


class AttemptOutcome(StrEnum):
    """How an attempt ended. TIMED_OUT, CRASHED and INTERRUPTED are failures with the codes TASK_TIMEOUT, WORKER_CRASHED and INTERRUPTED."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CRASHED = "CRASHED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"
    """Its worker was stopped while it ran. If the task has retries left, such an attempt does not count, and the next one has the same number."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. `message` is the first line of that of its error; `child_pid` the process on the host of its worker, if it is known."""

    number: int
    outcome: AttemptOutcome
    started_at: datetime | None
    ended_at: datetime | None
    """None while it runs."""
    worker: str | None
    child_pid: int | None
    error_code: str | None
    claim_no: int | None
    """Which claim of the task it was: unique, unlike the number, which does not count interrupted attempts."""
    duration_s: float | None = None
    message: str | None = None
    error: TaskError | None = None
    has_logs: bool = False


_OUTCOMES: Final[Mapping[str, AttemptOutcome]] = {
    OutcomeCode.TASK_TIMEOUT: AttemptOutcome.TIMED_OUT,
    OutcomeCode.TASK_CANCELLED: AttemptOutcome.CANCELLED,
    OutcomeCode.INTERRUPTED: AttemptOutcome.INTERRUPTED,
    OperationalErrorCode.WORKER_CRASHED: AttemptOutcome.CRASHED,
}


def get_attempts(task_id: TaskId) -> Op[tuple[list[Attempt], bool] | None]:
    """Read the attempts of a task, oldest first, and whether its row says that it is sensitive. None if it does not exist."""
    row = yield from one(SQL["get_attempts"](id=task_id))
    if row is None:
        return None
    *own, failed, children, logged, is_sensitive = row
    logs = set[int](logged)
    attempts = [_attempt_from_json(text, number, logs) for number, text in enumerate(failed or (), 1)]
    if last := _last_attempt(task_id, tuple(own), children, logs):
        attempts.append(last)
    return attempts, is_sensitive


def _last_attempt(task_id: TaskId, own: Row, children: str | None, logs: Collection[int]) -> Attempt | None:
    """Return the attempt that the row itself describes; None if it waits, or has ended without one."""
    status, ended, claim_no, worker, started_at, finished_at, error_code, error, child_pid = own
    is_running = status == TaskStatus.RUNNING
    if not is_running and (finished_at is None or started_at is None):
        return None
    if is_running:
        running_in = [child.pid for child in children_from_json(children) if any(t.id == task_id for t in child.tasks)]
        child_pid = running_in[0] if running_in else None
        outcome, ended = AttemptOutcome.RUNNING, ended + 1
    else:
        outcome = _outcome(status, error_code)
    attempt = Attempt(ended, outcome, started_at, finished_at, worker, child_pid, error_code, claim_no)
    return _complete(attempt, error, logs)


def _outcome(status: str | None, error_code: str | None) -> AttemptOutcome:
    if status == TaskStatus.COMPLETED or (status is None and error_code is None):
        return AttemptOutcome.COMPLETED
    return _OUTCOMES.get(error_code or "", AttemptOutcome.FAILED)


def _complete(attempt: Attempt, error_text: str | None, logs: Collection[int]) -> Attempt:
    """Add what follows from the other fields."""
    started_at, ended_at, error = attempt.started_at, attempt.ended_at, decode_stored_error(error_text)
    return replace(
        attempt,
        duration_s=max(0.0, (ended_at - started_at).total_seconds()) if started_at and ended_at else None,
        message=_first_line(error),
        error=error,
        has_logs=attempt.claim_no in logs,
    )


def _attempt_from_json(text: object, position: int, logs: Collection[int]) -> Attempt:
    try:
        stored: dict[str, Any] = parse_json(cast("str", text))
        error_code = _text_or_none(stored["error_code"])
        attempt = Attempt(
            _integer(stored["attempt"]) or position,
            _outcome(None, error_code),
            _time(stored["started_at"]),
            _time(stored["ended_at"]),
            _text_or_none(stored["worker"]),
            _integer(stored.get("child_pid")),
            error_code,
            _integer(stored.get("claim_no")),
        )
        return _complete(attempt, json.dumps(stored["error"]), logs)
    except (TypeError, ValueError, LookupError, AttributeError):
        message = f"this attempt was not recorded by horsies: {str(text)[:_MAX_UNREADABLE]}"
        error = TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=message)
        failed = Attempt(position, AttemptOutcome.FAILED, None, None, None, None, str(error.error_code), None)
        return replace(failed, message=_first_line(error), error=error)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _time(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _first_line(error: TaskError | None) -> str | None:
    """Return the first line of the message."""
    return next(iter(str(error.message or "").splitlines()), None) if error else None


def hide_attempt(attempt: Attempt) -> Attempt:
    """Return an attempt of a sensitive task as it may be shown."""
    error = hide_error(attempt.error)
    return replace(attempt, error=error, message=_first_line(error))


# -- log lines


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """What one attempt has logged."""

    claim_no: int
    """That of the `Attempt`."""
    attempt: int
    lines: Sequence[LogLine]
    """Oldest first."""
    left_out: int
    """How many lines there were besides these. They are missing between the first ones and the newest."""
    stored_at: datetime
    """When the attempt ended."""
    is_hidden: bool = False
    """The task is sensitive, so its lines are not included."""


def list_attempt_logs(
    task_id: TaskId,
    *,
    claim_no: int | None,
    before: int | None,
    limit: int,
    reveal: bool,
    is_sensitive: Callable[[str], bool],
) -> Op[list[AttemptLog]]:
    """Read the newest logs of a task, in the order of its attempts. `is_sensitive` is asked for the name of the task, besides its row."""
    found = yield from rows(SQL["get_attempt_logs"](id=task_id, claim_no=claim_no, before=before, limit=limit))
    return [
        AttemptLog(number, attempt, lines_from_json(records), left_out, stored_at)
        if reveal or not (in_row or is_sensitive(task_name))
        else AttemptLog(number, attempt, [], left_out, stored_at, is_hidden=True)
        for task_name, in_row, number, attempt, records, left_out, stored_at in found
    ]
