"""The duties of the maintenance leader, except retention: rescue the tasks of dead workers, release, promote and expire tasks, settle workflows.

Every duty is set-based SQL in short transactions, and safe if two processes do it at once: endings are fenced by the claim number, and rows that other
sessions have locked are skipped, or waited for briefly. A duty first reads the rows, then processes all of them together; after a failure, fewer and fewer
(`isolate.py`), so that one bad row does not block the others. `failed` are those found before.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from horsies.db.errors import DriverError, is_about_values, short_text
from horsies.db.statement import Op, Query, Row, disable_sequential_scans, execute, load, one, rows
from horsies.maintenance.isolate import FailedRows, run_isolated
from horsies.model.codec import encode_error
from horsies.model.config import RecoveryConfig
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.result import TaskError
from horsies.model.status import TaskStatus
from horsies.model.task import Ending
from horsies.model.validation import format_duration
from horsies.tasks import unknown
from horsies.tasks.control import CANCELLED_BEFORE_START, end_unstarted_tasks
from horsies.tasks.finish import end_or_retry_tasks, notify_all_queues, notify_done, release_tasks
from horsies.tasks.inspect import decode_stored_error
from horsies.workflows import control
from horsies.workflows.advance import RunSweep, get_unfinished_trees, lock_roots, quick_step, run_steps

BATCH: Final = 500
UNKNOWN_BATCH: Final = 5_000
MAX_NAMED: Final = 100
"""Of the tasks of a dead worker, the ids of so many are stored."""
MAX_STEPS: Final = 1_000
"""Of one tree of workflows in one pass."""
PROMOTION_OVERDUE_S: Final = 10.0
"""A task that no worker has promoted for so long is promoted here."""
LONGEST_LEASE_MS: Final = 600_000
"""No leader takes a longer one: its interval is a minute at most (`RecoveryConfig`), and the lease a few of them."""

SQL = load(__file__)


# -- the lease, and dead workers


def acquire_lease(worker: str, lease_ms: int) -> Op[tuple[bool, float]]:
    """Return whether this worker is the leader now, and for how many seconds the lease that it found still runs."""
    query = SQL["acquire_lease"](worker=worker, lease_ms=lease_ms, longest_ms=LONGEST_LEASE_MS)
    return (yield from rows(query))[0]


def release_lease(worker: str) -> Op[None]:
    yield from rows(SQL["release_lease"](worker=worker))


def get_heartbeats() -> Op[Mapping[str, datetime]]:
    return dict((yield from rows(SQL["get_heartbeats"]())))


def remove_dead_worker(worker: str, heartbeat_at: datetime, failed: FailedRows | None = None) -> Op[bool]:
    """Remove a dead worker, unless its heartbeat has changed. Its tasks are orphans then."""
    failed, duty = failed or FailedRows(), "remove worker"

    def work(_workers: Sequence[str]) -> Op[bool]:
        query = SQL["remove_dead_worker"](worker=worker, heartbeat_at=heartbeat_at, named=MAX_NAMED)
        return (yield from one(query)) is not None

    if worker in failed.excluded(duty):
        return False
    return (yield from run_isolated(duty, [worker], work, id_of=str, failed=failed)) == [True]


# -- tasks of dead workers


@dataclass(frozen=True, slots=True)
class RescuedTasks:
    """How many orphans there were, and in how many seconds the first of their retries is due."""

    count: int
    due_s: float | None


def rescue_orphans(failed: FailedRows | None = None) -> Op[RescuedTasks]:
    """End or retry the running tasks of dead workers, and release those that they had only claimed."""
    failed, duty = failed or FailedRows(), "end or release task"
    by_worker: defaultdict[str, list[Row]] = defaultdict(list)
    for row in (yield from rows(SQL["get_orphans"](limit=BATCH, excluded=failed.excluded(duty)))):
        by_worker[row[3]].append(row)
    rescued: list[RescuedTasks] = []
    for worker, orphans in by_worker.items():
        rescued += yield from run_isolated(
            duty, orphans, partial(_rescue, worker), id_of=_id_of, failed=failed, fallback=_end_orphan
        )
    due_s = [each.due_s for each in rescued if each.due_s is not None]
    return RescuedTasks(sum(each.count for each in rescued), min(due_s, default=None))


def _rescue(worker: str, orphans: Sequence[Row]) -> Op[RescuedTasks]:
    # Lock the roots before the tasks, as every other step of a workflow does.
    roots = sorted({row[4] for row in orphans if row[4] is not None and row[2] == TaskStatus.RUNNING})
    _, _, _, locked = yield from execute(
        SQL["begin_rescue"](),
        SQL["set_rescue_limits"](),
        lock_roots(roots),
        SQL["lock_orphans"](ids=[row[0] for row in orphans], worker=worker),
    )
    locked_ids = {task_id for (task_id,) in locked}
    error = _crash_error(worker)
    endings: dict[str, list[Ending]] = {TaskStatus.RUNNING: [], TaskStatus.CLAIMED: []}
    for task_id, claim_no, status, _, root_id in orphans:
        if task_id in locked_ids:
            text = encode_error(error, task_id=task_id)
            endings[status].append(
                Ending(task_id, claim_no, TaskStatus.FAILED, error_code=error.error_code, error=text, root_id=root_id)
            )
    running, claimed = endings[TaskStatus.RUNNING], endings[TaskStatus.CLAIMED]
    # Send all statements, even those without rows, so that the position of each result is known.
    ended, *_ = yield from execute(
        end_or_retry_tasks(worker, running),
        release_tasks(worker, claimed),
        *(quick_step(roots, [ending.id for ending in running]) if roots else ()),
        SQL["commit_rescue"](),
        notify_done([ending.id for ending in running]),
        notify_all_queues(),
    )
    return RescuedTasks(len(locked_ids), min((due_s for _, due_s, *_ in ended if due_s is not None), default=None))


def _crash_error(worker: str) -> TaskError:
    return TaskError(
        error_code=OperationalErrorCode.WORKER_CRASHED, message=f"worker {worker} died while it ran this task"
    )


def _end_orphan(row: Row, error: DriverError) -> Op[RescuedTasks] | None:
    """End a crashed task that cannot be retried. One that had not begun is ended only if it can never be released."""
    task_id, claim_no, status, worker, _ = row
    if status == TaskStatus.CLAIMED and not is_about_values(error):
        return None
    return _fail_task(task_id, claim_no, worker, f"{_crash_error(worker).message}, and it cannot be retried", error)


def _fail_task(task_id: str, claim_no: int, worker: str | None, message: str, cause: DriverError) -> Op[RescuedTasks]:
    """End a task as FAILED, whatever its row contains. If it belongs to a workflow, `resolve_lost_nodes` finds its node."""
    error = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message=f"{message}: {short_text(cause)}")
    _, _, ended, *_ = yield from execute(
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
    return RescuedTasks(len(ended), None)


# -- tasks that have not started


def release_expired_claims(failed: FailedRows | None = None) -> Op[None]:
    """Release claims whose lease has expired before they were started."""
    yield from _make_claimable("release task", "get_expired_leases", "release_expired_claims", failed)


def promote_overdue_tasks(failed: FailedRows | None = None) -> Op[None]:
    """Promote tasks that workers should have promoted long ago. A row that cannot be promoted is found, and logged, here."""
    yield from _make_claimable(
        "promote task", "get_unpromoted_tasks", "promote_overdue_tasks", failed, after_s=PROMOTION_OVERDUE_S
    )


def _make_claimable(duty: str, get: str, update: str, failed: FailedRows | None, **params: object) -> Op[None]:
    failed = failed or FailedRows()
    tasks = yield from rows(SQL[get](limit=BATCH, excluded=failed.excluded(duty), **params))

    def work(some: Sequence[Row]) -> Op[object]:
        return (yield from rows(SQL[update](ids=[row[0] for row in some])))

    def fallback(row: Row, error: DriverError) -> Op[object] | None:
        if not is_about_values(error):
            return None
        return _fail_task(row[0], row[1], row[2], f"it was not possible to {duty.removesuffix(' task')} it", error)

    yield from run_isolated(duty, tasks, work, id_of=_id_of, failed=failed, fallback=fallback)


def expire_tasks(failed: FailedRows | None = None) -> Op[int]:
    """End tasks that have not started by their `good_until`. Return how many."""
    error = TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="its good_until passed before it began")
    get, lock = partial(SQL["get_expired_tasks"], limit=BATCH), SQL["lock_expired_tasks"]
    return (yield from _end_unstarted("expire task", get, lock, TaskStatus.EXPIRED, lambda _row: error, failed))


def cancel_pending_tasks(failed: FailedRows | None = None) -> Op[int]:
    """End tasks with a cancel request that were released before they started. Return how many."""
    error = CANCELLED_BEFORE_START
    get, lock = partial(SQL["get_cancelled_pending_tasks"], limit=BATCH), SQL["lock_cancelled_pending_tasks"]
    return (yield from _end_unstarted("cancel task", get, lock, TaskStatus.CANCELLED, lambda _row: error, failed))


def end_unknown_tasks(recovery: RecoveryConfig, failed: FailedRows | None = None) -> Op[int]:
    """End tasks that no worker could run for too long. Return how many."""
    unknown_ms, refused_ms = recovery.unknown_task_patience_ms, recovery.changed_task_patience_ms

    def error_of(row: Row) -> TaskError:
        _, name, refusal = row
        if (refused := decode_stored_error(refusal)) is not None:
            message = refused.message.replace("\0", "\N{REPLACEMENT CHARACTER}")
            return TaskError(error_code=refused.error_code, message=message)
        message = (
            f"for {format_duration(unknown_ms / 1000)} no worker had a task named {name!r}; is its module in app.discover_tasks([...]), and is the "
            "release that has it deployed? A renamed task keeps its old name with @app.task(..., aliases=[...])"
        )
        return TaskError(error_code=OperationalErrorCode.WORKER_RESOLUTION_ERROR, message=message)

    get = partial(unknown.get_overdue_tasks, unknown_ms=unknown_ms, refused_ms=refused_ms, limit=UNKNOWN_BATCH)
    lock = unknown.lock_overdue_tasks
    return (yield from _end_unstarted("end unknown task", get, lock, TaskStatus.FAILED, error_of, failed))


def _end_unstarted(
    duty: str,
    get: Callable[..., Query],
    lock: Callable[..., Query],
    status: TaskStatus,
    error_of: Callable[[Row], TaskError],
    failed: FailedRows | None,
) -> Op[int]:
    failed = failed or FailedRows()
    begin, no_scans, commit = SQL["begin_rescue"](), disable_sequential_scans(), SQL["commit_rescue"]()
    _, _, tasks, _ = yield from execute(begin, no_scans, get(excluded=failed.excluded(duty)), commit)

    def work(some: Sequence[Row]) -> Op[int]:
        _, _, locked = yield from execute(begin, no_scans, lock(ids=[row[0] for row in some]))
        locked_ids = {task_id for (task_id,) in locked}
        ids_by_error: defaultdict[TaskError, list[str]] = defaultdict(list)
        for row in some:
            if row[0] in locked_ids:
                ids_by_error[error_of(row)].append(row[0])
        endings = [end_unstarted_tasks(ids, status, error) for error, ids in ids_by_error.items()]
        yield from execute(*endings, commit, notify_done(sorted(locked_ids)))
        return len(locked_ids)

    return sum((yield from run_isolated(duty, tasks, work, id_of=_id_of, failed=failed)))


# -- workflows


def end_overdue_workflows(failed: FailedRows | None = None) -> Op[None]:
    failed, duty = failed or FailedRows(), "end overdue workflow"

    def work(runs: Sequence[str]) -> Op[None]:
        yield from control.time_out(runs[0], SQL["set_rescue_limits"]())

    for run in (yield from control.get_overdue_runs(BATCH, failed.excluded(duty))):
        yield from run_isolated(duty, [run], work, id_of=str, failed=failed)


def resolve_lost_nodes(failed: FailedRows | None = None) -> Op[None]:
    """End nodes whose task no longer exists, which only a manual change can cause."""
    failed, duty = failed or FailedRows(), "end lost node"
    lost = yield from control.get_lost_nodes(BATCH, failed.excluded(duty))
    yield from run_isolated(duty, lost, control.resolve_lost_nodes, id_of=str, failed=failed)


def settle_workflows(failed: FailedRows | None = None, sweep: RunSweep | None = None) -> Op[None]:
    """Take the steps that are left in any tree of workflows. A tree that cannot be settled does not block the others."""
    failed, duty = failed or FailedRows(), "settle workflow"

    def work(roots: Sequence[str]) -> Op[Sequence[str]]:
        return (yield from run_steps(roots, limits=[SQL["set_rescue_limits"]()], at_most=MAX_STEPS))

    excluded = failed.excluded(duty)
    while unfinished := (yield from get_unfinished_trees(excluded, sweep)):
        for left in (yield from run_isolated(duty, unfinished, work, id_of=str, failed=failed)):
            for root in left:
                failed.add(duty, root, f"after {MAX_STEPS} steps there is still something to do in it")
        excluded += unfinished  # each tree once per pass, whatever the result


def _id_of(row: Row) -> str:
    return row[0]
