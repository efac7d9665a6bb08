"""The pump's books: what must be told to the database, and what is on its way there.

Pure bookkeeping, no I/O: `next_turn` takes from the books all that can travel now, and `put_back` or `settle` closes the turn.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from horsies.model.config import PostgresConfig
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import MAX_LOAD_BYTES, ClaimRequest, Lane, Payload
from horsies.tasks.unknown import KnownTasks, UnfitClaim, UnfitOutcome, unknown_task_claim
from horsies.worker.batch import Batch, BatchResult, ClaimFrom, SearchStep
from horsies.worker.capacity import Capacity, ClaimLimits, PrefetchPolicy
from horsies.worker.child import Child
from horsies.worker.quarantine import (
    Quarantine,
    RefusedBatch,
    Search,
    SearchAnswer,
    SkippedRows,
    failed_ending,
    find_bad_rows,
    split_batch,
    without_extras,
)
from horsies.worker.watermarks import Watermarks

ENDINGS_PER_BATCH = 500
UNFIT_PER_BATCH = 500
AVOIDED_S = 10.0
"""For so long a worker leaves to others what it cannot run. Then it looks again: they may be gone."""
BYTES_PER_BATCH = 1 << 25
LOADS_PER_BATCH = 100

log = logging.getLogger("horsies.worker")
LOAD_FAILURES_MAX = 3


@dataclass(frozen=True, slots=True)
class BufferedClaim:
    """A CLAIMED row in the parent. Its lease is counted from before the claim was sent: we let go before others may take it."""

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
    """Parts of turns that the database refused."""
    endings: deque[Ending] = field(default_factory=deque[Ending])
    interrupted: list[Ending] = field(default_factory=list[Ending])
    known_tasks: KnownTasks = field(default_factory=lambda: KnownTasks({}))
    """The tasks that this worker can run."""
    unfit: list[UnfitClaim] = field(default_factory=list[UnfitClaim])
    """RUNNING or CLAIMED, and cannot be run here."""
    releases: list[Claim] = field(default_factory=list[Claim])
    buffer: deque[BufferedClaim] = field(default_factory=deque[BufferedClaim])
    progress: dict[tuple[TaskId, int], str] = field(default_factory=dict[tuple[TaskId, int], str])
    unsettled: set[str] = field(default_factory=set[str])
    """Roots of workflows in which a turn has left something to do."""
    unread: deque[Claim] = field(default_factory=deque[Claim])
    """RUNNING, with a large payload that is still to be read."""
    in_flight: list[Batch] = field(default_factory=list[Batch])
    search: Search | None = None
    """For a row that cannot be claimed. Nothing is claimed meanwhile."""
    search_step: SearchStep | None = None
    """The next one, if it is not under way."""
    left_out: SkippedRows = field(default_factory=SkippedRows)
    claims_travel_alone: bool = False
    """A turn that claimed was refused: until a claim succeeds, no ending shares its fate."""
    may_have_tasks: bool = True
    """There may be something to claim."""
    promotes: bool = True
    """Something that was put off may be due."""
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
            self.left_out,
            self.known_tasks,
        )

    def should_gather(self) -> bool:
        """Tiny tasks travel together: while others will report in a moment, a turn for one of them alone costs as much as one for
        all. Only while there is more to do: a single task is never kept waiting.
        """
        if not (self.endings and self.may_have_tasks and self.prefetch.tasks_are_short) or self.is_stopping:
            return False
        if self.prefetch.is_framed:
            # The children have enough to do until the next claim, which takes along what has ended by then.
            return not self._capacity.to_run() and len(self.endings) < ENDINGS_PER_BATCH
        return bool(self.in_flight) or any(child.load for child in self.children)

    # -- taking a turn

    def next_batch(self, now: float) -> Batch | None:
        """All that can be done now, or None when there is nothing to do."""
        self._let_go(now)
        if (self.quarantine.waiting or self.search_step or self.unread) and (
            batch := self._special_batch(now)
        ) is not None:
            return self._depart(batch)
        endings = self._endings()
        # What ends a node may make the next one ready, in the very turn that could claim it.
        self.may_have_tasks = self.may_have_tasks or any(ending.root_id is not None for ending in endings)
        starts = self._starts()
        wanted = self._wanted(starts, now)
        told = endings or self.interrupted or self.releases or self.unfit or self.progress or self._ready_roots()
        if self.claims_travel_alone and (told or starts or self._may_promote):
            wanted = []  # in the next turn
        if not (told or starts or wanted or self._may_promote):
            return None
        releases, self.releases = self.releases, []
        return self._depart(self._batch(endings, releases, starts, wanted, now))

    def _endings(self) -> list[Ending]:
        """As many as travel well together: PostgreSQL takes no message of a gigabyte."""
        taken: list[Ending] = []
        waiting: list[Ending] = []
        busy, size = self._busy_roots(), 0
        while self.endings and len(taken) < ENDINGS_PER_BATCH and size < BYTES_PER_BATCH:
            ending = self.endings.popleft()
            if ending.root_id in busy:
                waiting.append(ending)
                continue
            taken.append(ending)
            size += len(ending.result or "") + len(ending.error or "")
        self.endings.extendleft(reversed(waiting))
        return taken

    def _busy_roots(self) -> set[str]:
        """Workflows that a turn is at: another would only wait for its lock, and carry less than one that is sent afterwards. With frames
        the children have other work meanwhile.
        """
        if not self.prefetch.is_framed:
            return set()
        return {
            ending.root_id for batch in self.in_flight for ending in batch.of_workflows if ending.root_id is not None
        }

    def _ready_roots(self) -> set[str]:
        """Workflows whose next step may travel with others."""
        return self.unsettled - self.quarantine.roots if self.unsettled else self.unsettled

    def _special_batch(self, now: float) -> Batch | None:
        """What must not travel with anything else."""
        return self.quarantine.next_batch(now) or self._search_batch() or self._load_batch()

    def _search_batch(self) -> Batch | None:
        step, self.search_step = self.search_step, None
        return None if step is None else replace(self._empty_batch(), search=step)

    def _load_batch(self) -> Batch | None:
        """One at a time, and not while the children have not taken in what was read before: the parent holds few of them."""
        if not self.unread or any(batch.loads for batch in self.in_flight):
            return None
        if sum(child.unsent_bytes for child in self.children) >= MAX_LOAD_BYTES:
            return None
        loads = [self.unread.popleft() for _ in range(min(len(self.unread), LOADS_PER_BATCH))]
        return replace(self._empty_batch(), loads=loads)

    def _empty_batch(self) -> Batch:
        return Batch(self.worker, self.database, self.limits.caps, ())

    def _let_go(self, now: float) -> None:
        """Leases that run out here are given back before another worker has to take them."""
        while self.buffer and (self.is_stopping or self.buffer[0].until <= now):
            self.releases.append(self.buffer.popleft().claim)
        while self.is_stopping and self.unread:
            self.releases.append(self.unread.popleft())

    @property
    def _may_promote(self) -> bool:
        return self.promotes and not self.is_stopping and not self.quarantine.holds_promotion

    def _starts(self) -> list[Claim]:
        if self.is_stopping or not self.buffer:
            return []
        return [self.buffer.popleft().claim for _ in range(min(self._capacity.to_run(), len(self.buffer)))]

    def _wanted(self, starts: Sequence[Claim], now: float) -> list[ClaimRequest]:
        if self.is_stopping or not self.may_have_tasks or self.search is not None:
            return []
        if (self.limits.caps.has_limits or self.claims_travel_alone) and any(batch.wanted for batch in self.in_flight):
            return []  # while something is capped, claims of one worker would only wait for each other's lock
        return self._capacity.wanted(len(starts), now)

    def _batch(
        self, endings: list[Ending], releases: list[Claim], starts: list[Claim], wanted: list[ClaimRequest], now: float
    ) -> Batch:
        claim_from, lanes = self._place(wanted, now) if wanted else (ClaimFrom.START, [])
        progress, self.progress = self.progress, {}
        interrupted, self.interrupted = self.interrupted, []
        unfit = self.unfit[:UNFIT_PER_BATCH]
        del self.unfit[:UNFIT_PER_BATCH]
        promotes, self.promotes = self._may_promote, False
        unsettled, self.unsettled = self._ready_roots(), set()
        return Batch(
            worker=self.worker,
            database=self.database,
            caps=self.limits.caps,
            endings=endings,
            interrupted=interrupted,
            releases=releases,
            unfit=unfit,
            starts=starts,
            progress=[(*claim, text) for claim, text in progress.items()],
            promotes=promotes,
            wanted=wanted,
            claim_from=claim_from,
            lanes=lanes,
            frees_capped=self.limits.caps.has_limits and bool(endings or releases or unfit or interrupted),
            unsettled=sorted(unsettled),
        )

    def _place(self, wanted: Sequence[ClaimRequest], now: float) -> tuple[ClaimFrom, list[Lane]]:
        if self.watermarks.wants_start(now):
            return ClaimFrom.START, self.watermarks.starts()
        if self.limits.caps.has_limits or self.limits.max_claim_batch:
            # By queue, also those without a mark: a claim that met a cap has not seen all that waits.
            return ClaimFrom.QUEUES, self.watermarks.first_lanes()
        return ClaimFrom.WATERMARKS, self.watermarks.lanes(sum(each.limit for each in wanted))

    def _depart(self, batch: Batch) -> Batch:
        self.in_flight.append(batch)
        return batch

    # -- closing a turn

    def put_back(self, batch: Batch) -> None:
        """It failed, or nobody knows: everything it carried is still to be done."""
        self._land(batch)
        if batch.is_alone:
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
            self.progress.setdefault((task_id, claim_no), text)  # unless there is news of it
        self.promotes = self.promotes or batch.promotes
        self.unsettled.update(batch.unsettled)

    def take_apart(self, batch: Batch) -> None:
        """The database refused it, for whatever reason: each part travels alone from now on, and a claim not beside others."""
        self._land(batch)
        self.quarantine.admit(split_batch(batch))
        self.claims_travel_alone = self.claims_travel_alone or bool(batch.wanted)

    def refused_alone(self, batch: Batch, refusal: RefusedBatch, now: float) -> float | None:
        """A single part was refused. How many seconds it rests; None: it is done with."""
        self._land(batch)
        if batch.progress or (batch.loads and self._is_given_up(batch, refusal)):
            self.quarantine.leave(batch)
            words = f"its arguments cannot be read. {refusal.words}"
            self.endings.extend(failed_ending(claim, words) for claim in batch.loads)
            return None
        if batch.unfit and refusal.is_about_values:
            self.quarantine.leave(batch)
            self.endings.extend(each.ending for each in batch.unfit)
            return None
        plainer = without_extras(batch, refusal.words, is_about_values=refusal.is_about_values)
        return self.quarantine.refused(batch, plainer, now)

    def _is_given_up(self, batch: Batch, refusal: RefusedBatch) -> bool:
        """A payload that cannot be read is not tried for ever: its task holds a place meanwhile."""
        return refusal.is_about_values or (
            not refusal.is_about_server and self.quarantine.failures(batch) >= LOAD_FAILURES_MAX
        )

    def begin_search(self, batch: Batch, now: Callable[[], float], *, has_claimed: bool) -> None:
        """A claim was refused that travelled alone."""
        self._land(batch)
        if self.search is not None:
            return  # of another that was under way at the same time
        widest = max(batch.wanted, key=lambda wanted: wanted.limit)
        self.search = find_bad_rows(widest, batch.lanes, self.left_out, now, has_claimed=has_claimed)
        self.search_step = next(self.search)

    def continue_search(self, batch: Batch, answer: SearchAnswer) -> bool | None:
        """A step was answered. At the end of the search: whether somebody was to blame."""
        self._land(batch)
        if self.search is None:
            return None
        try:
            self.search_step = self.search.send(answer)
        except StopIteration as end:
            self.search = None
            return bool(end.value)
        return None

    def apply(self, batch: Batch, outcome: BatchResult, until: float) -> list[Claim]:
        """It was committed. Returns what is now RUNNING and waits for a child."""
        self._land(batch)
        if batch.is_alone:
            self.quarantine.leave(batch)
        if batch.wanted:
            self.claims_travel_alone = False
        self.unsettled.update(outcome.unsettled)
        runnable = [claim for claim in batch.starts if claim.id in outcome.started]
        # Lost, or their queue is full: what is still ours goes back.
        self.releases.extend(claim for claim in batch.starts if claim.id not in outcome.started)
        departed = until - self.limits.lease_ms / 1000
        for each in batch.unfit:
            self._set_aside(each, outcome.unfit_outcomes.get(each.id), departed)
        for wanted, found in zip(batch.wanted, outcome.claimed, strict=True):
            claims = self._runnable(found)
            if wanted.status is TaskStatus.RUNNING:
                runnable.extend(claims)
            else:
                self.buffer.extend(BufferedClaim(claim, until) for claim in self.watermarks.in_order(claims))
        if any(claim.is_unread for claim in runnable):
            self.unread.extend(claim for claim in self.watermarks.in_order(runnable) if claim.is_unread)
            runnable = [claim for claim in runnable if not claim.is_unread]
        return runnable + self._loaded(batch, outcome) if batch.loads else runnable

    def _runnable(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Those of tasks that this worker knows."""
        names = self.known_tasks.signatures
        if all([claim.task_name in names for claim in claims]):  # noqa: C419 - a generator takes longer, and there are few
            return claims
        self.unfit += [unknown_task_claim(claim) for claim in claims if claim.task_name not in names]
        return [claim for claim in claims if claim.task_name in names]

    def _set_aside(self, unfit: UnfitClaim, unfit_outcome: UnfitOutcome | None, now: float) -> None:
        if unfit_outcome is UnfitOutcome.NO_WORKER:
            claim = unfit.claim
            extra = {"task_id": claim.id, "task_name": claim.task_name, "attempt": claim.attempt}
            log.warning("task %s failed: %s", claim.task_name, unfit.error_code, extra=extra)
            self.endings.append(unfit.ending)
        elif unfit_outcome is not None:
            # Also where nobody can run it: more of it may be in the queue, and passing over a row is far cheaper than to set it aside.
            self.known_tasks.avoid(unfit, now + AVOIDED_S)

    def _loaded(self, batch: Batch, outcome: BatchResult) -> list[Claim]:
        """Those whose payload is there now."""
        loaded: list[Claim] = []
        for claim in batch.loads:
            payload = outcome.payloads.get(claim.id)
            if payload is None:
                self.releases.append(claim)  # it was ended, or taken, by somebody else
            elif payload.is_too_large:
                self.endings.append(failed_ending(claim, _too_large(payload)))
            elif payload.args is None:
                self.unread.append(claim)
            else:
                loaded.append(replace(claim, args=payload.args, inputs=payload.inputs))
        return loaded

    def _land(self, batch: Batch) -> None:
        self.in_flight.remove(batch)

    # -- questions

    @property
    def is_empty(self) -> bool:
        """Nothing is held, and nothing is left to be told."""
        idle = not any(child.load for child in self.children)
        return idle and not (
            self.endings
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

    def remembered(self) -> set[tuple[TaskId, int]]:
        """Every claim that this worker knows of, wherever it is."""
        return {(item.id, item.claim_no) for item in self._everything()}

    def _everything(self) -> Iterator[Claim | Ending | UnfitClaim]:
        for child in self.children:
            yield from (claim for _, claim in child.assignments.items())
        yield from self.endings
        yield from self.interrupted
        yield from self.releases
        yield from self.unfit
        yield from (buffered.claim for buffered in self.buffer)
        yield from self.unread
        for batch in (*self.in_flight, *self.quarantine.batches()):
            yield from batch.endings
            yield from batch.interrupted
            yield from batch.releases
            yield from batch.unfit
            yield from batch.starts
            yield from batch.loads


def _too_large(payload: Payload) -> str:
    return (
        f"its arguments and the results that it takes have {payload.bytes:,} bytes, and a worker hands a task at most {MOST_BYTES:,}; keep "
        "the data elsewhere and pass where it is"
    )
