"""Claim: PENDING rows become this worker's, and no other's."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from horsies.db.load import load
from horsies.db.op import Query, Row
from horsies.model.status import TaskStatus
from horsies.model.task import Claim

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Lane:
    """A place to claim from: the rows of one queue and priority from a moment on."""

    queue_name: str
    priority: int
    mark: datetime


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many rows a worker wants, and as what: RUNNING when a child waits for them, CLAIMED when they go into the buffer."""

    worker: str
    status: TaskStatus
    limit: int
    lease_ms: int


def claim_from_marks(wanted: Wanted, lanes: Sequence[Lane]) -> Query:
    return SQL["claim_from_marks"](
        queues=[lane.queue_name for lane in lanes],
        priorities=[lane.priority for lane in lanes],
        marks=[lane.mark for lane in lanes],
        **_params(wanted),
    )


def claim_from_start(wanted: Wanted, queues: Sequence[str]) -> Query:
    return SQL["claim_from_start"](queues=list(queues), **_params(wanted))


def _params(wanted: Wanted) -> dict[str, object]:
    return {
        "worker": wanted.worker,
        "status": wanted.status.value,
        "limit": wanted.limit,
        "lease_ms": wanted.lease_ms,
    }


def as_claims(rows: Sequence[Row]) -> list[Claim]:
    return [Claim(*row) for row in rows]


def start(worker: str, claims: Sequence[Claim]) -> Query:
    """Buffered claims become RUNNING; the ids that did come back."""
    return SQL["start_tasks"](
        ids=[claim.id for claim in claims],
        claim_nos=[claim.claim_no for claim in claims],
        worker=worker,
    )
