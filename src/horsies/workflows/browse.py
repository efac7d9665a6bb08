"""Browse: which runs there are, and one of them with all that is in it. For those who look from outside; changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from horsies.db.load import load
from horsies.db.op import Op, Row, ask, one, rows
from horsies.db.values import planned_for_values
from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import NodeKind, NodeStatus, WorkflowStatus
from horsies.model.result import TaskError
from horsies.model.task import TaskId
from horsies.tasks.inspect import stored_error

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Run:
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
class Footing:
    """What decides whether a run can be paused, resumed, cancelled or retried. `root_id` is None for one that was started."""

    run: Run
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

    run: Run
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
) -> Op[list[Run]]:
    """Newest first; `after` is the last id of the page before."""
    found = yield from planned_for_values(
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


def get_footing(workflow_id: str) -> Op[Footing | None]:
    row = yield from one(SQL["get_run"](id=workflow_id))
    return None if row is None else Footing(_run(row[:-2]), *row[-2:])


def get_run_tree(workflow_id: str) -> Op[RunTree]:
    """A run with its nodes, and the runs that these stand for. Of a map in it, only how many items are where."""
    runs = yield from rows(SQL["get_descendant_runs"](id=workflow_id))
    if not runs:
        raise NodeNotFoundError(f"no workflow {workflow_id} is known")
    maps = [row[0] for row in runs[:-1] if row[-2]]
    others = [row[0] for row in runs if row[0] not in maps]
    nodes, counts = yield from ask(SQL["get_nodes_of_runs"](runs=others), SQL["count_items"](runs=maps))
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
        nodes_of_run = [_node(row, below.get(row[1])) for row in by_run.get(known[0], ())]
        below[parent] = items[known[0]] if known[0] in items else RunTree(_run(known), is_map, nodes_of_run)
    return below[runs[-1][-1]]


def _run(row: Sequence[Any]) -> Run:
    run_id, name, status, *known, error = row
    return Run(run_id, name, WorkflowStatus(status), *known, error=stored_error(error))


def _node(row: Row, below: Any) -> NodeOfRun:
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
        error=stored_error(error),
        below=below if isinstance(below, RunTree) else None,
        items=None if isinstance(below, RunTree) else below,
    )
