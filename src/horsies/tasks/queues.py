"""Run-time switches of queues, kept in the database: they hold for every worker, at once, until they are turned back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from horsies.db.errors import StatementTimeout
from horsies.db.statement import Op, execute, load, rows
from horsies.model.graph import WorkflowStatus
from horsies.model.status import TaskStatus

MAX_COUNTED = 100_000

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """What is in one queue now. What waits, and what is delayed in all queues together, is counted only so far; there may be more then."""

    name: str
    waiting: int = 0
    """Due, and not claimed."""
    delayed: int = 0
    """Not due yet."""
    claimed: int = 0
    running: int = 0
    more_waiting: bool = False
    more_delayed: bool = False
    oldest_waiting_s: float | None = None
    """For how long the first of those that are due has been."""
    paused_at: datetime | None = None
    workers: int = 0
    """How many are registered that serve it."""


def pause_queue(name: str) -> Op[None]:
    """Nothing more is claimed from this queue; what runs goes on, and sends are accepted."""
    yield from rows(SQL["pause_queue"](name=name))


def resume_queue(name: str) -> Op[None]:
    yield from execute(SQL["resume_queue"](name=name), SQL["notify_queue_resumed"]())


def get_paused_queues() -> Op[list[str]]:
    found = yield from rows(SQL["get_paused_queues"]())
    return [name for (name,) in found]


def list_queues(counted: int | None = None) -> Op[list[QueueSummary]]:
    """Every queue that has a task, a switch or a worker, by name. Counts go no further than `counted`."""
    found = yield from rows(SQL["list_queues"](counted=counted or MAX_COUNTED))
    return [QueueSummary(*row) for row in found]


# --------
# Depths: how much waits in each queue, and for how long, at a cost that does not grow with it.
#
# Less than `queues.list_queues` tells, of the app's queues only, and cheaper: every worker is asked for it at every scrape.

PRIORITIES_AT_MOST = 100


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """One queue. `waiting` is counted up to `COUNTED_AT_MOST`; what is not due yet does not wait."""

    queue_name: str
    waiting: int
    oldest_s: float
    in_flight: int
    is_paused: bool
    unknown: int = 0
    """Tasks that no living worker can run, in all queues together counted up to `COUNTED_AT_MOST`."""


def get_queue_depths(queues: Sequence[str]) -> Op[list[QueueDepth]]:
    found = yield from rows(
        SQL["get_queue_depths"](queues=list(queues), counted=MAX_COUNTED, priorities_at_most=PRIORITIES_AT_MOST)
    )
    return [QueueDepth(*row) for row in found]


# --------
# Overview: how the whole house fares, in numbers that stay cheap to read however much is there.

COUNT_TIMEOUT_MS = 2_000


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Which database this is, and which schema is in it."""

    database: str
    server_version: str
    schema_version: int


def get_server_info() -> Op[ServerInfo]:
    found = yield from rows(SQL["get_server_info"]())
    return ServerInfo(*found[0])


def count_finished(minutes: int) -> Op[Mapping[TaskStatus, int] | None]:
    """How many tasks ended how in the last minutes. None: so many that counting them was given up."""
    try:
        _, _, found, _ = yield from execute(
            SQL["begin_count"](),
            SQL["set_count_timeout"](statement_timeout=f"{COUNT_TIMEOUT_MS}ms"),
            SQL["count_finished"](minutes=minutes),
            SQL["commit_count"](),
        )
    except StatementTimeout:
        return None
    return {TaskStatus(status): count for status, count in found}


def count_workflows() -> Op[Mapping[WorkflowStatus, int]]:
    """Of those that have not ended, and that no other one contains; up to 100 000."""
    found = yield from rows(SQL["count_workflows"](counted=MAX_COUNTED))
    return {WorkflowStatus(status): count for status, count in found}
