"""The keeper's duties: end what the dead left running, give back what they had claimed, expire what is too late.

Every duty is set-based SQL in short transactions, and harmless when two keepers do it at once: endings are fenced by the
claim's number, and rows that somebody else is busy with are skipped, or waited for briefly. First it is read what is to be done, then it is done, for
all rows together; after a failure, for fewer and fewer (`isolate.py`), so that one bad row keeps no other. `aside` are those found bad before.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from horsies.db.errors import DriverError, is_about_values, short_text
from horsies.db.statement import Op, Row, disable_sequential_scans, execute, load, one, rows
from horsies.maintenance.isolate import SkippedRow, run_isolated
from horsies.model.codec import encode_error
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Ending
from horsies.model.validation import format_duration
from horsies.tasks import unknown
from horsies.tasks.control import CANCELLED_BEFORE_START, end_unstarted_tasks
from horsies.tasks.finish import end_or_retry_tasks, notify_done
from horsies.tasks.inspect import decode_stored_error
from horsies.tasks.release import notify_all_queues, release_tasks
from horsies.workflows import control
from horsies.workflows.advance import get_unfinished_trees, lock_roots, quick_step, run_steps

BATCH = 500
OFFER_BATCHES, END_BATCH = 20, 5_000
STEPS = 1_000
"""That one look takes for a tree of workflows."""
LATE_S = 10.0
"""What is due and not promoted for so long is the keeper's concern."""
LONGEST_LEASE_MS = 600_000
"""No keeper takes a longer one: its beat is a minute at most (`RecoveryConfig`), and it takes a few of them."""

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class RescuedTasks:
    """How many orphans there were, and in how many seconds the first of their retries is due."""

    count: int
    due_s: float | None


def take_lease(worker: str, lease_ms: int) -> Op[tuple[bool, float]]:
    """Whether this worker is the keeper now, and for how many seconds the lease that it found still runs."""
    ((is_ours, left_s),) = yield from rows(
        SQL["acquire_lease"](worker=worker, lease_ms=lease_ms, longest_ms=LONGEST_LEASE_MS)
    )
    return is_ours, left_s


def give_up_lease(worker: str) -> Op[None]:
    yield from rows(SQL["release_lease"](worker=worker))


def get_heartbeats() -> Op[Mapping[str, datetime]]:
    found = yield from rows(SQL["get_heartbeats"]())
    return dict(found)


def remove_dead_worker(worker: str, heartbeat_at: datetime, aside: SkippedRow | None = None) -> Op[bool]:
    """Strike a dead worker off, if it is still as dead as it looked. Its rows are orphans then."""
    aside, duty = aside or SkippedRow(), "strike off worker"

    def work(_workers: Sequence[str]) -> Op[bool]:
        row = yield from one(SQL["remove_dead_worker"](worker=worker, heartbeat_at=heartbeat_at))
        return row is not None

    if worker in aside.excluded(duty):
        return False
    return (yield from run_isolated(duty, [worker], work, id_of=str, aside=aside)) == [True]


def rescue_orphans(aside: SkippedRow | None = None) -> Op[RescuedTasks]:
    """End or retry what dead workers ran, release what they had only claimed."""
    aside, duty = aside or SkippedRow(), "end or give back task"
    found = yield from rows(SQL["get_orphans"](limit=BATCH, excluded=aside.excluded(duty)))
    by_worker: defaultdict[str, list[Row]] = defaultdict(list)
    for row in found:
        by_worker[row[3]].append(row)
    served: list[RescuedTasks] = []
    for worker, orphans in by_worker.items():
        served += yield from run_isolated(
            duty, orphans, partial(_rescue, worker), id_of=_id_of, aside=aside, last_resort=_end_orphan
        )
    due_s = [rescued.due_s for rescued in served if rescued.due_s is not None]
    return RescuedTasks(sum(rescued.count for rescued in served), min(due_s, default=None))


def _rescue(worker: str, orphans: Sequence[Row]) -> Op[RescuedTasks]:
    roots = sorted({row[4] for row in orphans if row[4] is not None and row[2] == TaskStatus.RUNNING})
    _, _, _, locked = yield from execute(
        SQL["begin_rescue"](),
        SQL["set_rescue_limits"](),
        lock_roots(roots),
        SQL["lock_orphans"](ids=[row[0] for row in orphans], worker=worker),
    )
    ours = {task_id for (task_id,) in locked}
    error = _crashed(worker)
    endings: dict[str, list[Ending]] = {TaskStatus.RUNNING: [], TaskStatus.CLAIMED: []}
    for task_id, claim_no, status, _, root_id in orphans:
        if task_id in ours:
            text = encode_error(error, task_id=task_id)
            endings[status].append(
                Ending(task_id, claim_no, TaskStatus.FAILED, error_code=error.error_code, error=text, root_id=root_id)
            )
    running, claimed = endings[TaskStatus.RUNNING], endings[TaskStatus.CLAIMED]
    # All statements also when one has nothing to do: the answers then stand in known places.
    ended, *_ = yield from execute(
        end_or_retry_tasks(worker, running),
        release_tasks(worker, claimed),
        *(quick_step(roots, [ending.id for ending in running]) if roots else ()),
        SQL["commit_rescue"](),
        notify_done([ending.id for ending in running]),
        notify_all_queues(),
    )
    return RescuedTasks(len(ours), min((seconds for _, seconds in ended if seconds is not None), default=None))


def _crashed(worker: str) -> TaskError:
    return TaskError(
        error_code=OperationalErrorCode.WORKER_CRASHED, message=f"worker {worker} died while it ran this task"
    )


def _end_orphan(row: Row, error: DriverError) -> Op[RescuedTasks] | None:
    """What ran has crashed, and cannot be retried. What had not begun is ended only if it will never be possible to give it back."""
    task_id, claim_no, status, worker, _ = row
    if status == TaskStatus.CLAIMED and not is_about_values(error):
        return None
    return _end_plainly(task_id, claim_no, worker, f"{_crashed(worker).message}, and it cannot be retried", error)


def _end_plainly(task_id: str, claim_no: int, worker: str | None, words: str, why: DriverError) -> Op[RescuedTasks]:
    """As FAILED, whatever is in the row. If it is of a workflow, its node is found by `find_lost_nodes`."""
    error = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message=f"{words}: {short_text(why)}")
    _, _, gone, *_ = yield from execute(
        SQL["begin_rescue"](),
        SQL["set_rescue_limits"](),
        SQL["fail_task"](
            id=task_id,
            claim_no=claim_no,
            worker=worker,
            error_code=error.error_code,
            error=encode_error(error, task_id=task_id),
        ),
        SQL["commit_rescue"](),
        notify_done([task_id]),
    )
    return RescuedTasks(len(gone), None)


def release_overdue(aside: SkippedRow | None = None) -> Op[None]:
    """Claims whose lease ran out before they were started go back to the others."""
    yield from _put_back("release task", "get_expired_leases", "release_expired_claims", aside or SkippedRow())


def promote_late(aside: SkippedRow | None = None) -> Op[None]:
    """What is due for long and was promoted by no worker: a row that cannot be changed is found here, and said."""
    yield from _put_back(
        "promote task", "get_unpromoted_tasks", "promote_overdue_tasks", aside or SkippedRow(), after_s=LATE_S
    )


def _put_back(duty: str, get: str, put_back: str, aside: SkippedRow, **params: object) -> Op[None]:
    found = yield from rows(SQL[get](limit=BATCH, excluded=aside.excluded(duty), **params))

    def work(some: Sequence[Row]) -> Op[object]:
        return (yield from rows(SQL[put_back](ids=[row[0] for row in some])))

    def last_resort(row: Row, error: DriverError) -> Op[object] | None:
        if not is_about_values(error):
            return None
        return _end_plainly(row[0], row[1], row[2], f"it was not possible to {duty.removesuffix(' task')} it", error)

    yield from run_isolated(duty, found, work, id_of=_id_of, aside=aside, last_resort=last_resort)


def expire(aside: SkippedRow | None = None) -> Op[int]:
    """How many were too late."""
    error = TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="its good_until passed before it began")
    return (yield from _end_unbegun("expire task", "expired_tasks", TaskStatus.EXPIRED, error, aside or SkippedRow()))


def cancel_returned(aside: SkippedRow | None = None) -> Op[None]:
    yield from _end_unbegun(
        "cancel task", "cancelled_pending_tasks", TaskStatus.CANCELLED, CANCELLED_BEFORE_START, aside or SkippedRow()
    )


def _end_unbegun(duty: str, which: str, status: TaskStatus, error: TaskError, aside: SkippedRow) -> Op[int]:
    get = SQL[f"get_{which}"](limit=BATCH, excluded=aside.excluded(duty))
    _, _, found, _ = yield from execute(SQL["begin_rescue"](), disable_sequential_scans(), get, SQL["commit_rescue"]())

    def work(ids: Sequence[str]) -> Op[int]:
        _, _, locked = yield from execute(
            SQL["begin_rescue"](), disable_sequential_scans(), SQL[f"lock_{which}"](ids=list(ids))
        )
        ours = [task_id for (task_id,) in locked]
        yield from execute(end_unstarted_tasks(ours, status, error), SQL["commit_rescue"](), notify_done(ours))
        return len(ours)

    served = yield from run_isolated(duty, [task_id for (task_id,) in found], work, id_of=str, aside=aside)
    return sum(served)


def offer_again(_aside: SkippedRow | None = None) -> Op[int]:
    """Bring back what waits for a worker that can run it, where one has come while nobody looked."""
    return (yield from unknown.offer_tasks_again(OFFER_BATCHES))


def set_aside_more(sweep: unknown.UnknownSweep, _aside: SkippedRow | None = None) -> Op[int]:
    """Set aside what nobody knows and workers would pass over again and again."""
    return (yield from unknown.set_aside_named_tasks(sweep))


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long a task waits for a worker that knows it, and for one that can read its arguments. In milliseconds."""

    unknown_ms: int
    changed_ms: int


def end_unknown(patience: Patience, aside: SkippedRow | None = None) -> Op[int]:
    """End what no worker could run for too long. How many."""
    aside, duty = aside or SkippedRow(), "end unknown task"
    get = unknown.get_overdue_tasks(
        unknown_ms=patience.unknown_ms, refused_ms=patience.changed_ms, limit=END_BATCH, excluded=aside.excluded(duty)
    )
    _, _, found, _ = yield from execute(SQL["begin_rescue"](), disable_sequential_scans(), get, SQL["commit_rescue"]())

    def work(some: Sequence[Row]) -> Op[int]:
        ids_by_error: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for task_id, name, refusal in some:
            ids_by_error[_unknown_error(name, refusal, patience)].append(task_id)
        _, _, locked = yield from execute(
            SQL["begin_rescue"](), disable_sequential_scans(), unknown.lock_overdue_tasks([row[0] for row in some])
        )
        ours = {task_id for (task_id,) in locked}
        endings = [
            end_unstarted_tasks(
                [task_id for task_id in ids if task_id in ours],
                TaskStatus.FAILED,
                TaskError(error_code=code, message=message),
            )
            for (code, message), ids in ids_by_error.items()
        ]
        yield from execute(*endings, SQL["commit_rescue"](), notify_done(sorted(ours)))
        return len(ours)

    return sum((yield from run_isolated(duty, found, work, id_of=_id_of, aside=aside)))


def _unknown_error(name: str, refusal: str | None, patience: Patience) -> tuple[str, str]:
    """The code and the message."""
    if (refused := decode_stored_error(refusal)) is not None:
        return refused.error_code, refused.message.replace("\0", "\N{REPLACEMENT CHARACTER}")
    words = (
        f"for {format_duration(patience.unknown_ms / 1000)} no worker had a task named {name!r}; is its module in app.discover_tasks([...]), and is the "
        "release that has it deployed? A renamed task keeps its old name with @app.task(..., aliases=[...])"
    )
    return OperationalErrorCode.WORKER_RESOLUTION_ERROR, words


def end_overdue_workflows(aside: SkippedRow | None = None) -> Op[None]:
    aside, duty = aside or SkippedRow(), "end overdue workflow"

    def work(runs: Sequence[str]) -> Op[None]:
        yield from control.time_out(runs[0], SQL["set_rescue_limits"]())

    for run in (yield from control.get_overdue_runs(BATCH, aside.excluded(duty))):
        yield from run_isolated(duty, [run], work, id_of=str, aside=aside)


def find_lost_nodes(aside: SkippedRow | None = None) -> Op[None]:
    """Of workflows whose task is gone, which only a hand from outside can bring about."""
    aside, duty = aside or SkippedRow(), "end lost node"
    lost = yield from control.get_lost_nodes(BATCH, aside.excluded(duty))
    yield from run_isolated(duty, lost, control.resolve_lost_nodes, id_of=str, aside=aside)


def settle_workflows(aside: SkippedRow | None = None) -> Op[None]:
    """What is left to do in any tree. One in which it cannot be done keeps no other."""
    aside, duty = aside or SkippedRow(), "settle workflow"

    def work(roots: Sequence[str]) -> Op[Sequence[str]]:
        return (yield from run_steps(roots, limits=[SQL["set_rescue_limits"]()], at_most=STEPS))

    excluded = aside.excluded(duty)
    while found := (yield from get_unfinished_trees(excluded)):
        for left in (yield from run_isolated(duty, found, work, id_of=str, aside=aside)):
            for root in left:
                aside.add(duty, root, f"after {STEPS} steps there is still something to do in it")
        excluded += found  # once in a look, whatever became of them


def _id_of(row: Row) -> str:
    return row[0]
