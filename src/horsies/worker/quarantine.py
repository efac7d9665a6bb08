"""What the database refused: found, sent again by itself, and given up only when it is refused alone.

A turn is one transaction. When the server refuses it, for any reason but contention or a lost connection, nobody knows which part was at
fault. So the turn is taken apart: each of its parts travels alone, without a time limit, and the parts that are in order are stored.

An **ending** that is refused alone is tried in ever plainer forms: without the step of its workflow (which is repaired by the leader), without a retry,
and, if the server refuses the values themselves, as an error that says so. Anything else (a full disk, a missing privilege, a trigger that
raises) may pass, and a result is worth waiting for: it is tried again, with growing pauses that hold up nothing else.

A **claim** that is refused alone is not to blame, but some row that it would take may be. The rows are tried one by one, in transactions that are
rolled back. A row that is refused by itself while others are accepted is ended, or left out of the claims of this worker for a time.
"""

import logging
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from horsies.model.codec import encode_error
from horsies.model.config import WorkerResilienceConfig
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import ClaimRequest, Lane
from horsies.worker.batch import Batch, FailUnclaimable, ListClaimable, SearchStep, TryClaim

CANDIDATES = 100
LEFT_OUT_S = 60.0
LEFT_OUT_MAX = 1_000

log = logging.getLogger("horsies.worker")


@dataclass(slots=True)
class QuarantinedPart:
    """A turn of one part. It waits until `not_before`, on the monotonic clock."""

    batch: Batch
    failures: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class Quarantine:
    """Parts of refused turns, which travel alone."""

    resilience: WorkerResilienceConfig
    waiting: list[QuarantinedPart] = field(default_factory=list[QuarantinedPart])
    under_way: list[QuarantinedPart] = field(default_factory=list[QuarantinedPart])

    @property
    def holds_claims(self) -> bool:
        """There is something in it that only this worker can bring to an end. The steps of workflows, and what is due, others see to as well."""
        return any(
            batch.endings or batch.interrupted or batch.releases or batch.unfit or batch.loads
            for batch in self.batches()
        )

    def admit(self, batches: Sequence[Batch]) -> None:
        self.waiting.extend(QuarantinedPart(batch) for batch in batches)

    @property
    def holds_promotion(self) -> bool:
        """What is due is looked for alone until it can be."""
        return any(batch.promotes for batch in self.batches())

    @property
    def roots(self) -> set[str]:
        """Workflows whose next step is tried alone."""
        return {root for batch in self.batches() for root in batch.unsettled}

    def next_batch(self, now: float) -> Batch | None:
        """One that may be tried now."""
        for suspect in self.waiting:
            if suspect.not_before <= now:
                self.waiting.remove(suspect)
                self.under_way.append(suspect)
                return suspect.batch
        return None

    def failures(self, batch: Batch) -> int:
        """How often this one, which is under way, was refused alone before."""
        return next(suspect.failures for suspect in self.under_way if suspect.batch is batch)

    def leave(self, batch: Batch) -> None:
        """It was committed."""
        self._take(batch)

    def put_back(self, batch: Batch) -> None:
        """It has to be tried again, and nothing is known against it."""
        self.waiting.append(self._take(batch))

    def refused(self, batch: Batch, plainer: Batch | None, now: float) -> float:
        """It was refused alone: try it in this plainer form at once, or as it is after a pause. The pause, in seconds."""
        suspect = self._take(batch)
        if plainer is not None:
            self.waiting.append(QuarantinedPart(plainer))
            return 0.0
        delay_s = self.resilience.delay_ms(suspect.failures, random.uniform(-1, 1)) / 1000  # noqa: S311 - jitter
        self.waiting.append(QuarantinedPart(batch, suspect.failures + 1, now + delay_s))
        return delay_s

    def batches(self) -> Iterator[Batch]:
        """All of them, waiting or under way."""
        for suspect in (*self.waiting, *self.under_way):
            yield suspect.batch

    def _take(self, batch: Batch) -> QuarantinedPart:
        suspect = next(suspect for suspect in self.under_way if suspect.batch is batch)
        self.under_way.remove(suspect)
        return suspect


def split_batch(batch: Batch) -> list[Batch]:
    """A turn for each part, but for what it claims: that is planned again. What was to start goes back, because its user code has not begun."""
    empty = Batch(batch.worker, batch.database, batch.caps, (), is_alone=True, frees_capped=False)
    frees = batch.caps.has_limits
    return [
        *(replace(empty, endings=[ending], frees_capped=frees) for ending in batch.endings),
        *(replace(empty, interrupted=[ending], frees_capped=frees) for ending in batch.interrupted),
        *(replace(empty, releases=[claim], frees_capped=frees) for claim in (*batch.releases, *batch.starts)),
        *(replace(empty, unfit=[each], frees_capped=frees) for each in batch.unfit),
        *(replace(empty, progress=[report]) for report in batch.progress),
        *(replace(empty, unsettled=[root]) for root in batch.unsettled),
        *(replace(empty, loads=[claim]) for claim in batch.loads),
        *([replace(empty, promotes=True)] if batch.promotes else []),
    ]


def without_extras(batch: Batch, words: str, *, is_about_values: bool) -> Batch | None:
    """What to try for an ending that was refused alone, or None if there is nothing left to leave out.

    `is_about_values`: the server will never store these values, so an error takes their place in the end.
    """
    endings = batch.endings or batch.interrupted
    if not endings:
        return None
    (ending,) = endings
    if ending.root_id is not None:
        return _with(batch, replace(ending, root_id=None))
    if not is_about_values:
        return None
    if ending.may_retry:
        return _with(batch, replace(ending, may_retry=False))
    if ending.error_code == OperationalErrorCode.WORKER_SERIALIZATION_ERROR:
        return None
    return _with(batch, failed_ending(ending, words))


def _with(batch: Batch, ending: Ending) -> Batch:
    """An interrupted task that could not be released is ended like any other."""
    return replace(batch, endings=[ending], interrupted=())


def failed_ending(held: Claim | Ending, words: str) -> Ending:
    """An error in place of what cannot be stored, or read."""
    error = _error(words)
    return Ending(
        held.id,
        held.claim_no,
        TaskStatus.FAILED,
        error_code=error.error_code,
        error=encode_error(error, task_id=held.id),
        root_id=held.root_id,
    )


def _error(words: str) -> TaskError:
    return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=words)


@dataclass(frozen=True, slots=True)
class RefusedBatch:
    """Why the server refused something."""

    words: str
    is_about_values: bool
    """It will never be accepted as it is."""
    is_about_server: bool
    """Nothing would be accepted now: the disk is full, a table is missing."""


SearchAnswer: TypeAlias = Sequence[TaskId] | RefusedBatch
Search: TypeAlias = Generator[SearchStep, SearchAnswer, bool]


@dataclass(slots=True)
class SkippedRows:
    """Rows that this worker does not try to claim for a while, because the server has refused it."""

    _until: dict[TaskId, float] = field(default_factory=dict[TaskId, float])

    def add(self, task_id: TaskId, now: float) -> None:
        while len(self._until) >= LEFT_OUT_MAX:
            del self._until[min(self._until, key=self._until.__getitem__)]
        self._until[task_id] = now + LEFT_OUT_S

    def ids(self, now: float) -> list[TaskId]:
        for task_id in [task_id for task_id, until in self._until.items() if until <= now]:
            del self._until[task_id]
        return sorted(self._until)


def find_bad_rows(
    wanted: ClaimRequest, lanes: Sequence[Lane], left_out: SkippedRows, now: Callable[[], float], *, has_claimed: bool
) -> Search:
    """Try one by one what a refused claim would take. False: nobody in particular is to blame.

    A row is ended only if the server will never accept it and has accepted others, just now or a moment ago (`has_claimed`). If it refuses all of
    them, the rows may be innocent: they are left out for a while, in which the claim goes on to those behind.
    """
    candidates = yield ListClaimable(replace(wanted, limit=max(wanted.limit, CANDIDATES)), lanes)
    if isinstance(candidates, RefusedBatch):
        return False
    refused: dict[TaskId, RefusedBatch] = {}
    for task_id in candidates:
        answer = yield TryClaim(task_id)
        if not isinstance(answer, RefusedBatch):
            has_claimed = True
        elif answer.is_about_server:
            return False
        else:
            refused[task_id] = answer
    for task_id, refusal in refused.items():
        is_ended = False
        if refusal.is_about_values and has_claimed:
            answer = yield FailUnclaimable(task_id, _error(f"the task cannot be claimed. {refusal.words}"))
            is_ended = not isinstance(answer, RefusedBatch)
        if not is_ended:
            left_out.add(task_id, now())
        log.warning(
            "task %s cannot be claimed, it %s: %s",
            task_id,
            "is ended as FAILED" if is_ended else f"is left out for {LEFT_OUT_S:g} s",
            refusal.words,
            extra={"task_id": task_id},
        )
    return bool(refused)
