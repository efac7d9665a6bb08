"""Wait until tasks have ended, and read their results. `db/waiter.py` decides who sleeps and who reads."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

from horsies.db.channels import Channel
from horsies.db.statement import Op, Row, load, rows
from horsies.db.waiter import ReadResult, Waiter, WaitSource
from horsies.model.status import TaskStatus
from horsies.model.task import Ended, TaskId

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker  # imports psycopg, which a process that only runs tasks does not need

MAX_CLOCK_DIFFERENCE = timedelta(hours=1)
_MAX_MS = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp() * 1000)
_VERSION_POSITION = 14  # in the text of a UUID; version 7 contains a time, and sorts by it

SQL = load(__file__)


class NotEnded(Enum):
    """Why there is no result."""

    LIVE = auto()
    UNKNOWN = auto()


WaitAnswer: TypeAlias = Ended | NotEnded


def deadline_from_timeout(timeout_ms: float | None) -> float | None:
    """Return the deadline on the monotonic clock; None waits without a limit."""
    if timeout_ms is None:
        return None
    if not isinstance(timeout_ms, int | float) or not timeout_ms >= 0:  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
        raise ValueError(f"timeout_ms is {timeout_ms!r}; use milliseconds from 0 on, or None to wait without a limit")
    return time.monotonic() + timeout_ms / 1000


def wait_until_ended(broker: "PostgresBroker", waiter: Waiter[WaitAnswer], deadline: float | None) -> None:
    """Wait until all tasks of the waiter have ended, or until the deadline.

    An unknown id is waited for, too: its send may commit later.
    """
    hub = broker.hub(ENDINGS)
    with hub.register(waiter):
        broker.wait(hub, waiter, deadline)


async def wait_until_ended_async(broker: "PostgresBroker", waiter: Waiter[WaitAnswer], deadline: float | None) -> None:
    hub = broker.hub(ENDINGS)
    with hub.register(waiter):
        await broker.wait_async(hub, waiter, deadline)


def get_results(task_ids: list[TaskId]) -> Op[Mapping[TaskId, ReadResult[WaitAnswer]]]:
    """Read how each of these tasks ended, or why it has no result."""
    # Each partition of the range costs planning time. If the clocks differ by more than the allowed hour, the second statement, which
    # reads all partitions, finds the task.
    since, until = _sent_since(task_ids) - MAX_CLOCK_DIFFERENCE, datetime.now(UTC) + MAX_CLOCK_DIFFERENCE
    known = _results_by_id((yield from rows(SQL["get_results"](ids=task_ids, since=since, until=until))))
    if missing := [task_id for task_id in task_ids if task_id not in known]:
        known |= _results_by_id((yield from rows(SQL["get_results_unpruned"](ids=missing))))
    unknown: ReadResult[WaitAnswer] = ReadResult(NotEnded.UNKNOWN)
    return {task_id: known.get(task_id, unknown) for task_id in task_ids}


ENDINGS: WaitSource[WaitAnswer] = WaitSource(Channel.DONE, get_results)


def _sent_since(task_ids: list[TaskId]) -> datetime:
    """Return the time in the oldest version 7 id, or now if there is none: then the statement without a range finds the tasks."""
    oldest = min((task_id for task_id in task_ids if task_id[_VERSION_POSITION] == "7"), default=None)
    if oldest is None or (milliseconds := int(oldest[:8] + oldest[9:13], 16)) > _MAX_MS:
        return datetime.now(UTC)
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _results_by_id(found: list[Row]) -> dict[TaskId, ReadResult[WaitAnswer]]:
    # Reversed, so that the row of `finished` wins if a task is in both tables: it has ended, and its other row is about to be deleted.
    return {row[0]: _read_result(*row) for row in reversed(found)}


def _read_result(
    task_id: TaskId, status: str, result: str | None, error: str | None, expires_s: float | None
) -> ReadResult[WaitAnswer]:
    task_status = TaskStatus(status)
    if task_status.is_final:
        return ReadResult(Ended(task_id, task_status, result, error), is_final=True)
    return ReadResult(NotEnded.LIVE, read_again_s=expires_s)
