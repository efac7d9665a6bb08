"""Pause, resume, cancel and retry workflows, and end those whose time limit has passed.

Each function is one transaction that holds the lock of the tree (see `advance.py`), so a change and the step that follows from it are
committed together. Each may be repeated if its answer was lost: a run that is already in the requested state is left unchanged.
"""

from collections.abc import Sequence
from typing import Final

from horsies.db.statement import Op, Query, execute, load, rows
from horsies.model.codec import encode_error
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.graph import WorkflowStatus
from horsies.model.result import TaskError
from horsies.tasks.control import cancel_queries
from horsies.tasks.finish import notify_done
from horsies.workflows import advance

SQL = load(__file__)

CANCELLED: Final = TaskError(error_code=OutcomeCode.WORKFLOW_CANCELLED, message="the workflow was cancelled")
OVERDUE: Final = TaskError(error_code=OutcomeCode.WORKFLOW_TIMEOUT, message="the time limit of the workflow has passed")
LOST: Final = TaskError(error_code=OperationalErrorCode.WORKER_CRASHED, message="the task of this node does not exist")


def pause(workflow_id: str) -> Op[bool]:
    """Start no further node. Running tasks continue; tasks that have not started are taken back from their queue."""
    root = yield from _begin_and_lock(workflow_id)
    paused = yield from rows(SQL["pause_run"](id=workflow_id))
    yield from _run_steps_and_commit(root)
    return bool(paused)


def resume(workflow_id: str) -> Op[bool]:
    root = yield from _begin_and_lock(workflow_id)
    resumed = (yield from rows(SQL["resume_runs"](root=root, id=workflow_id))) if root else []
    yield from _run_steps_and_commit(root)
    return bool(resumed)


def cancel(workflow_id: str) -> Op[bool]:
    """Set the workflow to CANCELLED immediately. Running tasks are asked to stop, and have their grace period."""
    return (yield from _stop(workflow_id, WorkflowStatus.CANCELLED, CANCELLED))


def time_out(workflow_id: str, *limits: Query) -> Op[bool]:
    """End a workflow whose time limit has passed. `limits` are settings for the transaction: the maintenance leader must not wait long."""
    return (yield from _stop(workflow_id, WorkflowStatus.FAILED, OVERDUE, *limits))


def retry(workflow_id: str) -> Op[bool]:
    """Run everything again that failed or was skipped in the tree of a root run."""
    root = yield from _begin_and_lock(workflow_id)
    reopened = yield from rows(SQL["reopen_runs"](id=workflow_id))
    if runs := [run for (run,) in reopened]:
        yield from execute(
            SQL["reset_nodes"](runs=runs), SQL["recount_nodes"](runs=runs), SQL["recount_runs"](runs=runs)
        )
    yield from _run_steps_and_commit(root)
    return bool(runs)


def get_overdue_runs(limit: int, excluded: Sequence[str] = ()) -> Op[list[str]]:
    return [run for (run,) in (yield from rows(SQL["get_overdue_runs"](limit=limit, excluded=list(excluded))))]


def get_lost_nodes(limit: int, excluded: Sequence[str] = ()) -> Op[list[str]]:
    """Return nodes whose task does not exist, or ended without resolving them."""
    return [node for (node,) in (yield from rows(SQL["get_lost_nodes"](limit=limit, excluded=list(excluded))))]


def resolve_lost_nodes(nodes: Sequence[str]) -> Op[None]:
    yield from rows(SQL["resolve_lost_nodes"](ids=list(nodes), error=encode_error(LOST)))


def _stop(workflow_id: str, status: WorkflowStatus, reason: TaskError, *limits: Query) -> Op[bool]:
    root = yield from _begin_and_lock(workflow_id, *limits)
    error, task_ids, stopped = encode_error(reason), list[str](), list[str]()
    if root:
        found = yield from rows(SQL["stop_runs"](root=root, id=workflow_id, status=status.value, error=error))
        stopped = [run for run, _ in found]
    if stopped:
        found = yield from rows(SQL["get_tasks_of_runs"](runs=stopped))
        task_ids = [task_id for (task_id,) in found]
        yield from execute(*cancel_queries(task_ids), SQL["stop_nodes"](runs=stopped, id=workflow_id, error=error))
    yield from _run_steps_and_commit(root)
    yield from rows(notify_done(task_ids))  # after the commit: a waiter reads at once, and must see the ended tasks
    return bool(stopped)


def _begin_and_lock(workflow_id: str, *limits: Query) -> Op[str | None]:
    """Begin a transaction and lock the tree. Return its root, or None if the run does not exist."""
    *_, found = yield from execute(advance.SQL["begin_step"](), *limits, SQL["lock_tree"](id=workflow_id))
    return found[0][0] if found else None


def _run_steps_and_commit(root: str | None) -> Op[None]:
    yield from advance.run_steps_in_transaction([root] if root else [])
    yield from rows(advance.SQL["commit_step"]())
