"""Claim tasks: change rows from PENDING to CLAIMED or RUNNING for one worker; promote tasks whose time has come."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Protocol, TypedDict

from horsies.db.statement import Query, Row, load
from horsies.model.codec import encode_error
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, TaskId

LOWEST_PRIORITY, HIGHEST_PRIORITY = -(2**31), 2**31 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_CLAIM_BYTES = 1 << 26
"""Limit for the payloads of one claim statement together."""
INLINE_BYTES_MIN, INLINE_BYTES_MAX = 2_048, 1 << 18
MAX_LOAD_BYTES = 1 << 25
"""Limit for the large payloads that are read together; a single one may be larger."""
PROMOTE_BATCH = 500

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Lane:
    """One queue and priority, and the watermark from which a claim starts."""

    queue_name: str
    priority: int
    watermark: datetime


@dataclass(slots=True)
class InFlight:
    """Where counts of the tasks in flight start: no task in flight was claimed by an earlier transaction.

    Ended tasks leave dead index entries, as for claims (`worker/watermarks.py`). The number of a transaction is exact where a time is not: what
    a snapshot does not show was claimed by a transaction that was still running, and the snapshot has the oldest of these. It counts in one
    cluster only, and rows may be changed by hand: a claim from the start counts from the start.
    """

    since: str = "0"


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits that also count the tasks of other workers. Without limits, a claim takes no locks and counts nothing."""

    cluster_wide: int | None = None
    queues: Mapping[str, int] = field(default_factory=dict[str, int])
    """As the app declares them."""
    set_at_run_time: Mapping[str, int] = field(default_factory=dict[str, int])
    """As an operator has set them in the database, instead of those of the app, when they were last read. Claims only need to know which queues have
    one: they read the number themselves.
    """
    counted: Sequence[TaskStatus] = (TaskStatus.CLAIMED, TaskStatus.RUNNING)
    in_flight: InFlight = field(default_factory=InFlight, compare=False)
    has_limits: bool = field(init=False)
    counted_queues: list[str] = field(init=False)
    """The queues whose tasks are counted."""

    def __post_init__(self) -> None:
        is_limited = self.cluster_wide is not None or bool(self.queues) or bool(self.set_at_run_time)
        object.__setattr__(self, "has_limits", is_limited)
        object.__setattr__(self, "counted_queues", sorted({*self.queues, *self.set_at_run_time}))

    def cap_of(self, queue: str) -> int | None:
        return self.set_at_run_time.get(queue, self.queues.get(queue))

    def lock_keys(self, queues: Iterable[str]) -> list[str]:
        """Return what to lock before counting: the cluster, then the capped ones of these queues, sorted, so that workers cannot deadlock."""
        cluster = [] if self.cluster_wide is None else ["cluster"]
        return cluster + sorted(f"queue {name}" for name in queues if self.cap_of(name) is not None)


NO_CAPS = Caps()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """How many tasks a worker wants, and in which status: RUNNING if a child is free, CLAIMED for the prefetch buffer."""

    worker: str
    status: TaskStatus
    limit: int
    lease_ms: int
    queue_limit: int | None = None
    """Limit for each queue; None means no separate limit."""
    caps: Caps = NO_CAPS
    excluded: Sequence[TaskId] = ()
    """Rows that the server refuses to update."""
    avoided_names: Sequence[str] = ()
    """Tasks that this worker does not know, and that another worker may know."""
    avoided_signatures: Sequence[int] = ()
    """Signatures, as this worker has them, of tasks whose arguments it may be unable to read."""


class ClaimFrom(Enum):
    WATERMARKS = auto()
    """A lane for each queue and priority, each from its watermark. There is no limit for each queue."""
    QUEUES = auto()
    """A lane for each queue, from its watermark and all later priorities: where the tasks of a queue are counted."""
    START = auto()
    """A lane for each queue, from its start."""


def lanes_from_start(queues: Iterable[str]) -> list[Lane]:
    """Return a lane for each queue that includes all of its tasks."""
    return [Lane(queue, LOWEST_PRIORITY, EPOCH) for queue in queues]


def lock_caps(keys: Sequence[str], schema: str) -> Query:
    return SQL["lock_caps"](keys=list(keys), schema=schema)


def claim_tasks(request: ClaimRequest, lanes: Sequence[Lane], claim_from: ClaimFrom = ClaimFrom.START) -> Query:
    """Claim the first tasks of these lanes."""
    params = {
        "queues": [lane.queue_name for lane in lanes],
        "priorities": [lane.priority for lane in lanes],
        "watermarks": [lane.watermark for lane in lanes],
        "worker": request.worker,
        "status": request.status.value,
        "limit": request.limit,
        "lease_ms": request.lease_ms,
        "cluster_wide_cap": request.caps.cluster_wide,
        "in_flight_from": request.caps.in_flight.since,
        "counted_queues": request.caps.counted_queues,
        "excluded": list(request.excluded),
        "avoided_names": list(request.avoided_names),
        "avoided_signatures": list(request.avoided_signatures),
        # Payloads up to this size come with the claim. All of them together stay within MAX_CLAIM_BYTES.
        "inline_bytes": max(INLINE_BYTES_MIN, min(INLINE_BYTES_MAX, MAX_CLAIM_BYTES // max(1, request.limit))),
    }
    if claim_from is ClaimFrom.WATERMARKS:
        return SQL["claim_from_watermarks"](**params)
    return SQL["claim_from_queues"](
        caps=[request.caps.queues.get(lane.queue_name) for lane in lanes],
        counted=[status.value for status in request.caps.counted],
        queue_limit=min(request.limit, request.queue_limit or request.limit),
        **params,
    )


def get_in_flight_from(caps: Caps) -> Query:
    """Read where the next counts may start, once this transaction is committed."""
    return SQL["get_in_flight_from"](in_flight_from=caps.in_flight.since)


def get_caps_set_at_run_time(lanes: Sequence[Lane]) -> Query:
    """Read which of these queues an operator has capped."""
    return SQL["get_caps_set_at_run_time"](queues=[lane.queue_name for lane in lanes])


def get_queue_heads(lanes: Sequence[Lane]) -> Query:
    """Read the first pending task of each queue, in the form of a notification."""
    return SQL["get_queue_heads"](queues=[lane.queue_name for lane in lanes])


def list_claimable_tasks(request: ClaimRequest, lanes: Sequence[Lane]) -> Query:
    """List the tasks that such a claim would take, without taking them."""
    return SQL["list_claimable_tasks"](
        queues=list(dict.fromkeys(lane.queue_name for lane in lanes)),
        excluded=list(request.excluded),
        avoided_names=list(request.avoided_names),
        avoided_signatures=list(request.avoided_signatures),
        counted_queues=request.caps.counted_queues,
        limit=request.limit,
    )


def try_claim(worker: str, task_id: TaskId) -> list[Query]:
    """Claim one task and roll back. An error shows that the server refuses to update this row."""
    return [SQL["begin_trial"](), SQL["try_claim"](worker=worker, id=task_id), SQL["roll_back_trial"]()]


def fail_unclaimable_task(task_id: TaskId, error: TaskError) -> Query:
    """End a pending task that no worker can claim."""
    return SQL["fail_unclaimable_task"](
        id=task_id, error_code=error.error_code, error=encode_error(error, task_id=task_id)
    )


@dataclass(frozen=True, slots=True)
class Payload:
    """What a task is called with. `args` is None if the batch was full, or if the payload is larger than a task may have."""

    bytes: int
    args: str | None
    inputs: str | None

    @property
    def is_too_large(self) -> bool:
        return self.bytes > MOST_BYTES


def load_payloads(worker: str, claims: Sequence[Claim]) -> Query:
    """Read the payloads that these claims have left out, up to MAX_LOAD_BYTES together."""
    return SQL["load_payloads"](
        worker=worker, budget_bytes=MAX_LOAD_BYTES, max_bytes=MOST_BYTES, **claim_params(claims)
    )


class HeldTask(Protocol):
    """A claim in any form."""

    @property
    def id(self) -> TaskId: ...
    @property
    def claim_no(self) -> int: ...


class ClaimParams(TypedDict):
    """Parameters that identify claims in a statement."""

    ids: list[TaskId]
    claim_nos: list[int]


def claim_params(claims: Iterable[HeldTask]) -> ClaimParams:
    """Return the ids and claim numbers, sorted: `width_bucket` in the statements finds the number of a claim by the order of the ids."""
    ordered = sorted((claim.id, claim.claim_no) for claim in claims)
    return ClaimParams(ids=[task_id for task_id, _ in ordered], claim_nos=[claim_no for _, claim_no in ordered])


def payloads_from_rows(rows: Sequence[Row]) -> dict[TaskId, Payload]:
    return {task_id: Payload(*payload) for task_id, *payload in rows}


def start_tasks(worker: str, claims: Sequence[Claim], caps: Caps = NO_CAPS) -> Query:
    """Change prefetched claims to RUNNING, as far as the caps allow. Returns the ids of those that have changed."""
    positions: Counter[str] = Counter()
    rows: list[tuple[TaskId, int, int | None, int]] = []
    for claim in claims:
        positions[claim.queue_name] += 1
        rows.append((claim.id, claim.claim_no, caps.cap_of(claim.queue_name), positions[claim.queue_name]))
    rows.sort(key=lambda row: row[:2])  # as in `claim_params`
    return SQL["start_tasks"](
        ids=[row[0] for row in rows],
        claim_nos=[row[1] for row in rows],
        caps=[row[2] for row in rows],
        positions=[row[3] for row in rows],
        in_flight_from=caps.in_flight.since,
        worker=worker,
    )


def promote_tasks() -> Query:
    """Make tasks claimable that are due now. Returns their lanes, in the form of notifications. Skips rows that cannot be updated."""
    return SQL["promote_tasks"](limit=PROMOTE_BATCH)


def get_next_due() -> Query:
    """Read in how many seconds the next task is due, or None; and whether a due task was not promoted."""
    return SQL["get_next_due"]()
