"""Parts of batches that the database refused: sent again one by one, and given up only when they are refused alone.

A batch is one transaction. When the server refuses it, for any reason but contention or a lost connection, it is not known which part was at fault. So
the batch is split: each part is sent alone, without a statement timeout, and the parts that are valid are stored.

An **ending** that is refused alone is tried in simpler forms: without the step of its workflow (which the maintenance leader repairs), without a
retry, and, if the server refuses the values themselves, as an error that says so. Any other cause (a full disk, a missing privilege, a trigger that
raises) may pass, and a result is worth waiting for: it is tried again, with growing pauses that delay nothing else.

A **claim** that is refused alone is not at fault, but some row that it would take may be. The rows are tried one by one, in transactions that are
rolled back. A row that is refused by itself while others are accepted is ended, or skipped by this worker for a time.
"""

import logging
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from horsies.model.codec import encode_error
from horsies.model.config import WorkerResilienceConfig
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import ClaimRequest, Lane
from horsies.worker.batch import Batch, FailUnclaimable, ListClaimable, SearchStep, TryClaim

CANDIDATES = 100
SKIPPED_S = 60.0
SKIPPED_MAX = 1_000

log = logging.getLogger("horsies.worker")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the server refused a batch."""

    message: str
    is_about_values: bool
    """It will never be accepted as it is."""
    is_about_server: bool
    """Nothing would be accepted now: the disk is full, a table is missing."""


@dataclass(slots=True)
class QuarantinedPart:
    """A batch of one part. It waits until `not_before`, on the monotonic clock."""

    batch: Batch
    failures: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Quarantine:
    """Parts of refused batches, which are sent alone."""

    resilience: WorkerResilienceConfig
    waiting: list[QuarantinedPart] = field(default_factory=list[QuarantinedPart])
    in_flight: list[QuarantinedPart] = field(default_factory=list[QuarantinedPart])

    def add(self, batches: Sequence[Batch]) -> None:
        self.waiting.extend(QuarantinedPart(batch) for batch in batches)

    def next_batch(self, now: float) -> Batch | None:
        """Return a part that may be tried now."""
        for part in self.waiting:
            if part.not_before <= now:
                self.waiting.remove(part)
                self.in_flight.append(part)
                return part.batch
        return None

    def remove(self, batch: Batch) -> QuarantinedPart:
        """Remove a part that is in flight."""
        part = next(part for part in self.in_flight if part.batch is batch)
        self.in_flight.remove(part)
        return part

    def put_back(self, batch: Batch) -> None:
        """Try it again: it failed for a reason that is not its own."""
        self.waiting.append(self.remove(batch))

    def retry(self, batch: Batch, simpler: Batch | None, now: float) -> float:
        """Try a refused part in this simpler form at once, or as it is after a pause. Returns the pause, in seconds."""
        part = self.remove(batch)
        if simpler is not None:
            self.waiting.append(QuarantinedPart(simpler))
            return 0.0
        delay_s = self.resilience.delay_ms(part.failures, random.uniform(-1, 1)) / 1000  # noqa: S311 - jitter
        self.waiting.append(QuarantinedPart(batch, part.failures + 1, now + delay_s))
        return delay_s

    def failures(self, batch: Batch) -> int:
        """Return how often this part, which is in flight, was refused alone before."""
        return next(part.failures for part in self.in_flight if part.batch is batch)

    def batches(self) -> Iterator[Batch]:
        for part in (*self.waiting, *self.in_flight):
            yield part.batch

    @property
    def holds_claims(self) -> bool:
        """There is a part that only this worker can store. Other workers also advance workflows and promote due tasks."""
        return any(batch.held for batch in self.batches())

    @property
    def holds_promotion(self) -> bool:
        """Due tasks are promoted alone until that succeeds."""
        return any(batch.promotes for batch in self.batches())

    @property
    def roots(self) -> set[str]:
        """Workflows whose next step is tried alone."""
        return {root for batch in self.batches() for root in batch.unsettled}


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


def simplify(batch: Batch, refusal: Refusal) -> Batch | None:
    """Return what to try for an ending that was refused alone; None if it cannot be made simpler."""
    endings = batch.endings or batch.interrupted
    if not endings:
        return None
    (ending,) = endings
    if ending.root_id is not None:
        simpler = replace(ending, root_id=None)
    elif not refusal.is_about_values:
        return None
    elif ending.may_retry:
        simpler = replace(ending, may_retry=False)
    elif ending.error_code == OperationalErrorCode.WORKER_SERIALIZATION_ERROR:
        return None
    else:
        simpler = failed_ending(ending, serialization_error(refusal.message))
    # An interrupted task that could not be released is ended like any other.
    return replace(batch, endings=[simpler], interrupted=())


def serialization_error(message: str) -> TaskError:
    """Return the error of a task whose values cannot be stored, or read."""
    return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=message)


def failed_ending(held: Claim | Ending, error: TaskError, *, may_retry: bool = False) -> Ending:
    """Return an ending with this error in place of a result."""
    is_cancelled = error.error_code == OutcomeCode.TASK_CANCELLED
    return Ending(
        held.id,
        held.claim_no,
        TaskStatus.CANCELLED if is_cancelled else TaskStatus.FAILED,
        error_code=error.error_code,
        error=encode_error(error, task_id=held.id),
        may_retry=may_retry and not is_cancelled,
        root_id=held.root_id,
    )


SearchAnswer: TypeAlias = Sequence[TaskId] | Refusal
Search: TypeAlias = Generator[SearchStep, SearchAnswer, bool]


@dataclass(slots=True)
class SkippedRows:
    """Rows that this worker does not try to claim for a while, because the server has refused it."""

    _until: dict[TaskId, float] = field(default_factory=dict[TaskId, float])

    def add(self, task_id: TaskId, now: float) -> None:
        while len(self._until) >= SKIPPED_MAX:
            del self._until[min(self._until, key=self._until.__getitem__)]
        self._until[task_id] = now + SKIPPED_S

    def ids(self, now: float) -> list[TaskId]:
        for task_id in [task_id for task_id, until in self._until.items() if until <= now]:
            del self._until[task_id]
        return sorted(self._until)


def find_bad_rows(
    request: ClaimRequest, lanes: Sequence[Lane], skipped: SkippedRows, now: Callable[[], float], *, has_claimed: bool
) -> Search:
    """Try the rows that a refused claim would take one by one. Returns whether any of them was at fault.

    A row is ended only if the server will never accept it and has accepted others, now or a short time ago (`has_claimed`). If it refuses all of
    them, the rows may be valid: they are skipped for a while, so that the next claim reaches those behind them.
    """
    candidates = yield ListClaimable(replace(request, limit=max(request.limit, CANDIDATES)), lanes)
    if isinstance(candidates, Refusal):
        return False
    refused: dict[TaskId, Refusal] = {}
    for task_id in candidates:
        answer = yield TryClaim(task_id)
        if not isinstance(answer, Refusal):
            has_claimed = True
        elif answer.is_about_server:
            return False
        else:
            refused[task_id] = answer
    for task_id, refusal in refused.items():
        is_ended = False
        if refusal.is_about_values and has_claimed:
            answer = yield FailUnclaimable(
                task_id, serialization_error(f"the task cannot be claimed. {refusal.message}")
            )
            is_ended = not isinstance(answer, Refusal)
        if not is_ended:
            skipped.add(task_id, now())
        log.warning(
            "task %s cannot be claimed, %s: %s",
            task_id,
            "ended as FAILED" if is_ended else f"skipped for {SKIPPED_S:g} s",
            refusal.message,
            extra={"task_id": task_id},
        )
    return bool(refused)
