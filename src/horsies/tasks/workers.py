"""Workers as those who operate them see them: who is registered, how it fares, and whether it answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from horsies.db.load import load
from horsies.db.op import Op, ask, rows

SQL = load(__file__)

_LONGEST = 32  # hexadecimal digits of an id


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One registered incarnation. Memory is that of its newest snapshot; None before the first."""

    id: str
    hostname: str
    pid: int
    processes: int
    concurrency: int
    queues: Sequence[str]
    library_version: str
    started_at: datetime
    heartbeat_age_s: float
    """By the database's clock."""
    tasks_claimed: int
    tasks_running: int
    memory_usage_mb: float | None
    children_memory_mb: float | None
    app: str | None
    """The name of the app that it serves; None if its library is too old to tell."""


def list_workers() -> Op[list[WorkerLine]]:
    """Oldest first."""
    found = yield from rows(SQL["list_workers"]())
    return [WorkerLine(*row) for row in found]


def find_workers(prefix: str) -> Op[list[str]]:
    """The ids that begin like this, of workers that are registered, or that have left snapshots of their health behind."""
    digits = prefix.replace("-", "")
    found = yield from rows(
        SQL["find_workers"](lowest=digits.ljust(_LONGEST, "0"), highest=digits.ljust(_LONGEST, "f"))
    )
    return [worker for (worker,) in found]


def ping(worker_ids: Sequence[str]) -> Op[Mapping[str, datetime]]:
    """Ask these workers for a heartbeat now. When they had the last one, of those that are registered."""
    found, _ = yield from ask(
        SQL["get_heartbeats"](ids=list(worker_ids)), SQL["request_heartbeat"](ids=list(worker_ids))
    )
    return dict(found)


def get_heartbeats(worker_ids: Sequence[str]) -> Op[Mapping[str, datetime]]:
    found = yield from rows(SQL["get_heartbeats"](ids=list(worker_ids)))
    return dict(found)
