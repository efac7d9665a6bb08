"""Tasks that a worker cannot run: it does not know them, or cannot read their arguments. A worker of another release may be able to.

A worker registers the tasks that it knows, each with a signature: a number that changes with the parameters. It releases what it has claimed and cannot
run, and the attempt does not count. If a live worker may be able to run the task, the task stays in its queue, and this worker avoids such tasks for a
while. Otherwise the task becomes an *unknown task*: it waits outside the claim index, where it costs other claims nothing. A worker that registers
offers again what it can run. The maintenance leader does the same, in case the two have missed each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from horsies.db.statement import Op, Query, load, rows
from horsies.model.codec import encode_error
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.payload_errors import MAX_NAME
from horsies.model.result import TaskError
from horsies.model.status import Misfit, TaskStatus
from horsies.model.task import Claim, Ending, TaskId

MAX_FOLLOWING = 5_000
"""Rows that are checked behind an unknown task."""
OFFER_BATCH = 5_000
SWEEP_BATCH = 10_000
IDLE_SWEEPS = 60
"""Sweeps to skip after a pass over all rows that found nothing."""
SAMPLE_ROWS = 20_000
"""Rows of one task name that are read to find the queues and refusals among them."""
FIRST_ID = "00000000-0000-0000-0000-000000000000"
MAX_COUNTED = 100_000
MAX_NAMES = 1_000
MAX_AVOIDED = 500

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class UnfitClaim:
    """A claim that this worker cannot run, and the error with which it ends if no worker can."""

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
        """Whether a worker of another release may be able to run it. A longer name cannot belong to a task, and would not fit into the index."""
        return self.misfit is not Misfit.VALUES and len(self.claim.task_name) <= MAX_NAME

    @property
    def ending(self) -> Ending:
        """How the task ends if no worker can run it."""
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
    """Return the unfit claim for a task that this worker does not know."""
    code = OperationalErrorCode.WORKER_RESOLUTION_ERROR
    error = TaskError(error_code=code, message=f"no worker has a task named {claim.task_name!r}")
    return UnfitClaim(claim, Misfit.UNKNOWN, None, code, encode_error(error, task_id=claim.id))


class UnfitOutcome(Enum):
    """What happened to a claim that was set aside."""

    OFFERED = "offered"
    """It is in its queue again: another worker may run it."""
    UNKNOWN = "unknown"
    """It waits outside the queue for a worker that can run it."""
    NO_WORKER = "no_worker"
    """It is still claimed, and has to be ended: no worker can run it."""


@dataclass(frozen=True, slots=True)
class UnknownTasks:
    """Unknown tasks of one name. They are counted up to `MAX_COUNTED`."""

    task_name: str
    is_refused: bool
    """Workers know the task, but could not read the arguments."""
    count: int
    since: datetime


@dataclass(slots=True)
class KnownTasks:
    """The tasks that this worker knows, by name, with their signatures; and those that it leaves to other workers for a while."""

    signatures: dict[str, int]
    avoided_names: dict[str, float] = field(default_factory=dict[str, float])
    """Names that are not to be claimed, and until when."""
    avoided_signatures: dict[int, float] = field(default_factory=dict[int, float])

    def avoid(self, unfit: UnfitClaim, until: float) -> None:
        """Do not claim such tasks again until then."""
        by_name = unfit.signature is None
        avoided: dict[Any, float] = self.avoided_names if by_name else self.avoided_signatures
        key = unfit.claim.task_name if by_name else unfit.signature
        avoided.pop(key, None)  # so that it becomes the newest
        while len(avoided) >= MAX_AVOIDED:
            del avoided[next(iter(avoided))]
        avoided[key] = until

    def forget(self, task_name: str) -> None:
        """Remove a task that a child does not know: the children did not load it, or its code has been replaced since."""
        self.signatures.pop(task_name, None)


def set_aside_claims(worker: str, unfit: Sequence[UnfitClaim]) -> Query:
    """Release what this worker cannot run. Returns an `UnfitOutcome` for each claim that it still held."""
    return SQL["set_aside_claims"](
        worker=worker,
        ids=[each.id for each in unfit],
        claim_nos=[each.claim_no for each in unfit],
        signatures=[each.signature for each in unfit],
        refusals=[None if each.signature is None else each.error for each in unfit],
        may_wait=[each.may_wait for each in unfit],
    )


def set_aside_following_tasks(unfit: Sequence[UnfitClaim]) -> Query:
    """Set aside the pending tasks behind these that have the same names, and that no worker knows either."""
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
        limit=MAX_FOLLOWING,
    )


@dataclass(slots=True)
class UnknownSweep:
    """How far the pending tasks have been searched for unknown ones."""

    after: TaskId = FIRST_ID
    found: int = 0
    """In the current pass over all rows."""
    skips: int = 0
    """Sweeps to skip."""


def set_aside_named_tasks(sweep: UnknownSweep) -> Op[int]:
    """Search the next pending tasks for names that are already known to be unknown, and set those tasks aside. Returns their number.

    Otherwise every claim would have to pass over them.
    """
    if sweep.skips:
        sweep.skips -= 1
        return 0
    found = yield from rows(SQL["get_unknown_names"](limit=MAX_NAMES))
    if not found:
        sweep.after, sweep.found = FIRST_ID, 0
        return 0
    names = [name for (name,) in found]
    ((last, count),) = yield from rows(SQL["set_aside_named_tasks"](after=sweep.after, limit=SWEEP_BATCH, names=names))
    sweep.found += count
    if last is None:
        sweep.skips = 0 if sweep.found else IDLE_SWEEPS
        sweep.found = 0
    sweep.after = FIRST_ID if last is None else last
    return count


def offer_tasks_again(batches: int = 1) -> Op[int]:
    """Return unknown tasks to their queues if a live worker may run them now. Returns their number."""
    total = 0
    if (yield from rows(SQL["has_unknown_tasks"]())) == [(False,)]:
        return total
    for _ in range(batches):
        ((count, _),) = yield from rows(SQL["offer_tasks_again"](limit=OFFER_BATCH, sample_size=SAMPLE_ROWS))
        total += count
        if count < OFFER_BATCH:
            break
    return total


def list_unknown_tasks(max_counted: int = MAX_COUNTED) -> Op[list[UnknownTasks]]:
    """List the unknown tasks by name."""
    query = SQL["list_unknown_tasks"](names=MAX_NAMES, counted=max_counted)
    return [UnknownTasks(*row) for row in (yield from rows(query))]


def get_overdue_tasks(*, unknown_ms: int, refused_ms: int, limit: int, excluded: Sequence[TaskId]) -> Query:
    """Read the unknown tasks that have waited for too long: id, name, and the error of refused arguments, if there is one."""
    return SQL["get_overdue_tasks"](
        unknown_ms=unknown_ms, refused_ms=refused_ms, limit=limit, names=10 * MAX_NAMES, excluded=list(excluded)
    )


def lock_overdue_tasks(ids: Sequence[TaskId]) -> Query:
    return SQL["lock_overdue_tasks"](ids=list(ids))
