"""What must still be stored, released, started or claimed, and what the batches in flight carry.

State only, no I/O: `next_batch` takes all that can be sent now, and `put_back`, `apply` or one of the methods for refused batches ends that batch.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from horsies.model.config import PostgresConfig
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import MAX_LOAD_BYTES, ClaimRequest, Lane
from horsies.tasks.unknown import KnownTasks, UnfitClaim, UnfitOutcome, unknown_task_claim
from horsies.worker.batch import Batch, BatchResult, ClaimFrom, SearchStep
from horsies.worker.capacity import Capacity, ClaimLimits, PrefetchPolicy
from horsies.worker.child import Child
from horsies.worker.quarantine import (
    Quarantine,
    Refusal,
    Search,
    SearchAnswer,
    SkippedRows,
    failed_ending,
    find_bad_rows,
    serialization_error,
    simplify,
    split_batch,
)
from horsies.worker.watermarks import Watermarks

ENDINGS_PER_BATCH = 500
UNFIT_PER_BATCH = 500
BYTES_PER_BATCH = 1 << 25
LOADS_PER_BATCH = 100
LOAD_FAILURES_MAX = 3
AVOIDED_S = 10.0
"""How long a worker leaves to others what it cannot run. Then it claims it again: the others may be gone."""

log = logging.getLogger("horsies.worker")


@dataclass(frozen=True, slots=True)
class BufferedClaim:
    """A CLAIMED row in the parent. Its lease counts from before the claim was sent, so that it is released before others may take it."""

    claim: Claim
    until: float


@dataclass(slots=True)
class PendingWork:
    worker: str
    database: PostgresConfig
    limits: ClaimLimits
    children: Sequence[Child]
    prefetch: PrefetchPolicy
    watermarks: Watermarks
    quarantine: Quarantine
    known_tasks: KnownTasks = field(default_factory=lambda: KnownTasks({}))
    """The tasks that this worker can run."""
    endings: deque[Ending] = field(default_factory=deque[Ending])
    interrupted: list[Ending] = field(default_factory=list[Ending])
    unfit: list[UnfitClaim] = field(default_factory=list[UnfitClaim])
    """RUNNING or CLAIMED, and cannot be run here."""
    releases: list[Claim] = field(default_factory=list[Claim])
    buffer: deque[BufferedClaim] = field(default_factory=deque[BufferedClaim])
    progress: dict[tuple[TaskId, int], str] = field(default_factory=dict[tuple[TaskId, int], str])
    unsettled: set[str] = field(default_factory=set[str])
    """Roots of workflows in which a batch has left something to do."""
    unread: deque[Claim] = field(default_factory=deque[Claim])
    """RUNNING, with a large payload that is not yet read."""
    in_flight: list[Batch] = field(default_factory=list[Batch])
    search: Search | None = None
    """The search for a row that cannot be claimed. Until it ends, nothing is claimed."""
    search_step: SearchStep | None = None
    """Its next step, if that is not in flight."""
    skipped: SkippedRows = field(default_factory=SkippedRows)
    claims_separately: bool = False
    """A batch that claimed was refused: until a claim succeeds, claims have batches of their own."""
    may_have_tasks: bool = True
    """There may be tasks to claim."""
    may_have_due_tasks: bool = True
    """There may be delayed tasks to promote."""
    is_stopping: bool = False
    _capacity: Capacity = field(init=False)

    def __post_init__(self) -> None:
        self._capacity = Capacity(
            self.worker,
            self.limits,
            self.prefetch,
            self.children,
            self.buffer,
            self.unread,
            self.unfit,
            self.in_flight,
            self.skipped,
            self.known_tasks,
        )

    # -- making a batch

    def should_delay_batch(self) -> bool:
        """Return whether to wait for other endings to share the batch: one for a single short task costs as much as one for many.

        Only while there is more to do, so that a single task never waits.
        """
        if not (self.endings and self.may_have_tasks and self.prefetch.tasks_are_short) or self.is_stopping:
            return False
        if self.prefetch.is_adaptive:
            # The children have enough to do until the next claim, and that batch takes what has ended by then.
            return not self._capacity.to_run() and len(self.endings) < ENDINGS_PER_BATCH
        return bool(self.in_flight) or any(child.load for child in self.children)

    def next_batch(self, now: float) -> Batch | None:
        """Return a batch of all that can be sent now; None when there is nothing to do."""
        # Leases that end here are released before another worker has to take the rows.
        while self.buffer and (self.is_stopping or self.buffer[0].until <= now):
            self.releases.append(self.buffer.popleft().claim)
        while self.is_stopping and self.unread:
            self.releases.append(self.unread.popleft())
        batch = self._separate_batch(now) or self._shared_batch(now)
        if batch is not None:
            self.in_flight.append(batch)
        return batch

    def _separate_batch(self, now: float) -> Batch | None:
        """Return what must not share a batch: a quarantined part, a search step, or large payloads to read."""
        if not (self.quarantine.waiting or self.search_step or self.unread):
            return None
        if (batch := self.quarantine.next_batch(now)) is not None:
            return batch
        empty = Batch(self.worker, self.database, self.limits.caps)
        if self.search_step is not None:
            step, self.search_step = self.search_step, None
            return replace(empty, search=step)
        # One at a time, and only when the children have received what was read before: the parent must not hold many large payloads.
        if any(batch.loads for batch in self.in_flight):
            return None
        if sum(child.unsent_bytes for child in self.children) >= MAX_LOAD_BYTES:
            return None
        loads = [self.unread.popleft() for _ in range(min(len(self.unread), LOADS_PER_BATCH))]
        return replace(empty, loads=loads) if loads else None

    def _shared_batch(self, now: float) -> Batch | None:
        endings = self._take_endings()
        # The end of a node may make the next one ready, in the same batch that could claim it.
        self.may_have_tasks = self.may_have_tasks or any(ending.root_id is not None for ending in endings)
        starts: list[Claim] = []
        if self.buffer and not self.is_stopping:
            count = min(self._capacity.to_run(), len(self.buffer))
            starts = [self.buffer.popleft().claim for _ in range(count)]
        requests = self._claim_requests(len(starts), now)
        roots = self.unsettled - self.quarantine.roots if self.unsettled else self.unsettled
        promotes = self.may_have_due_tasks and not self.is_stopping and not self.quarantine.holds_promotion
        freeing = bool(endings or self.interrupted or self.releases or self.unfit)
        has_others = bool(freeing or self.progress or roots or starts or promotes)
        if self.claims_separately and has_others:
            requests = []  # in the next batch
        if not (has_others or requests):
            return None
        claim_from, lanes = self._lanes(requests, now) if requests else (ClaimFrom.START, [])
        batch = Batch(
            worker=self.worker,
            database=self.database,
            caps=self.limits.caps,
            endings=endings,
            interrupted=self.interrupted,
            releases=self.releases,
            unfit=self.unfit[:UNFIT_PER_BATCH],
            starts=starts,
            progress=[(*key, text) for key, text in self.progress.items()],
            promotes=promotes,
            claim_requests=requests,
            claim_from=claim_from,
            lanes=lanes,
            frees_capped=self.limits.caps.has_limits and freeing,
            unsettled=sorted(roots),
        )
        self.interrupted, self.releases, self.progress, self.unsettled = [], [], {}, set()
        del self.unfit[:UNFIT_PER_BATCH]
        self.may_have_due_tasks = False
        return batch

    def _take_endings(self) -> list[Ending]:
        """Take as many as one batch may carry: PostgreSQL accepts no message of a gigabyte."""
        busy_roots: set[str] = set()
        if self.prefetch.is_adaptive:
            # Another batch would only wait for the lock of a workflow that a batch in flight advances. The children have other work.
            busy_roots = {each.root_id for batch in self.in_flight for each in batch.workflow_endings if each.root_id}
        taken: list[Ending] = []
        waiting: list[Ending] = []
        size = 0
        while self.endings and len(taken) < ENDINGS_PER_BATCH and size < BYTES_PER_BATCH:
            ending = self.endings.popleft()
            if ending.root_id in busy_roots:
                waiting.append(ending)
                continue
            taken.append(ending)
            size += len(ending.result or "") + len(ending.error or "")
        self.endings.extendleft(reversed(waiting))
        return taken

    def _claim_requests(self, starting: int, now: float) -> list[ClaimRequest]:
        if self.is_stopping or not self.may_have_tasks or self.search is not None:
            return []
        # With caps, claims of one worker would only wait for each other's lock.
        is_alone = self.limits.caps.has_limits or self.claims_separately
        if is_alone and any(batch.claim_requests for batch in self.in_flight):
            return []
        return self._capacity.claim_requests(starting, now)

    def _lanes(self, requests: Sequence[ClaimRequest], now: float) -> tuple[ClaimFrom, list[Lane]]:
        if self.watermarks.is_rescan_due(now):
            return ClaimFrom.START, self.watermarks.rescan_lanes()
        if self.limits.caps.has_limits or self.limits.max_claim_batch:
            # Also queues without a watermark: a claim that met a cap has not seen all that waits.
            return ClaimFrom.QUEUES, self.watermarks.queue_lanes()
        return ClaimFrom.WATERMARKS, self.watermarks.lanes(sum(request.limit for request in requests))

    # -- ending a batch that failed

    def put_back(self, batch: Batch) -> None:
        """Keep all that it carried: it failed, or its outcome is not known."""
        self.in_flight.remove(batch)
        if batch.is_single_part:
            self.quarantine.put_back(batch)
            return
        self.search_step = self.search_step or batch.search
        self.unread.extendleft(reversed(batch.loads))
        self.endings.extendleft(reversed(batch.endings))
        self.interrupted.extend(batch.interrupted)
        self.releases.extend(batch.releases)
        self.unfit.extend(batch.unfit)
        self.releases.extend(batch.starts)  # whether or not they were started: their user code has not run
        for task_id, claim_no, text in batch.progress:
            self.progress.setdefault((task_id, claim_no), text)  # a later report wins
        self.may_have_due_tasks = self.may_have_due_tasks or batch.promotes
        self.unsettled.update(batch.unsettled)

    def split(self, batch: Batch) -> None:
        """Quarantine the parts of a refused batch."""
        self.in_flight.remove(batch)
        self.quarantine.add(split_batch(batch))
        self.claims_separately = self.claims_separately or bool(batch.claim_requests)

    def on_part_refused(self, batch: Batch, refusal: Refusal, now: float) -> float | None:
        """Return after how many seconds a part that was refused alone is tried again; None if it is not."""
        self.in_flight.remove(batch)
        # A payload that cannot be read is not tried without end: its task occupies a slot.
        gives_up_load = refusal.is_about_values or (
            not refusal.is_about_server and self.quarantine.failures(batch) >= LOAD_FAILURES_MAX
        )
        if batch.progress or (batch.loads and gives_up_load):
            self.quarantine.remove(batch)
            error = serialization_error(f"its arguments cannot be read. {refusal.message}")
            self.endings.extend(failed_ending(claim, error) for claim in batch.loads)
            return None
        if batch.unfit and refusal.is_about_values:
            self.quarantine.remove(batch)
            self.endings.extend(each.ending for each in batch.unfit)
            return None
        return self.quarantine.retry(batch, simplify(batch, refusal), now)

    def begin_search(self, batch: Batch, now: Callable[[], float], *, has_claimed: bool) -> None:
        """Search for the row because of which a claim was refused that had a batch of its own."""
        self.in_flight.remove(batch)
        if self.search is not None:
            return  # begun for another claim that was in flight at the same time
        widest = max(batch.claim_requests, key=lambda request: request.limit)
        self.search = find_bad_rows(widest, batch.lanes, self.skipped, now, has_claimed=has_claimed)
        self.search_step = next(self.search)

    def continue_search(self, batch: Batch, answer: SearchAnswer) -> bool | None:
        """Pass on the answer to a step. At the end of the search, return whether a row was at fault."""
        self.in_flight.remove(batch)
        if self.search is None:
            return None
        try:
            self.search_step = self.search.send(answer)
        except StopIteration as end:
            self.search = None
            return bool(end.value)
        return None

    # -- ending a batch that was committed

    def apply(self, batch: Batch, result: BatchResult, until: float) -> list[Claim]:
        """Return what is RUNNING now and can be assigned to a child. `until` is when the leases of the new claims end."""
        self.in_flight.remove(batch)
        if batch.is_single_part:
            self.quarantine.remove(batch)
        if batch.claim_requests:
            self.claims_separately = False
        self.unsettled.update(result.unsettled)
        runnable = [claim for claim in batch.starts if claim.id in result.started]
        # The lease was lost, or the queue is at its cap: what is still held is released.
        self.releases.extend(claim for claim in batch.starts if claim.id not in result.started)
        sent_at = until - self.limits.lease_ms / 1000
        for each in batch.unfit:
            self._apply_unfit(each, result.unfit_outcomes.get(each.id), sent_at)
        for request, claims in zip(batch.claim_requests, result.claimed, strict=True):
            known = self._known(claims)
            if request.status is TaskStatus.RUNNING:
                runnable.extend(known)
            else:
                self.buffer.extend(BufferedClaim(claim, until) for claim in self.watermarks.in_order(known))
        if any(claim.is_unread for claim in runnable):
            self.unread.extend(claim for claim in self.watermarks.in_order(runnable) if claim.is_unread)
            runnable = [claim for claim in runnable if not claim.is_unread]
        return runnable + self._apply_loads(batch, result) if batch.loads else runnable

    def _known(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Return the claims of tasks that this worker knows; the others are unfit."""
        names = self.known_tasks.signatures
        if all([claim.task_name in names for claim in claims]):  # noqa: C419 - a generator takes longer, and there are few
            return claims
        self.unfit += [unknown_task_claim(claim) for claim in claims if claim.task_name not in names]
        return [claim for claim in claims if claim.task_name in names]

    def _apply_unfit(self, unfit: UnfitClaim, outcome: UnfitOutcome | None, now: float) -> None:
        if outcome is UnfitOutcome.NO_WORKER:
            claim = unfit.claim
            extra = {"task_id": claim.id, "task_name": claim.task_name, "attempt": claim.attempt}
            log.warning("task %s failed: %s", claim.task_name, unfit.error_code, extra=extra)
            self.endings.append(unfit.ending)
        elif outcome is not None:
            # Also where no worker can run it: the queue may have more of it, and to skip a row is far cheaper than to set it aside.
            self.known_tasks.avoid(unfit, now + AVOIDED_S)

    def _apply_loads(self, batch: Batch, result: BatchResult) -> list[Claim]:
        """Return the claims whose payload has been read."""
        loaded: list[Claim] = []
        for claim in batch.loads:
            payload = result.payloads.get(claim.id)
            if payload is None:
                self.releases.append(claim)  # it was ended, or claimed, by another worker
            elif payload.is_too_large:
                error = serialization_error(
                    f"its arguments and the results that it takes have {payload.bytes:,} bytes, and the limit is {MOST_BYTES:,}; "
                    "store the data elsewhere and pass a reference to it"
                )
                self.endings.append(failed_ending(claim, error))
            elif payload.args is None:
                self.unread.append(claim)
            else:
                loaded.append(replace(claim, args=payload.args, inputs=payload.inputs))
        return loaded

    # -- queries

    @property
    def is_empty(self) -> bool:
        """Nothing is held, and nothing is left to store."""
        return not (
            any(child.load for child in self.children)
            or self.endings
            or self.quarantine.holds_claims
            or self.interrupted
            or self.releases
            or self.unfit
            or self.buffer
            or self.unread
            or self.unsettled - self.quarantine.roots
            or self.in_flight
        )

    @property
    def running_count(self) -> int:
        return sum(child.load for child in self.children)

    def unknown_claims(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return those of these claims that this worker does not know of."""
        held = self.held_claims()
        return [claim for claim in claims if (claim.id, claim.claim_no) not in held]

    def held_claims(self) -> set[tuple[TaskId, int]]:
        """Return the id and claim number of every claim that this worker knows of, wherever it is."""
        return {(item.id, item.claim_no) for item in self._held()}

    def _held(self) -> Iterator[Claim | Ending | UnfitClaim]:
        for child in self.children:
            yield from (claim for _, claim in child.assignments.items())
        yield from self.endings
        yield from self.interrupted
        yield from self.releases
        yield from self.unfit
        yield from (buffered.claim for buffered in self.buffer)
        yield from self.unread
        for batch in (*self.in_flight, *self.quarantine.batches()):
            yield from batch.held
