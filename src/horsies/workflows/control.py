"""Control: pause, resume, cancel, retry, and the end of a workflow's time.

Each is one transaction under the lock of the tree (see `advance.py`): what it changes and the step that follows from it are there together,
or not at all. All of them may be repeated when their answer was lost: what is as asked already is left alone.
"""

from collections.abc import Sequence

from horsies.db.statement import Op, Query, execute, load, rows
from horsies.model.codec import encode_error
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.graph import WorkflowStatus
from horsies.model.result import TaskError
from horsies.tasks.control import cancel_queries
from horsies.tasks.finish import notify_done
from horsies.workflows import advance

SQL = load(__file__)

CANCELLED = TaskError(error_code=OutcomeCode.WORKFLOW_CANCELLED, message="the workflow was cancelled")
OVERDUE = TaskError(error_code=OutcomeCode.WORKFLOW_TIMEOUT, message="the workflow's time limit is over")
LOST = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message="the task of this node is gone")


def pause(workflow_id: str) -> Op[bool]:
    """No further node begins. What has begun goes on; what only waits in a queue is taken back."""
    root = yield from _lock(workflow_id)
    paused = yield from rows(SQL["pause_run"](id=workflow_id))
    yield from _settle_and_commit(root)
    return bool(paused)


def resume(workflow_id: str) -> Op[bool]:
    root = yield from _lock(workflow_id)
    resumed = (yield from rows(SQL["resume_runs"](root=root, id=workflow_id))) if root else []
    yield from _settle_and_commit(root)
    return bool(resumed)


def cancel(workflow_id: str) -> Op[bool]:
    """It is CANCELLED at once. What runs in it is asked to stop, and may still take its grace."""
    return (yield from _stop(workflow_id, WorkflowStatus.CANCELLED, CANCELLED))


def time_out(workflow_id: str, *limits: Query) -> Op[bool]:
    """`limits` hold in its transaction: the keeper does not wait for long."""
    return (yield from _stop(workflow_id, WorkflowStatus.FAILED, OVERDUE, *limits))


def retry(workflow_id: str) -> Op[bool]:
    """Everything in the tree that failed or was skipped runs again, and the workflow with it. Of a run at the top only."""
    root = yield from _lock(workflow_id)
    found = yield from rows(SQL["reopen_runs"](id=workflow_id))
    if runs := [run for (run,) in found]:
        yield from execute(
            SQL["reset_nodes"](runs=runs), SQL["recount_nodes"](runs=runs), SQL["recount_runs"](runs=runs)
        )
    yield from _settle_and_commit(root)
    return bool(runs)


def get_overdue(limit: int, excluded: Sequence[str] = ()) -> Op[list[str]]:
    found = yield from rows(SQL["get_overdue_runs"](limit=limit, excluded=list(excluded)))
    return [run for (run,) in found]


def get_lost(limit: int, excluded: Sequence[str] = ()) -> Op[list[str]]:
    """Nodes whose task is nowhere, or ended without their knowing."""
    found = yield from rows(SQL["get_lost_nodes"](limit=limit, excluded=list(excluded)))
    return [node for (node,) in found]


def resolve_lost(nodes: Sequence[str]) -> Op[None]:
    yield from rows(SQL["resolve_lost_nodes"](ids=list(nodes), error=encode_error(LOST)))


def _stop(workflow_id: str, status: WorkflowStatus, why: TaskError, *limits: Query) -> Op[bool]:
    root, error, task_ids = (yield from _lock(workflow_id, *limits)), encode_error(why), list[str]()
    stopped = (
        (yield from rows(SQL["stop_runs"](root=root, id=workflow_id, status=status.value, error=error))) if root else []
    )
    if runs := [run for run, _ in stopped]:
        found = yield from rows(SQL["get_tasks_of_runs"](runs=runs))
        task_ids = [task_id for (task_id,) in found]
        yield from execute(*cancel_queries(task_ids), SQL["stop_nodes"](runs=runs, id=workflow_id, error=error))
    yield from _settle_and_commit(root)
    yield from rows(notify_done(task_ids))
    return bool(runs)


def _lock(workflow_id: str, *limits: Query) -> Op[str | None]:
    """Begin, and hold the tree; its root, or None when no such run is known."""
    *_, found = yield from execute(advance.SQL["begin_step"](), *limits, SQL["lock_tree"](id=workflow_id))
    return found[0][0] if found else None


def _settle_and_commit(root: str | None) -> Op[None]:
    yield from advance.settle_within([root] if root else [])
    yield from rows(advance.SQL["commit_step"]())
