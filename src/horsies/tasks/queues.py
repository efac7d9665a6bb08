"""Run-time switches of queues, kept in the database: they hold for every worker, at once, until they are turned back."""

from dataclasses import dataclass
from datetime import datetime

from horsies.db.load import load
from horsies.db.op import Op, ask, rows

COUNTED_AT_MOST = 100_000

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class QueueLine:
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
    yield from ask(SQL["resume_queue"](name=name), SQL["notify_queue_resumed"]())


def get_paused_queues() -> Op[list[str]]:
    found = yield from rows(SQL["get_paused_queues"]())
    return [name for (name,) in found]


def list_queues(counted: int | None = None) -> Op[list[QueueLine]]:
    """Every queue that has a task, a switch or a worker, by name. Counts go no further than `counted`."""
    found = yield from rows(SQL["list_queues"](counted=counted or COUNTED_AT_MOST))
    return [QueueLine(*row) for row in found]
