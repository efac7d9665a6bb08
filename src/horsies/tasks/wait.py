"""Wait: sleep until tasks have ended, and read how. Who sleeps and who reads is the desk's business (`db/waiter.py`)."""

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
    from horsies.db.broker import PostgresBroker  # brings psycopg, which a process that only runs tasks can do without

CLOCKS_DIFFER = timedelta(hours=1)

SQL = load(__file__)
_LAST_MS = int(datetime(9000, 1, 1, tzinfo=UTC).timestamp() * 1000)
_VERSION_AT = 14  # in an id as text; version 7 carries a time, and sorts by it


class NotEnded(Enum):
    """Why there is no result: expected answers, not errors."""

    LIVE = auto()
    UNKNOWN = auto()


WaitAnswer: TypeAlias = Ended | NotEnded


def deadline_from_timeout(timeout_ms: float | None) -> float | None:
    """On the monotonic clock; None waits for ever."""
    if timeout_ms is None:
        return None
    if not isinstance(timeout_ms, int | float) or not timeout_ms >= 0:  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
        raise ValueError(f"timeout_ms is {timeout_ms!r}; give milliseconds from 0 on, or None to wait for ever")
    return time.monotonic() + timeout_ms / 1000


def wait_until_ended(broker: "PostgresBroker", waiter: Waiter[WaitAnswer], deadline: float | None) -> None:
    """Returns when all of the ticket's tasks have ended, or at the deadline.

    An unknown id is waited for like any other: its send may commit later.
    """
    hub = broker.hub(ENDINGS)
    with hub.register(waiter):
        broker.wait(hub, waiter, deadline)


async def wait_until_ended_async(broker: "PostgresBroker", waiter: Waiter[WaitAnswer], deadline: float | None) -> None:
    hub = broker.hub(ENDINGS)
    with hub.register(waiter):
        await broker.wait_async(hub, waiter, deadline)


def get_results(task_ids: list[TaskId]) -> Op[Mapping[TaskId, ReadResult[WaitAnswer]]]:
    """How each of these ended, or why that cannot be told."""
    # Every day that is looked into is planned for. Clocks may differ by an hour; beyond that the second look, which is not pruned,
    # finds it.
    since, until = _made_at(task_ids) - CLOCKS_DIFFER, datetime.now(UTC) + CLOCKS_DIFFER
    known = _by_id((yield from rows(SQL["get_results"](ids=task_ids, since=since, until=until))))
    if missing := [task_id for task_id in task_ids if task_id not in known]:
        known |= _by_id((yield from rows(SQL["get_results_unpruned"](ids=missing))))
    unknown: ReadResult[WaitAnswer] = ReadResult(NotEnded.UNKNOWN)
    return {task_id: known.get(task_id, unknown) for task_id in task_ids}


ENDINGS: WaitSource[WaitAnswer] = WaitSource(Channel.DONE, get_results)


def _by_id(found: list[Row]) -> dict[TaskId, ReadResult[WaitAnswer]]:
    return {row[0]: _judged(*row) for row in reversed(found)}  # what is in both tables has ended: a copy is about to go


def _judged(
    task_id: TaskId, status: str, result: str | None, error: str | None, expires_s: float | None
) -> ReadResult[WaitAnswer]:
    known = TaskStatus(status)
    if known.is_final:
        return ReadResult(Ended(task_id, known, result, error), is_final=True)
    return ReadResult(NotEnded.LIVE, read_again_s=expires_s)


def _made_at(task_ids: list[TaskId]) -> datetime:
    """The time in the oldest version 7 id; without one, now: the look-up without pruning finds the others then."""
    oldest = min((task_id for task_id in task_ids if task_id[_VERSION_AT] == "7"), default=None)
    if oldest is None or (milliseconds := int(oldest[:8] + oldest[9:13], 16)) > _LAST_MS:
        return datetime.now(UTC)
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
