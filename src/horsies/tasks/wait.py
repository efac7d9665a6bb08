"""Wait: sleep until a task has ended, and read how."""

import time
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from uuid import UUID

from horsies.db.channels import Channel
from horsies.db.load import load
from horsies.db.op import Op, Row, listen, one, wait
from horsies.model.status import TaskStatus
from horsies.model.task import Ended, TaskId

POLL_S = 5.0  # the net under a lost notification
DEAF_POLL_S = 0.25  # when notifications are known not to arrive

SQL = load(__file__)
_LAST_MS = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp() * 1000)


class NotEnded(Enum):
    """Why there is no result: expected answers, not errors."""

    LIVE = auto()
    UNKNOWN = auto()


def wait_until_ended(task_id: TaskId, deadline: float | None) -> Op[Ended | NotEnded]:
    """The ending, or why there is none at the deadline (on the monotonic clock; None waits for ever).

    An unknown id is waited for like any other: its send may commit later.
    """
    yield from listen(Channel.DONE, task_id)  # before the first read, or the ending could slip between
    while True:
        row = yield from _read(task_id)
        found = _judged(task_id, row)
        left = POLL_S if deadline is None else deadline - time.monotonic()
        if isinstance(found, Ended) or left <= 0:
            return found
        expires_s = row[3] if row and row[3] is not None else POLL_S
        pause = min(left, POLL_S, max(expires_s, 0.001))
        yield from wait(timeout_s=pause, deaf_timeout_s=min(pause, DEAF_POLL_S))


def get_ended(task_id: TaskId) -> Op[Ended | NotEnded]:
    row = yield from _read(task_id)
    return _judged(task_id, row)


def _read(task_id: TaskId) -> Op[Row | None]:
    # Clocks may differ by a day; beyond that the second look, which is not pruned, finds it.
    since, until = _made_at(task_id) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1)
    row = yield from one(SQL["get_ended"](id=task_id, since=since, until=until))
    return row or (yield from one(SQL["get_ended_unpruned"](id=task_id)))


def _judged(task_id: TaskId, row: Row | None) -> Ended | NotEnded:
    if row is None:
        return NotEnded.UNKNOWN
    status = TaskStatus(row[0])
    return Ended(task_id, status, row[1], row[2]) if status.is_final else NotEnded.LIVE


def _made_at(task_id: TaskId) -> datetime:
    """The time in a version 7 id; for another kind of id, now: the look-up without pruning finds it then."""
    value = UUID(task_id)
    milliseconds = value.int >> 80
    if value.version != 7 or milliseconds > _LAST_MS:  # noqa: PLR2004 - the version that carries a time
        return datetime.now(UTC)
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
