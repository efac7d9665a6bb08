"""Claim: PENDING rows become this worker's, and no other's."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from horsies.db.statement import Query, Row, load
from horsies.model.codec import encode_error
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, TaskId

SQL = load(__file__)

LOWEST_PRIORITY, HIGHEST_PRIORITY = -(2**31), 2**31 - 1
MAX_CLAIM_BYTES = 1 << 26
"""Payloads that one claim may bring, all of them together."""
INLINE_BYTES_MIN, INLINE_BYTES_MAX = 2_048, 1 << 18
MAX_LOAD_BYTES = 1 << 25
"""Large payloads that are read at once; one alone may be larger."""
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
    def has_limits(self) -> bool:
        return self.cluster_wide is not None or bool(self.queues)

    def keys(self, queues: Iterable[str]) -> list[str]:
        """What to lock before counting: the cluster, then the capped queues of this pass, sorted."""
        cluster = [] if self.cluster_wide is None else ["cluster"]
        return cluster + sorted(f"queue {name}" for name in queues if name in self.queues)


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """How many rows a worker wants, and as what: RUNNING when a child waits for them, CLAIMED when they go into the buffer."""

    worker: str
    status: TaskStatus
    limit: int
    lease_ms: int
    queue_limit: int | None = None
    """At most so many from one queue; None sets no limit of its own."""
    caps: Caps = NO_CAPS
    excluded: Sequence[TaskId] = ()
    """Rows that the server refuses to have claimed."""
    avoided_names: Sequence[str] = ()
    """Tasks that this worker does not know, and that another may."""
    avoided_signatures: Sequence[int] = ()
    """Of tasks whose arguments it may be unable to read: its own signatures."""

    @property
    def inline_bytes(self) -> int:
        """Payloads up to this size come with the claim, so that all of them together stay within CLAIM_BYTES."""
        return max(INLINE_BYTES_MIN, min(INLINE_BYTES_MAX, MAX_CLAIM_BYTES // max(1, self.limit)))


def lanes_from_start(queues: Iterable[str]) -> list[Lane]:
    """Lanes that begin where their queues do."""
    return [Lane(queue, LOWEST_PRIORITY, EPOCH) for queue in queues]


def lock_caps(keys: Sequence[str], schema: str) -> Query:
    return SQL["lock_caps"](keys=list(keys), schema=schema)


def claim_from_watermarks(wanted: ClaimRequest, lanes: Sequence[Lane]) -> Query:
    """Where nothing is counted per queue: a lane for each queue and priority."""
    return SQL["claim_from_watermarks"](**_params(wanted, lanes))


def claim_from_queues(wanted: ClaimRequest, lanes: Sequence[Lane]) -> Query:
    """A lane for each queue: from its mark on, the lower priorities included."""
    return SQL["claim_from_queues"](
        caps=[wanted.caps.queues.get(lane.queue_name) for lane in lanes],
        counted=[status.value for status in wanted.caps.counted],
        queue_limit=min(wanted.limit, wanted.queue_limit or wanted.limit),
        **_params(wanted, lanes),
    )


def get_queue_heads(lanes: Sequence[Lane]) -> Query:
    """What waits in these queues, as notifications tell it; of each queue only the first."""
    return SQL["get_queue_heads"](queues=[lane.queue_name for lane in lanes])


def _params(wanted: ClaimRequest, lanes: Sequence[Lane]) -> dict[str, object]:
    return {
        "queues": [lane.queue_name for lane in lanes],
        "priorities": [lane.priority for lane in lanes],
        "watermarks": [lane.mark for lane in lanes],
        "worker": wanted.worker,
        "status": wanted.status.value,
        "limit": wanted.limit,
        "lease_ms": wanted.lease_ms,
        "cluster_wide_cap": wanted.caps.cluster_wide,
        "excluded": list(wanted.excluded),
        "avoided_names": list(wanted.avoided_names),
        "avoided_signatures": list(wanted.avoided_signatures),
        "inline_bytes": wanted.inline_bytes,
    }


def claims_from_rows(rows: Sequence[Row]) -> list[Claim]:
    return [Claim(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Payload:
    """What a task is called with. `args` is None if there was no room for it this time, or if it is larger than a task may be."""

    bytes: int
    args: str | None
    inputs: str | None

    @property
    def is_too_large(self) -> bool:
        return self.bytes > MOST_BYTES


def load_payloads(worker: str, claims: Sequence[Claim]) -> Query:
    """Read what these claims have left out, as much of it as may travel together."""
    ordered = sorted((claim.id, claim.claim_no) for claim in claims)
    return SQL["load_payloads"](
        worker=worker,
        ids=[task_id for task_id, _ in ordered],
        claim_nos=[claim_no for _, claim_no in ordered],
        budget_bytes=MAX_LOAD_BYTES,
        max_bytes=MOST_BYTES,
    )


def payloads_from_rows(rows: Sequence[Row]) -> dict[TaskId, Payload]:
    return {task_id: Payload(*payload) for task_id, *payload in rows}


def list_claimable_tasks(wanted: ClaimRequest, lanes: Sequence[Lane]) -> Query:
    """Which rows such a claim would take, without taking them."""
    return SQL["list_claimable_tasks"](
        queues=list(dict.fromkeys(lane.queue_name for lane in lanes)),
        excluded=list(wanted.excluded),
        avoided_names=list(wanted.avoided_names),
        avoided_signatures=list(wanted.avoided_signatures),
        limit=wanted.limit,
    )


def try_claim(worker: str, task_id: TaskId) -> list[Query]:
    """Whether the server would let this row be claimed: an error says that it would not. Nothing is changed."""
    return [SQL["begin_trial"](), SQL["try_claim"](worker=worker, id=task_id), SQL["roll_back_trial"]()]


def fail_unclaimable_task(task_id: TaskId, error: TaskError) -> Query:
    """End a task that waits and that no worker can claim."""
    return SQL["fail_unclaimable_task"](
        id=task_id, error_code=error.error_code, error=encode_error(error, task_id=task_id)
    )


def start_tasks(worker: str, claims: Sequence[Claim], caps: Caps = NO_CAPS) -> Query:
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


# --------
# Promote: tasks that were put off become claimable when they are due.

BATCH = 500


def promote_tasks() -> Query:
    """The lanes that got something, as they are notified. A row that cannot be changed stays as it is, and keeps no other."""
    return SQL["promote_tasks"](limit=BATCH)


def get_next_due() -> Query:
    """In how many seconds the next one is due, or None; and whether one is due that was not promoted."""
    return SQL["get_next_due"]()
