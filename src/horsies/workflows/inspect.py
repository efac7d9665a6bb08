"""Inspect: read what is known of runs, change nothing."""

from dataclasses import dataclass
from datetime import datetime

from horsies.db.load import load
from horsies.db.op import Op, one, rows
from horsies.model.graph import Made, NodeKind, NodeStatus, WorkflowStatus
from horsies.model.task import TaskId

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node of a run. `task_id` is its task, once it is enqueued; `child_id` the run that it stands for, if it is a sub-workflow or
    a map. `result` and `error` are JSON.
    """

    node_id: str
    index: int
    kind: NodeKind
    status: NodeStatus
    task_name: str | None
    task_id: TaskId | None
    child_id: str | None
    finished_at: datetime | None
    made: Made
    result: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Stuck:
    """A tree of runs that would not move by itself, and why."""

    root_id: str
    why: str


def get_status(workflow_id: str) -> Op[WorkflowStatus | None]:
    row = yield from one(SQL["get_status"](id=workflow_id))
    return None if row is None else WorkflowStatus(row[0])


def get_nodes(workflow_id: str, node_id: str | None = None, *, with_results: bool = False) -> Op[list[StoredNode]]:
    """Of the run itself, not of those below it; in the order of the graph."""
    found = yield from rows(SQL["get_nodes"](id=workflow_id, node_id=node_id, with_results=with_results))
    return [
        StoredNode(name, index, NodeKind(kind), NodeStatus(status), *known, Made(made_by, is_list=makes_list), result, error)
        for name, index, kind, status, *known, made_by, makes_list, result, error in found
    ]


def get_stuck() -> Op[list[Stuck]]:
    """None, ever, for longer than a step or the keeper's next look."""
    found = yield from rows(SQL["get_stuck"]())
    return [Stuck(*row) for row in found]
