"""Inspect: read what is known of runs, change nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from horsies.db.load import load
from horsies.db.op import Op, Row, one, rows
from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import Graph, Join, Made, Node, NodeKind, NodeStatus, WorkflowStatus
from horsies.model.task import TaskId, Terms
from horsies.workflows.picture import States, Way

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
    return [_node(*row) for row in found]


def get_last_nodes(workflow_id: str) -> Op[list[StoredNode]]:
    """The nodes of a run that no other waits for, with their results."""
    found = yield from rows(SQL["get_last_nodes"](id=workflow_id))
    return [_node(*row) for row in found]


def _node(node_id: str, index: int, kind: str, status: str, *known: Any) -> StoredNode:
    task_name, task_id, child_id, finished_at, made_by, makes_list, result, error = known
    return StoredNode(
        node_id=node_id,
        index=index,
        kind=NodeKind(kind),
        status=NodeStatus(status),
        task_name=task_name,
        task_id=task_id,
        child_id=child_id,
        finished_at=finished_at,
        made=Made(made_by, is_list=makes_list),
        result=result,
        error=error,
    )


def get_picture(workflow_id: str) -> Op[tuple[Graph, States]]:
    """What a picture shows of a run: its graph, as far as it matters for that, and where each node is."""
    found = yield from rows(SQL["get_tree"](id=workflow_id))
    if not found:
        raise NodeNotFoundError(f"no workflow {workflow_id} is known")
    below: dict[str, tuple[Graph, States]] = {}  # by the node that a run stands for; the deepest come first
    for parent, run in _by_run(found):
        below[parent] = _drawn(run, below)
    return below[""]


def _by_run(found: list[Row]) -> list[tuple[str, list[Row]]]:
    runs: dict[str, list[Row]] = {}
    for row in found:
        runs.setdefault(row[0], []).append(row)
    last = list(runs)[-1]
    return [("" if run == last else rows[0][2], rows) for run, rows in runs.items()]


def _drawn(run: list[Row], below: Mapping[str, tuple[Graph, States]]) -> tuple[Graph, States]:
    states: dict[Way, NodeStatus] = {}
    nodes: list[Node] = []
    for row in run:
        row_id, index, node_id, kind, status, task_name, queue_name, waits_for, needed, allowed, awaits = row[3:]
        states[index,] = NodeStatus(status)
        child = None
        if row_id in below:
            child, inner = below[row_id]
            states |= {(index, *way): state for way, state in inner.items()}
        join = Join.ALL if needed == len(waits_for) else Join.ANY if needed == 1 else Join.QUORUM
        nodes.append(
            Node(
                index,
                node_id,
                NodeKind(kind),
                terms=Terms(task_name, queue_name) if task_name else None,
                waits_for=tuple(sorted({*waits_for, *(awaits or ())})),
                awaits=tuple(awaits or ()),
                uncounted=frozenset({*(awaits or ())} - {*waits_for}),
                join=join,
                min_success=needed if join is Join.QUORUM else None,
                allow_failed_deps=allowed,
                child=child,
            )
        )
    return Graph(run[0][1], tuple(nodes)), states


def get_stuck() -> Op[list[Stuck]]:
    """None, ever, for longer than a step or the keeper's next look."""
    found = yield from rows(SQL["get_stuck_trees"]())
    return [Stuck(*row) for row in found]
