"""What a dispatcher knows, and what it decides from that.

`DispatcherState` is plain data, and only `Dispatcher` changes it. The functions here read it and change nothing: which batch to send (`plan_batch`), how many
tasks to claim, which child gets which task (`plan_assignments`), when to look again (`next_wakeup`).

**Prefetching.** RUNNING is durable before user code starts, so a child that runs short tasks waits for a commit whenever it has run out of them. With
`prefetch_buffer="auto"` it is assigned more than it has slots: as many tasks as take 20 ms one by one, by the measured durations, all started by
one commit. If one of them is slow, or all are slower than measured before, those behind are recalled and released.

**Refused batches.** A batch is one transaction. When the server refuses it, for any reason but contention or a lost connection, it is not known which part
was at fault. So the batch is split: each part is sent alone, without a statement timeout, and the parts that are valid are stored.

An *ending* that is refused alone is tried in simpler forms: without the log of its attempt, without the step of its workflow (which the maintenance
leader repairs), without a retry, and, if the server refuses the values themselves, as an error that says so. Any other cause (a full disk, a missing privilege, a trigger that
raises) may pass, and a result is worth waiting for: it is tried again, with growing pauses that delay nothing else.

A *claim* that is refused alone is not at fault, but some row that it would take may be. The rows are tried one by one, in transactions that are
rolled back. A row that is refused by itself while others are accepted is ended, or skipped by this worker for a time.
"""

import heapq
import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

from horsies.model.attempt_log import KeptLines
from horsies.model.config import PostgresConfig
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import MAX_LOAD_BYTES, Caps, ClaimFrom, ClaimRequest, Lane
from horsies.tasks.unknown import KnownTasks, UnfitClaim
from horsies.worker.batch import (
    Batch,
    FailUnclaimable,
    ListClaimable,
    SearchStep,
    TryClaim,
    failed_ending,
    serialization_error,
)
from horsies.worker.child import SLOW_AFTER_S, Child
from horsies.worker.watermarks import Watermarks

PREFETCH_US = 20_000
"""How much work may wait in a child."""
PREFETCH_MAX = 1_024
REFILL_PART = 4
"""A child whose slots are all busy is assigned more when a quarter of its limit is free. Earlier costs more commits; later, it may run out of work."""
BATCH_DELAY_S, PREFETCH_BATCH_DELAY_S = 0.001, 0.005
"""How long endings of short tasks may wait for others to share their batch."""
SHORT_TASK_US = 1_000
AVERAGED_US = PREFETCH_US
"""The mean is taken over this amount of work, not over a number of tasks. Otherwise one task that the machine delayed would outweigh a hundred short ones."""
ENDINGS_PER_BATCH = 500
UNFIT_PER_BATCH = 500
BYTES_PER_BATCH = 1 << 25
LOADS_PER_BATCH = 100
CANDIDATES = 100
SWEEP_AT_LEAST = 1_000


# -- the state


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """What this worker may claim. 0 sets no limit."""

    lease_ms: int
    caps: Caps
    max_claim_batch: int = 0
    max_claim_per_worker: int = 0


@dataclass(slots=True)
class PrefetchPolicy:
    """How much children may hold, by the app's `prefetch_buffer` and the measured durations of tasks."""

    prefetch_buffer: int | Literal["auto"]
    processes: int
    concurrency: int = 1
    is_adaptive: bool = field(init=False)
    """Tasks may wait in a child, as many as their durations allow. With a number they wait in the parent, as CLAIMED rows."""
    has_buffer: bool = field(init=False)
    """Rows may wait as CLAIMED in the parent."""
    child_limit: int = field(init=False)
    """How many tasks one child may hold."""
    child_limit_max: int = field(init=False)
    """How many a child may be assigned that were claimed when its limit was higher: if they are too many, they are recalled."""
    worker_limit: int = field(init=False)
    """How many rows the worker may hold, RUNNING and CLAIMED together."""
    tasks_are_short: bool = False
    """Tasks take less time than the commit between two of them."""
    _worked_us: float = PREFETCH_US  # until measured, nothing waits in a child
    _tasks: float = 1.0

    def __post_init__(self) -> None:
        self.is_adaptive = self.prefetch_buffer == "auto"
        buffer = 0 if self.prefetch_buffer == "auto" else self.prefetch_buffer
        self.has_buffer = buffer > 0
        self.child_limit = self.concurrency
        self.child_limit_max = self.concurrency - 1 + PREFETCH_MAX if self.is_adaptive else self.concurrency
        self.worker_limit = self.processes * self.child_limit + buffer

    def observe(self, duration_us: int) -> None:
        decay = AVERAGED_US / (AVERAGED_US + duration_us)
        worked_us = self._worked_us = self._worked_us * decay + duration_us
        tasks = self._tasks = self._tasks * decay + 1.0
        self.tasks_are_short = worked_us < SHORT_TASK_US * tasks
        if self.is_adaptive:
            # Also with many slots, the tasks count as if they ran one by one: those that wait for nothing use one CPU.
            ahead = int(PREFETCH_US * tasks / max(worked_us, 1.0))
            self.child_limit = self.concurrency - 1 + max(1, min(PREFETCH_MAX, ahead))
            self.worker_limit = self.processes * self.child_limit

    @property
    def described_limit(self) -> str:
        """The limit of the worker, for the log."""
        return f"auto (at most {self.processes * self.child_limit_max})" if self.is_adaptive else str(self.worker_limit)


class BufferedClaim(NamedTuple):
    """A CLAIMED row in the parent. Its lease counts from before the claim was sent, so that it is released before others may take it."""

    claim: Claim
    until: float


class Sent(NamedTuple):
    """When a batch was sent, and how many notifications and hints had arrived by then. Its lanes do not include later ones."""

    at: float
    notifications: int
    hints: int


class StopStage(Enum):
    REQUEST = auto()
    """The task has timed out: request it to stop."""
    KILL = auto()
    """It was requested to stop, and its grace period is over."""
    CHECK_LOOP = auto()
    """It was abandoned, and the event loop on which it ran must have run since then."""


@dataclass(frozen=True, slots=True)
class Deadline:
    child: Child
    assignment_no: int
    stage: StopStage
    loop_answers: int = 0
    """How often the event loop had answered when the task was abandoned."""

    @property
    def is_pending(self) -> bool:
        """There may still be something to do at this deadline."""
        if self.stage is StopStage.CHECK_LOOP:
            return self.child.loop_answers == self.loop_answers and bool(self.child.load)
        return self.assignment_no in self.child.assignments


@dataclass(slots=True)
class Deadlines:
    """A heap by time, on the monotonic clock.

    Deadlines of ended tasks are harmless, so they are not removed one by one, but swept when there are many: an hour of short tasks with
    a `timeout_ms` of an hour would fill a gigabyte.
    """

    heap: list[tuple[float, int, Deadline]] = field(default_factory=list[tuple[float, int, Deadline]])
    _count: int = 0
    _sweep_at: int = SWEEP_AT_LEAST

    def add(self, at: float, deadline: Deadline) -> None:
        if len(self.heap) >= self._sweep_at:
            self.heap = [item for item in self.heap if item[2].is_pending]
            heapq.heapify(self.heap)
            self._sweep_at = max(SWEEP_AT_LEAST, 2 * len(self.heap))
        self._count += 1  # deadlines cannot be compared
        heapq.heappush(self.heap, (at, self._count, deadline))

    def due(self, now: float) -> Iterator[Deadline]:
        while self.heap and self.heap[0][0] <= now:
            yield heapq.heappop(self.heap)[2]


class Refusal(NamedTuple):
    """Why the server refused a batch."""

    message: str
    is_about_values: bool
    """It will never be accepted as it is."""
    is_about_server: bool
    """Nothing would be accepted now: the disk is full, a table is missing."""


class BadRow(NamedTuple):
    """A row that cannot be claimed. One that could not be ended is skipped for a while."""

    task_id: TaskId
    refusal: Refusal
    is_ended: bool


SearchAnswer: TypeAlias = Sequence[TaskId] | Refusal
Search: TypeAlias = Generator[SearchStep, SearchAnswer, list[BadRow]]
ClaimKey: TypeAlias = tuple[TaskId, int]


@dataclass(slots=True)
class DispatcherState:
    """Each claim that the worker holds is in exactly one place: in a child, in one of the collections here, or in a batch that is in flight or quarantined.

    All times are on the monotonic clock, in seconds.
    """

    worker: str
    database: PostgresConfig
    limits: ClaimLimits
    children: Sequence[Child]
    """The pool adds and removes them."""
    prefetch: PrefetchPolicy
    watermarks: Watermarks
    known_tasks: KnownTasks = field(default_factory=lambda: KnownTasks({}))
    """The tasks that this worker can run."""

    # -- what must be stored, released, started or read
    endings: deque[Ending] = field(default_factory=deque[Ending])
    interrupted: list[Ending] = field(default_factory=list[Ending])
    unfit: list[UnfitClaim] = field(default_factory=list[UnfitClaim])
    """RUNNING or CLAIMED, and cannot be run here."""
    releases: list[Claim] = field(default_factory=list[Claim])
    buffer: deque[BufferedClaim] = field(default_factory=deque[BufferedClaim])
    unread: deque[Claim] = field(default_factory=deque[Claim])
    """RUNNING, with a large payload that is not yet read."""
    progress: dict[ClaimKey, str] = field(default_factory=dict[ClaimKey, str])
    logs: dict[ClaimKey, KeptLines] = field(default_factory=dict[ClaimKey, KeptLines])
    """What running tasks have logged so far, if they keep logs."""
    unsettled: set[str] = field(default_factory=set[str])
    """Roots of workflows in which a batch has left something to do."""
    in_flight: dict[Batch, Sent] = field(default_factory=dict[Batch, Sent])
    is_stopping: bool = False

    # -- what there may be to claim
    may_have_tasks: bool = True
    may_have_due_tasks: bool = True
    """There may be delayed tasks to promote."""
    notifications: int = 0
    """How many notifications have arrived that announce tasks."""
    due_at: float = math.inf
    """When to promote delayed tasks."""
    promotion_retry_s: float = 0.0
    """The pause before due tasks that were not promoted are tried again."""
    notified_due_at: float = math.inf
    """When a notification causes the next promotion."""
    notified_promotion_at: float = 0.0
    """When a notification last caused one."""

    may_have_new_caps: bool = True
    """An operator may have set or removed caps of queues. They are read with the next claim from the start."""

    # -- refused batches
    quarantine: list[Batch] = field(default_factory=list[Batch])
    """Single parts that wait to be sent alone."""
    search: Search | None = None
    """The search for a row that cannot be claimed. Until it ends, nothing is claimed."""
    search_step: SearchStep | None = None
    """Its next step, if that is not in flight."""
    skipped: dict[TaskId, float] = field(default_factory=dict[TaskId, float])
    """Rows that are not claimed until then, because the server has refused it."""
    claims_separately: bool = False
    """A batch that claimed was refused: until a claim succeeds, claims have batches of their own."""

    # -- stopping tasks
    deadlines: Deadlines = field(default_factory=Deadlines)
    stops_requested: set[ClaimKey] = field(default_factory=set[ClaimKey])
    stops_by_shutdown: set[ClaimKey] = field(default_factory=set[ClaimKey])
    """Those that were interrupted because the worker must stop."""
    is_interrupting: bool = False
    has_interrupted: bool = False

    # -- time
    poll_at: float = 0.0
    delay_until: float = 0.0
    """Until then, endings wait for others to share their batch; 0 if they do not wait."""
    blocked_until: float = 0.0
    """No batch can be sent before: the database is unavailable, or (infinity) each connection carries a batch."""


# -- queries


def single_parts(state: DispatcherState) -> list[Batch]:
    """Return the quarantined parts, in flight or not."""
    return [*state.quarantine, *[batch for batch in state.in_flight if batch.is_single_part]]


def held_claims(state: DispatcherState) -> list[Claim | Ending | UnfitClaim]:
    """Return every claim that this worker knows of, wherever it is."""
    return [
        *(claim for child in state.children for _, claim in child.assignments.items()),
        *state.endings,
        *state.interrupted,
        *state.releases,
        *state.unfit,
        *(buffered.claim for buffered in state.buffer),
        *state.unread,
        *(held for batch in (*state.quarantine, *state.in_flight) for held in batch.held),
    ]


def is_drained(state: DispatcherState) -> bool:
    """Return whether nothing is held, and nothing is left to store that only this worker can store."""
    if state.in_flight or state.endings or any(child.load for child in state.children):
        return False
    if state.interrupted or state.releases or state.unfit or state.buffer or state.unread:
        return False
    # Other workers also advance workflows and promote due tasks.
    is_stored = not any(part.held for part in state.quarantine)
    return is_stored and not state.unsettled.difference(*[part.unsettled for part in state.quarantine])


def child_capacity(state: DispatcherState) -> int:
    """Return how many more tasks the children can take. Claims that are in flight may be for them."""
    prefetch, capacity = state.prefetch, 0
    for child in state.children:
        load = child.load
        free = prefetch.child_limit - load
        # A child that has no free slot and is nearly full counts as full.
        if free > 0 and (load < prefetch.concurrency or free * REFILL_PART >= prefetch.child_limit):
            capacity += min(free, child.budget_left)
    return capacity


def is_full(state: DispatcherState) -> bool:
    """Return whether no child can be assigned one more task."""
    limit = 0 if state.prefetch.has_buffer else state.limits.max_claim_per_worker
    if state.is_stopping or (limit and sum([child.load for child in state.children]) >= limit):
        return True
    return not child_capacity(state)


def surplus_lane(state: DispatcherState) -> Lane | None:
    """Return, for a worker that is full, the first lane in which there may be more tasks than it can take."""
    if not state.may_have_tasks or state.is_stopping or any([batch.claim_requests for batch in state.in_flight]):  # noqa: C419 - a generator takes longer
        return None
    return next(iter(state.watermarks.lanes(1)), None) if is_full(state) else None


# -- the next batch


def should_delay_batch(state: DispatcherState) -> bool:
    """Return whether to wait for other endings to share the batch: one for a single short task costs as much as one for many.

    Only while there is more to do, so that a single task never waits.
    """
    if not (state.endings and state.may_have_tasks and state.prefetch.tasks_are_short) or state.is_stopping:
        return False
    if state.prefetch.is_adaptive:
        # The children have enough to do until the next claim, and that batch takes what has ended by then.
        return len(state.endings) < ENDINGS_PER_BATCH and not _free_to_run(state)
    return bool(state.in_flight) or any(child.load for child in state.children)


def plan_batch(state: DispatcherState, now: float) -> Batch | None:  # noqa: C901 - one branch for each kind of part
    """Return a batch of all that can be sent now; None when there is nothing to do."""
    is_special = state.quarantine or state.search_step is not None or state.unread
    if is_special and (separate := _plan_separate_batch(state, now)) is not None:
        return separate
    limits = state.limits
    endings = _plan_endings(state) if state.endings else []
    starts: list[Claim] = []
    if state.buffer and not state.is_stopping:
        starts = [buffered.claim for buffered in islice(state.buffer, _free_to_run(state))]
    unsettled, promotes = state.unsettled, state.may_have_due_tasks and not state.is_stopping
    if unsettled or promotes:  # what is quarantined is sent alone until that succeeds
        parts = single_parts(state)
        unsettled = unsettled.difference(*[part.unsettled for part in parts])
        promotes = promotes and not any(part.promotes for part in parts)
    has_caps = limits.caps.has_limits
    freeing = bool(endings or state.interrupted or state.releases or state.unfit)
    has_others = bool(freeing or state.progress or unsettled or starts or promotes)
    # The end of a node may make the next one ready, in the same batch that could claim it.
    may_claim = state.may_have_tasks or any([ending.root_id is not None for ending in endings])  # noqa: C419 - a generator takes longer
    may_claim = may_claim and not (state.is_stopping or state.search or (state.claims_separately and has_others))
    if may_claim and (has_caps or state.claims_separately):
        # With caps, claims of one worker would only wait for each other's lock.
        may_claim = not any(batch.claim_requests for batch in state.in_flight)
    requests = _plan_claim_requests(state, len(starts), len(endings), now) if may_claim else []
    if not (has_others or requests):
        return None
    claim_from, lanes, watermarks = ClaimFrom.START, list[Lane](), state.watermarks
    if requests:
        if (watermarks.is_rescan_wanted or not watermarks.lane_count) and now >= watermarks.rescan_not_before:
            lanes = watermarks.start_lanes
        elif has_caps or limits.max_claim_batch:
            # Also queues without a watermark: a claim that met a cap has not seen all that waits.
            claim_from, lanes = ClaimFrom.QUEUES, watermarks.queue_lanes()
        else:
            claim_from, lanes = ClaimFrom.WATERMARKS, watermarks.lanes(sum([each.limit for each in requests]))
    return Batch(
        worker=state.worker,
        database=state.database,
        caps=limits.caps,
        endings=endings,
        interrupted=list(state.interrupted),
        releases=list(state.releases),
        unfit=state.unfit[:UNFIT_PER_BATCH],
        starts=starts,
        progress=[(*key, text) for key, text in state.progress.items()],
        promotes=promotes,
        claim_requests=requests,
        claim_from=claim_from,
        lanes=lanes,
        reads_caps=bool(requests) and claim_from is ClaimFrom.START and state.may_have_new_caps,
        frees_capped=has_caps and freeing,
        unsettled=sorted(unsettled),
    )


def _plan_separate_batch(state: DispatcherState, now: float) -> Batch | None:
    """Return a quarantined part, a step of a search or large payloads to read: each has a batch of its own."""
    for part in state.quarantine:
        if part.not_before <= now:
            return part
    if state.search_step is not None:
        return Batch(state.worker, state.database, state.limits.caps, search=state.search_step)
    # One at a time, and only when the children have received what was read before: the parent must not hold many large payloads.
    if (
        state.unread
        and not any(batch.loads for batch in state.in_flight)
        and sum(child.unsent_bytes for child in state.children) < MAX_LOAD_BYTES
    ):
        loads = list(islice(state.unread, LOADS_PER_BATCH))
        return Batch(state.worker, state.database, state.limits.caps, loads=loads)
    return None


def _plan_endings(state: DispatcherState) -> list[Ending]:
    """Return as many as one batch may carry: PostgreSQL accepts no message of a gigabyte."""
    busy_roots: set[str] = set()
    if state.prefetch.is_adaptive:
        # Another batch would only wait for the lock of a workflow that a batch in flight advances. The children have other work.
        advanced = [ending.root_id for batch in state.in_flight for ending in (*batch.endings, *batch.interrupted)]
        busy_roots = {root_id for root_id in advanced if root_id is not None}
    endings: list[Ending] = []
    size = 0
    for ending in state.endings:
        if ending.root_id in busy_roots:
            continue
        endings.append(ending)
        size += len(ending.result or "") + len(ending.error or "") + (len(ending.log.records) if ending.log else 0)
        if len(endings) >= ENDINGS_PER_BATCH or size >= BYTES_PER_BATCH:
            break
    return endings


# -- how much to claim


def _free_to_run(state: DispatcherState) -> int:
    """Return how many more tasks the children can take now, besides what batches in flight may bring."""
    free = child_capacity(state) - len(state.unread)
    for batch in state.in_flight:
        free -= len(batch.starts) + len(batch.loads)
        for request in batch.claim_requests:
            free -= request.limit if request.status is TaskStatus.RUNNING else 0
    return max(0, free)


def _plan_claim_requests(state: DispatcherState, starting: int, ending: int, now: float) -> list[ClaimRequest]:
    """Return what to claim, some to run at once and some for the buffer, if the batch starts this many from the buffer and ends this many."""
    limits, prefetch, known = state.limits, state.prefetch, state.known_tasks
    held = len(state.buffer) + len(state.unread) + len(state.unfit) + sum([child.load for child in state.children])
    buffered = len(state.buffer) - starting
    # Rows whose end is not yet stored are held: those that this batch leaves to a later one, and those that were refused.
    leaving = len(state.endings) - ending
    leaving += sum([len(part.held) for part in state.quarantine])
    for batch in state.in_flight:
        held += len(batch.starts) + len(batch.loads)
        buffered += len(batch.starts)
        # Rows that end or are released by a batch in flight are held until it is committed.
        leaving += len(batch.endings) + len(batch.interrupted) + len(batch.releases) + len(batch.unfit)
        for request in batch.claim_requests:
            held += request.limit
            buffered += request.limit if request.status is TaskStatus.CLAIMED else 0
    free = prefetch.worker_limit - held
    if limit := limits.max_claim_per_worker:
        # With a buffer the limit is about hoarding, so running tasks do not count.
        free = min(free, limit - buffered if prefetch.has_buffer else limit - held - leaving)
    if free <= 0:
        return []
    to_run = max(0, min(_free_to_run(state) - starting, free))
    to_buffer = free - to_run if prefetch.has_buffer else 0
    queue_limit = limits.max_claim_batch
    wanted = [(TaskStatus.RUNNING, to_run, queue_limit or None)] if to_run else []
    if to_buffer > 0 and (not queue_limit or queue_limit > to_run):  # both together keep to the limit of a queue
        wanted.append((TaskStatus.CLAIMED, to_buffer, queue_limit - to_run if queue_limit else None))
    return [
        ClaimRequest(
            worker=state.worker,
            status=status,
            limit=limit,
            lease_ms=limits.lease_ms,
            queue_limit=of_queue,
            caps=limits.caps,
            excluded=sorted([task_id for task_id, until in state.skipped.items() if until > now]),
            avoided_names=[name for name, until in known.avoided_names.items() if until > now],
            avoided_signatures=[signature for signature, until in known.avoided_signatures.items() if until > now],
        )
        for status, limit, of_queue in wanted
    ]


# -- which child gets what


def plan_assignments(state: DispatcherState, claims: Sequence[Claim]) -> tuple[dict[Child, list[Claim]], list[Claim]]:
    """Give RUNNING claims to the children in order of service, each to the one with the least load; also return what fits nowhere."""
    shares: dict[Child, list[Claim]] = {}
    free: list[tuple[int, int, int, Child]] = []  # load, place, the load that it may have
    for place, child in enumerate(() if state.is_stopping else state.children):
        load = child.load
        most = min(state.prefetch.child_limit_max, load + child.budget_left)
        if load < most:
            free.append((load, place, most, child))
    heapq.heapify(free)
    rest: list[Claim] = []
    for claim in state.watermarks.in_order(claims) if len(claims) > 1 else claims:
        if not free:
            rest.append(claim)
            continue
        load, place, most, child = free[0]
        shares.setdefault(child, []).append(claim)
        if load + 1 < most:
            heapq.heapreplace(free, (load + 1, place, most, child))
        else:
            heapq.heappop(free)
    return shares, rest


# -- when to look again


def next_wakeup(state: DispatcherState, now: float) -> float:  # noqa: C901 - one branch for each reason
    """Return the first time at which there may be something to do even if nothing happens until then."""
    at = min(state.poll_at, state.due_at)
    if state.blocked_until > now:
        at = min(at, state.blocked_until)  # a batch that completes earlier sends the next one itself
    else:
        # A delay that is over and led to no batch waits for one that is in flight. A timer for it would fire without end.
        if state.delay_until > now:
            at = min(at, state.delay_until)
        if state.buffer:
            at = min(at, state.buffer[0].until)
        for part in state.quarantine:
            if part.not_before > now:
                at = min(at, part.not_before)
    if state.watermarks.is_rescan_wanted and not state.may_have_tasks:
        at = min(at, max(state.watermarks.rescan_not_before, now + 0.001))
    if state.deadlines.heap:
        at = min(at, state.deadlines.heap[0][0])
    if state.prefetch.is_adaptive:
        for child in state.children:
            if child.assignments.has_waiting and not child.is_recalled:
                return min(at, now + SLOW_AFTER_S / 2)
    return at


# -- refused batches


def split_batch(batch: Batch) -> list[Batch]:
    """Return a batch for each part, except its claims: those are planned again. Starts become releases, because their user code has not begun."""
    empty = Batch(batch.worker, batch.database, batch.caps, is_single_part=True)
    freeing = replace(empty, frees_capped=batch.caps.has_limits)
    return [
        *(replace(freeing, endings=[ending]) for ending in batch.endings),
        *(replace(freeing, interrupted=[ending]) for ending in batch.interrupted),
        *(replace(freeing, releases=[claim]) for claim in (*batch.releases, *batch.starts)),
        *(replace(freeing, unfit=[each]) for each in batch.unfit),
        *(replace(empty, progress=[report]) for report in batch.progress),
        *(replace(empty, unsettled=[root]) for root in batch.unsettled),
        *(replace(empty, loads=[claim]) for claim in batch.loads),
        *([replace(empty, promotes=True)] if batch.promotes else []),
    ]


def simplify(part: Batch, refusal: Refusal) -> Batch | None:
    """Return what to try for an ending that was refused alone: first without its log. None if it cannot be made simpler."""
    endings = part.endings or part.interrupted
    if not endings:
        return None
    (ending,) = endings
    if ending.log is not None:
        bare = [ending._replace(log=None)]
        return replace(part, endings=bare, failures=0) if part.endings else replace(part, interrupted=bare, failures=0)
    if ending.root_id is not None:
        simpler = ending._replace(root_id=None)
    elif not refusal.is_about_values:
        return None
    elif ending.may_retry:
        simpler = ending._replace(may_retry=False)
    elif ending.error_code == OperationalErrorCode.WORKER_SERIALIZATION_ERROR:
        return None
    else:
        error = serialization_error(refusal.message)
        simpler = failed_ending(ending, error, child_pid=ending.child_pid)
    # An interrupted task that could not be released is ended like any other.
    return replace(part, endings=[simpler], interrupted=(), failures=0)


def find_bad_rows(request: ClaimRequest, lanes: Sequence[Lane], *, has_claimed: bool) -> Search:
    """Try the rows that a refused claim would take one by one, and return those at fault.

    A row is ended only if the server will never accept it and has accepted others, now or a short time ago (`has_claimed`). If it refuses all of
    them, the rows may be valid: they are skipped for a while, so that the next claim reaches those behind them.
    """
    candidates = yield ListClaimable(replace(request, limit=max(request.limit, CANDIDATES)), lanes)
    if isinstance(candidates, Refusal):
        return []
    refused: dict[TaskId, Refusal] = {}
    for task_id in candidates:
        answer = yield TryClaim(task_id)
        if not isinstance(answer, Refusal):
            has_claimed = True
        elif answer.is_about_server:
            return []
        else:
            refused[task_id] = answer
    bad: list[BadRow] = []
    for task_id, refusal in refused.items():
        is_ended = False
        if refusal.is_about_values and has_claimed:
            error = serialization_error(f"the task cannot be claimed. {refusal.message}")
            is_ended = not isinstance((yield FailUnclaimable(task_id, error)), Refusal)
        bad.append(BadRow(task_id, refusal, is_ended))
    return bad
