"""Tasks that a worker cannot run: it does not know them, or cannot read their arguments. Another release may.

A worker registers the tasks that it knows, each with a signature: a number that differs when the parameters do. What it has claimed and cannot run goes back
uncounted. If a living worker may be able to run it, it stays in its queue, and this worker leaves it alone for a while. If none is, it waits outside
the claim index, where it costs the others nothing. A worker that registers brings back what it can run, and so does the keeper, should the two have missed
each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TypeVar

from horsies.db.statement import Op, Query, load, rows
from horsies.model.codec import encode_error
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.payload_errors import MAX_NAME
from horsies.model.result import TaskError
from horsies.model.status import Misfit, TaskStatus
from horsies.model.task import Claim, Ending, TaskId

AHEAD = 5_000
"""Rows that are looked at behind one that nobody knows."""
OFFERED_AT_ONCE = 5_000
SWEPT_AT_ONCE, RESTS = 10_000, 60
LOOKED_AT = 20_000
"""Rows of one name, to see in what they differ."""
FIRST_ID = "00000000-0000-0000-0000-000000000000"
MAX_COUNTED = 100_000
NAMES_AT_MOST = 1_000
AVOIDED_AT_MOST = 500

SQL = load(__file__)
KnownTaskKey = TypeVar("KnownTaskKey")


@dataclass(frozen=True, slots=True)
class UnfitClaim:
    """A claim that cannot be run here, and the error it ends with if it cannot be run anywhere."""

    claim: Claim
    misfit: Misfit
    signature: int | None
    error_code: str
    error: str
    """JSON."""

    @property
    def id(self) -> TaskId:
        return self.claim.id

    @property
    def claim_no(self) -> int:
        return self.claim.claim_no

    @property
    def may_wait(self) -> bool:
        """Another release may be able to run it, though none of its workers lives. No task has a longer name than that, and no index takes any name."""
        return self.misfit is not Misfit.VALUES and len(self.claim.task_name) <= MAX_NAME

    @property
    def ending(self) -> Ending:
        """How it ends if nobody can run it."""
        return Ending(
            self.id,
            self.claim_no,
            TaskStatus.FAILED,
            error_code=self.error_code,
            error=self.error,
            may_retry=self.claim.retries_left,
            root_id=self.claim.root_id,
        )


def unknown_task_claim(claim: Claim) -> UnfitClaim:
    """A task that this worker does not know."""
    code = OperationalErrorCode.WORKER_RESOLUTION_ERROR
    error = TaskError(error_code=code, message=f"no worker has a task named {claim.task_name!r}")
    return UnfitClaim(claim, Misfit.UNKNOWN, None, code, encode_error(error, task_id=claim.id))


class UnfitOutcome(Enum):
    """What became of a claim that was set aside."""

    OFFERED = "offered"
    UNKNOWN = "unknown"
    NOBODY = "no_worker"


@dataclass(frozen=True, slots=True)
class UnknownTasks:
    """Tasks of one name that wait for a worker that can run them. `count` goes no further than 100 000."""

    task_name: str
    is_refused: bool
    """Workers know the task, and could not read the arguments."""
    count: int
    since: datetime


@dataclass(slots=True)
class KnownTasks:
    """The tasks that this worker knows, by name, with their signatures; and what it leaves to others for a while."""

    signatures: dict[str, int]
    _names: dict[str, float] = field(default_factory=dict[str, float])
    _signatures: dict[int, float] = field(default_factory=dict[int, float])

    def avoid(self, unfit: UnfitClaim, until: float) -> None:
        """Do not claim such a task again until then: another worker may be able to run it."""
        if unfit.signature is None:
            _put(self._names, unfit.claim.task_name, until)
        else:
            _put(self._signatures, unfit.signature, until)

    def forget(self, task_name: str) -> None:
        """A child does not know it, so it was not loaded by the children, or its code has been replaced meanwhile."""
        self.signatures.pop(task_name, None)

    def avoided_names(self, now: float) -> list[str]:
        return _current(self._names, now) if self._names else []

    def avoided_signatures(self, now: float) -> list[int]:
        return _current(self._signatures, now) if self._signatures else []


def _put(avoided: dict[KnownTaskKey, float], key: KnownTaskKey, until: float) -> None:
    avoided.pop(key, None)
    while len(avoided) >= AVOIDED_AT_MOST:
        del avoided[next(iter(avoided))]
    avoided[key] = until


def _current(avoided: dict[KnownTaskKey, float], now: float) -> list[KnownTaskKey]:
    for key in [key for key, until in avoided.items() if until <= now]:
        del avoided[key]
    return list(avoided)


def set_aside_claims(worker: str, unfit: Sequence[UnfitClaim]) -> Query:
    """Give back what this worker cannot run. Answers with a `Fate` for each that was still its own."""
    return SQL["set_aside_claims"](
        worker=worker,
        ids=[each.id for each in unfit],
        claim_nos=[each.claim_no for each in unfit],
        signatures=[each.signature for each in unfit],
        refusals=[None if each.signature is None else each.error for each in unfit],
        may_wait=[each.may_wait for each in unfit],
    )


def set_aside_following_tasks(unfit: Sequence[UnfitClaim]) -> Query:
    """Set aside what comes behind these, if it is more of the same that nobody knows."""
    oldest: dict[tuple[str, int], datetime] = {}
    for each in unfit:
        claim = each.claim
        lane = claim.queue_name, claim.priority
        oldest[lane] = min(oldest.get(lane, claim.enqueued_at), claim.enqueued_at)
    names = sorted({(each.claim.queue_name, each.claim.task_name) for each in unfit})
    return SQL["set_aside_following_tasks"](
        queues=[queue for queue, _ in oldest],
        priorities=[priority for _, priority in oldest],
        times=list(oldest.values()),
        name_queues=[queue for queue, _ in names],
        names=[name for _, name in names],
        limit=AHEAD,
    )


@dataclass(slots=True)
class UnknownSweep:
    """How far the rows have been looked through for tasks that nobody knows."""

    after: TaskId = FIRST_ID
    found: int = 0
    """In this pass."""
    rests: int = 0
    """Looks to leave out after a pass that has found nothing."""


def set_aside_named_tasks(sweep: UnknownSweep) -> Op[int]:
    """Look through the next rows for tasks that nobody knows, if some were found before: they would be passed over by every claim. How many."""
    if sweep.rests:
        sweep.rests -= 1
        return 0
    found = yield from rows(SQL["get_unknown_names"](limit=NAMES_AT_MOST))
    if not found:
        sweep.after, sweep.found = FIRST_ID, 0
        return 0
    names = [name for (name,) in found]
    ((last, count),) = yield from rows(
        SQL["set_aside_named_tasks"](after=sweep.after, limit=SWEPT_AT_ONCE, names=names)
    )
    sweep.found += count
    if last is None:
        sweep.rests = 0 if sweep.found else RESTS
        sweep.found = 0
    sweep.after = FIRST_ID if last is None else last
    return count


def offer_tasks_again(batches: int = 1) -> Op[int]:
    """Bring back what waits for a worker, and one is there now that may run it: 5 000 in a batch. How many."""
    total = 0
    if (yield from rows(SQL["has_unknown_tasks"]())) == [(False,)]:
        return total
    for _ in range(batches):
        ((count, _),) = yield from rows(SQL["offer_tasks_again"](limit=OFFERED_AT_ONCE, sample_size=LOOKED_AT))
        total += count
        if count < OFFERED_AT_ONCE:
            break
    return total


def list_unknown_tasks() -> Op[list[UnknownTasks]]:
    """What waits for a worker that can run it, by task."""
    found = yield from rows(SQL["list_unknown_tasks"](names=NAMES_AT_MOST, counted=MAX_COUNTED))
    return [UnknownTasks(*row) for row in found]


def get_overdue_tasks(*, unknown_ms: int, refused_ms: int, limit: int, excluded: Sequence[TaskId]) -> Query:
    """What has waited for longer than it may: id, name, and why its arguments were refused, if they were."""
    return SQL["get_overdue_tasks"](
        unknown_ms=unknown_ms, refused_ms=refused_ms, limit=limit, names=10 * NAMES_AT_MOST, excluded=list(excluded)
    )


def lock_overdue_tasks(ids: Sequence[TaskId]) -> Query:
    return SQL["lock_overdue_tasks"](ids=list(ids))
