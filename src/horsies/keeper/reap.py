"""The keeper's duties: end what the dead left running, give back what they had claimed, expire what is too late.

Every duty is one short transaction of set-based SQL, and harmless when two keepers do it at once: endings are fenced by the
claim's number, and rows that somebody else is busy with are skipped, or waited for briefly.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from horsies.db.indexes import keep_to_indexes
from horsies.db.load import load
from horsies.db.op import Op, Query, Row, ask, one, rows
from horsies.model.codec import encode_error
from horsies.model.codes import OperationalErrorCode, OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Ending
from horsies.tasks.cancel import UNBEGUN, end_unbegun
from horsies.tasks.finish import end_or_retry, notify_done
from horsies.tasks.release import notify_everyone, release
from horsies.workflows import control
from horsies.workflows.advance import lock_roots, quick_step, settle_everything

BATCH = 500

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Reaped:
    """How many orphans there were, and in how many seconds the first of their retries is due."""

    count: int
    due_s: float | None


def take_lease(worker: str, lease_ms: int) -> Op[tuple[bool, float]]:
    """Whether this worker is the keeper now, and for how many seconds the lease that it found still runs."""
    ((is_ours, left_s),) = yield from rows(SQL["take_lease"](worker=worker, lease_ms=lease_ms))
    return is_ours, left_s


def give_up_lease(worker: str) -> Op[None]:
    yield from rows(SQL["give_up_lease"](worker=worker))


def get_heartbeats() -> Op[Mapping[str, datetime]]:
    found = yield from rows(SQL["get_heartbeats"]())
    return dict(found)


def bury(worker: str, heartbeat_at: datetime) -> Op[bool]:
    """Strike a dead worker off, if it is still as dead as it looked. Its rows are orphans then."""
    row = yield from one(SQL["bury_worker"](worker=worker, heartbeat_at=heartbeat_at))
    return row is not None


def reap_orphans() -> Op[Reaped]:
    """End or retry what dead workers ran, release what they had only claimed."""
    found = yield from rows(SQL["get_orphans"](limit=BATCH))
    by_worker: defaultdict[str, list[Row]] = defaultdict(list)
    for row in found:
        by_worker[row[3]].append(row)
    due_s: list[float] = []
    for worker, orphans in by_worker.items():
        due_s += yield from _reap(worker, orphans)
    return Reaped(len(found), min(due_s, default=None))


def _reap(worker: str, orphans: Sequence[Row]) -> Op[list[float]]:
    """In how many seconds each of their retries is due."""
    error = TaskError(
        error_code=OperationalErrorCode.WORKER_CRASHED, message=f"worker {worker} died while it ran this task"
    )
    text = encode_error(error)
    endings: dict[str, list[Ending]] = {TaskStatus.RUNNING: [], TaskStatus.CLAIMED: []}
    for task_id, claim_no, status, _, root_id in orphans:
        endings[status].append(
            Ending(task_id, claim_no, TaskStatus.FAILED, error_code=error.error_code, error=text, root_id=root_id)
        )
    running, claimed = endings[TaskStatus.RUNNING], endings[TaskStatus.CLAIMED]
    roots = sorted({ending.root_id for ending in running if ending.root_id is not None})
    # All statements also when one has nothing to do: the answers then stand in known places.
    _, _, _, ended, *_ = yield from ask(
        SQL["begin_reap"](),
        SQL["set_reap_limits"](),
        lock_roots(roots),
        end_or_retry(worker, running),
        release(worker, claimed),
        *(quick_step(roots, [ending.id for ending in running]) if roots else ()),
        SQL["commit_reap"](),
        notify_done([ending.id for ending in running]),
        notify_everyone(),
    )
    return [seconds for _, seconds in ended if seconds is not None]


def release_overdue() -> Op[None]:
    yield from rows(SQL["release_overdue"](limit=BATCH))


def expire() -> Op[int]:
    """How many were too late."""
    error = TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="its good_until passed before it began")
    return (yield from _end_unbegun(SQL["lock_late"](limit=BATCH), TaskStatus.EXPIRED, error))


def cancel_returned() -> Op[None]:
    yield from _end_unbegun(SQL["lock_returned"](limit=BATCH), TaskStatus.CANCELLED, UNBEGUN)


def _end_unbegun(lock: Query, status: TaskStatus, error: TaskError) -> Op[int]:
    _, _, locked = yield from ask(SQL["begin_reap"](), keep_to_indexes(), lock)
    ids = [task_id for (task_id,) in locked]
    told = (end_unbegun(ids, status, error), SQL["commit_reap"](), notify_done(ids)) if ids else (SQL["commit_reap"](),)
    yield from ask(*told)
    return len(ids)


def end_overdue_workflows() -> Op[None]:
    for workflow_id in (yield from control.get_overdue(BATCH)):
        yield from control.time_out(workflow_id)


def find_lost_nodes() -> Op[None]:
    """Of workflows whose task is gone, which only a hand from outside can bring about."""
    yield from control.resolve_lost(BATCH)


def settle_workflows() -> Op[None]:
    yield from settle_everything()
