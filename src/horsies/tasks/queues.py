"""Queues: pause, resume and cap them, and count what is in them; cluster-wide counts for `horsies status`.

A pause is stored in the database. It applies to all workers, at once, until the queue is resumed. Every count is limited, so that its cost does not grow
with the number of tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from horsies.db.statement import Op, execute, load, rows
from horsies.model.errors import QueueError
from horsies.model.graph import WorkflowStatus
from horsies.model.validation import number_problems

MAX_COUNTED = 100_000  # waiting tasks of all queues together
MAX_COUNTED_QUICKLY = 1_000  # of each queue
MIN_COUNTED = 20  # of each queue, however many there are
MAX_QUEUES = 10_000  # with waiting tasks
MAX_NOT_DUE = 10_000  # fewer, because their rows are read, not only an index
MAX_PRIORITIES = 100
MAX_NAME_BYTES = 1_000
MAX_CAP = 1_000_000

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """What is in one queue now.

    Of the waiting tasks of each queue, its share of `MAX_COUNTED` is counted: of two queues with waiting tasks 50 000 each. Of all tasks that are not due,
    the first `MAX_NOT_DUE` are counted.
    """

    name: str
    waiting: int = 0
    """Due and not claimed."""
    scheduled: int = 0
    """Not due yet, and not tried yet."""
    retrying: int = 0
    """Not due yet, because they wait for their retry."""
    claimed: int = 0
    running: int = 0
    more_waiting: bool = False
    more_not_due: bool = False
    """There are more scheduled or retrying tasks."""
    oldest_waiting_s: float | None = None
    """How long the first of the waiting tasks has been due."""
    paused_at: datetime | None = None
    workers: int = 0
    """How many registered workers serve it."""
    cap: int | None = None
    """The cap that was set at run time; None: each app has its own."""


def pause_queue(name: str) -> Op[None]:
    """Stop claiming from this queue. Running tasks continue, and sends are accepted."""
    yield from rows(SQL["pause_queue"](name=name))


def resume_queue(name: str) -> Op[None]:
    yield from execute(SQL["resume_queue"](name=name), SQL["notify_queues_changed"]())


def check_queue_name(name: str) -> None:
    """Raise QueueError for a name that no queue can have."""
    if not name or len(name.encode(errors="replace")) > MAX_NAME_BYTES or "\0" in name:
        raise QueueError(f"{name[:100]!r} is not the name of a queue")


def check_cap(name: str, max_concurrency: int | None) -> None:
    """Raise ValueError for a cap that cannot be stored."""
    check_queue_name(name)
    if max_concurrency == 0:
        raise ValueError(
            f"a cap of 0 would be a pause: use pause_queue({name!r}), and resume_queue to go on with the cap that it has"
        )
    if max_concurrency is not None and any(number_problems("max_concurrency", max_concurrency, 1, MAX_CAP)):
        raise ValueError(
            f"max_concurrency is {max_concurrency!r}; choose a whole number from 1 to {MAX_CAP}, or None for the cap of the app"
        )


def set_queue_cap(name: str, max_concurrency: int | None) -> Op[None]:
    """Set the cap of a queue for all workers, instead of the one that the app declares. None: that of the app again."""
    yield from execute(SQL["set_queue_cap"](name=name, max_concurrency=max_concurrency), SQL["notify_queues_changed"]())


def list_queues(max_counted: int | None = None, *, not_due: bool = True) -> Op[list[QueueSummary]]:
    """List all queues that have a task, a stored pause or a worker, by name. Of each, at most `max_counted` waiting tasks are counted.

    Without `not_due`, tasks that are not due are not read.
    """
    counted = max_counted or MAX_COUNTED
    query = SQL["list_queues"](
        counted=counted,
        counted_together=MAX_COUNTED,
        counted_at_least=MIN_COUNTED,
        not_due=min(counted, MAX_NOT_DUE) if not_due else 0,
        priorities=MAX_PRIORITIES,
        queues=MAX_QUEUES,
    )
    return [QueueSummary(*row) for row in (yield from rows(query))]


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How many tasks wait in one queue, counted up to `MAX_COUNTED`. Tasks that are not due yet do not wait."""

    queue_name: str
    waiting: int
    oldest_s: float
    in_flight: int
    is_paused: bool
    unknown: int = 0
    """Tasks that no live worker can run, counted up to `MAX_COUNTED` in all queues together."""


def get_queue_depths(queues: Sequence[str]) -> Op[list[QueueDepth]]:
    """Read less than `list_queues`, and only for these queues, at a lower cost: every worker does this at every scrape."""
    limits = {"counted": MAX_COUNTED, "priorities": MAX_PRIORITIES}
    return [QueueDepth(*row) for row in (yield from rows(SQL["get_queue_depths"](queues=list(queues), **limits)))]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Which database this is, and which version of the schema it has."""

    database: str
    server_version: str
    schema_version: int


def get_server_info() -> Op[ServerInfo]:
    (row,) = yield from rows(SQL["get_server_info"]())
    return ServerInfo(*row)


def count_workflows() -> Op[Mapping[WorkflowStatus, int]]:
    """Count the live workflows that are not part of another one, by status, up to `MAX_COUNTED`."""
    query = SQL["count_workflows"](counted=MAX_COUNTED)
    return {WorkflowStatus(status): count for status, count in (yield from rows(query))}
