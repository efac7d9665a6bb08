"""Claim: PENDING rows become this worker's, and no other's."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from horsies.db.load import load
from horsies.db.op import Query, Row
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, TaskId

SQL = load(__file__)

LOWEST_PRIORITY = -(2**31)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Lane:
    """A place to claim from: one queue and priority, from a moment on."""

    queue_name: str
    priority: int
    mark: datetime


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits that count other workers' tasks too. They need locks; without any, no lock is taken and nothing counted."""

    cluster_wide: int | None = None
    queues: Mapping[str, int] = field(default_factory=dict[str, int])
    counted: Sequence[TaskStatus] = (TaskStatus.CLAIMED, TaskStatus.RUNNING)

    @property
    def is_any(self) -> bool:
        return self.cluster_wide is not None or bool(self.queues)

    def keys(self, queues: Iterable[str]) -> list[str]:
        """What to lock before counting: the cluster, then the capped queues of this pass, sorted."""
        cluster = [] if self.cluster_wide is None else ["cluster"]
        return cluster + sorted(f"queue {name}" for name in queues if name in self.queues)


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many rows a worker wants, and as what: RUNNING when a child waits for them, CLAIMED when they go into the buffer."""

    worker: str
    status: TaskStatus
    limit: int
    lease_ms: int
    queue_limit: int | None = None
    """At most so many from one queue; None sets no limit of its own."""
    caps: Caps = NO_CAPS


def from_start(queues: Iterable[str]) -> list[Lane]:
    """Lanes that begin where their queues do."""
    return [Lane(queue, LOWEST_PRIORITY, EPOCH) for queue in queues]


def lock_caps(keys: Sequence[str], schema: str) -> Query:
    return SQL["lock_caps"](keys=list(keys), schema=schema)


def claim_from_marks(wanted: Wanted, lanes: Sequence[Lane]) -> Query:
    """Where nothing is counted per queue: a lane for each queue and priority."""
    return SQL["claim_from_marks"](**_params(wanted, lanes))


def claim_from_queues(wanted: Wanted, lanes: Sequence[Lane]) -> Query:
    """A lane for each queue: from its mark on, the lower priorities included."""
    return SQL["claim_from_queues"](
        caps=[wanted.caps.queues.get(lane.queue_name) for lane in lanes],
        counted=[status.value for status in wanted.caps.counted],
        queue_limit=min(wanted.limit, wanted.queue_limit or wanted.limit),
        **_params(wanted, lanes),
    )


def survey_queues(lanes: Sequence[Lane]) -> Query:
    """What waits in these queues, as notifications tell it; of each queue only the first."""
    return SQL["survey_queues"](queues=[lane.queue_name for lane in lanes])


def _params(wanted: Wanted, lanes: Sequence[Lane]) -> dict[str, object]:
    return {
        "queues": [lane.queue_name for lane in lanes],
        "priorities": [lane.priority for lane in lanes],
        "marks": [lane.mark for lane in lanes],
        "worker": wanted.worker,
        "status": wanted.status.value,
        "limit": wanted.limit,
        "lease_ms": wanted.lease_ms,
        "cluster_wide_cap": wanted.caps.cluster_wide,
    }


def as_claims(rows: Sequence[Row]) -> list[Claim]:
    return [Claim(*row) for row in rows]


def start(worker: str, claims: Sequence[Claim], caps: Caps = NO_CAPS) -> Query:
    """Buffered claims become RUNNING; the ids that did come back."""
    counted: Counter[str] = Counter()
    rows: list[tuple[TaskId, int, int | None, int]] = []
    for claim in claims:
        counted[claim.queue_name] += 1
        rows.append((claim.id, claim.claim_no, caps.queues.get(claim.queue_name), counted[claim.queue_name]))
    rows.sort(key=lambda row: row[:2])  # the statement finds its way by the order of the ids
    return SQL["start_tasks"](
        ids=[row[0] for row in rows],
        claim_nos=[row[1] for row in rows],
        caps=[row[2] for row in rows],
        positions=[row[3] for row in rows],
        worker=worker,
    )
