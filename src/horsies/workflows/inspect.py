"""Inspect: read what is known of runs, change nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from horsies.db.statement import Op, Row, execute, load, one, plan_for_values, rows
from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import BuiltTask, Graph, Join, Node, NodeKind, NodeStatus, WorkflowStatus
from horsies.model.result import TaskError
from horsies.model.task import TaskId, TaskOptions
from horsies.tasks.inspect import decode_stored_error
from horsies.workflows.render import States, Way

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
    made: BuiltTask
    result: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class StuckWorkflow:
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
        made=BuiltTask(made_by, is_list=makes_list),
        result=result,
        error=error,
    )


def get_graph_view(workflow_id: str) -> Op[tuple[Graph, States]]:
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
                terms=TaskOptions(task_name, queue_name) if task_name else None,
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


def get_stuck() -> Op[list[StuckWorkflow]]:
    """None, ever, for longer than a step or the keeper's next look."""
    found = yield from rows(SQL["get_stuck_trees"]())
    return [StuckWorkflow(*row) for row in found]


# --------
# Browse: which runs there are, and one of them with all that is in it. For those who look from outside; changes nothing.


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """A run of a workflow. `left` is how many of its nodes have not ended."""

    id: str
    name: str
    status: WorkflowStatus
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline: datetime | None
    left: int
    error: TaskError | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What decides whether a run can be paused, resumed, cancelled or retried. `root_id` is None for one that was started."""

    run: WorkflowRun
    root_id: str | None
    has_paused_parts: bool


@dataclass(frozen=True, slots=True)
class NodeOfRun:
    """`below` is the run of a sub-workflow; `items` counts those of a map by their status."""

    node_id: str
    index: int
    kind: NodeKind
    status: NodeStatus
    task_name: str | None
    task_id: TaskId | None
    started_at: datetime | None
    finished_at: datetime | None
    error: TaskError | None
    below: "RunTree | None"
    items: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class RunTree:
    """The nodes of a map are its items."""

    run: WorkflowRun
    is_map: bool
    nodes: Sequence[NodeOfRun]


def list_runs(
    *,
    limit: int,
    statuses: Sequence[WorkflowStatus] = (),
    name: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: str | None = None,
) -> Op[list[WorkflowRun]]:
    """Newest first; `after` is the last id of the page before."""
    found = yield from plan_for_values(
        SQL["list_runs"](
            statuses=[status.value for status in statuses] or None,
            name=name,
            since=since,
            until=until,
            after=after,
            limit=limit,
        )
    )
    return [_run(row) for row in found]


def get_run_summary(workflow_id: str) -> Op[RunSummary | None]:
    row = yield from one(SQL["get_run"](id=workflow_id))
    return None if row is None else RunSummary(_run(row[:-2]), *row[-2:])


def get_run_tree(workflow_id: str) -> Op[RunTree]:
    """A run with its nodes, and the runs that these stand for. Of a map in it, only how many items are where."""
    runs = yield from rows(SQL["get_descendant_runs"](id=workflow_id))
    if not runs:
        raise NodeNotFoundError(f"no workflow {workflow_id} is known")
    maps = [row[0] for row in runs[:-1] if row[-2]]
    others = [row[0] for row in runs if row[0] not in maps]
    nodes, counts = yield from execute(SQL["get_nodes_of_runs"](runs=others), SQL["count_items"](runs=maps))
    items: dict[str, dict[str, int]] = {run: {} for run in maps}
    for run, status, count in counts:
        items[run][status] = count
    return _tree(runs, nodes, items)


def _tree(runs: Sequence[Row], nodes: Sequence[Row], items: Mapping[str, Mapping[str, int]]) -> RunTree:
    below: dict[str, Any] = {}  # by the node that a run stands for; the deepest come first
    by_run: dict[str, list[Row]] = {}
    for row in nodes:
        by_run.setdefault(row[0], []).append(row)
    for *known, is_map, parent in runs:
        nodes_of_run = [_node_of_run(row, below.get(row[1])) for row in by_run.get(known[0], ())]
        below[parent] = items[known[0]] if known[0] in items else RunTree(_run(known), is_map, nodes_of_run)
    return below[runs[-1][-1]]


def _run(row: Sequence[Any]) -> WorkflowRun:
    run_id, name, status, *known, error = row
    return WorkflowRun(run_id, name, WorkflowStatus(status), *known, error=decode_stored_error(error))


def _node_of_run(row: Row, below: Any) -> NodeOfRun:
    _, _, node_id, index, kind, status, task_name, task_id, started_at, finished_at, error = row
    return NodeOfRun(
        node_id=node_id,
        index=index,
        kind=NodeKind(kind),
        status=NodeStatus(status),
        task_name=task_name,
        task_id=task_id,
        started_at=started_at,
        finished_at=finished_at,
        error=decode_stored_error(error),
        below=below if isinstance(below, RunTree) else None,
        items=None if isinstance(below, RunTree) else below,
    )
