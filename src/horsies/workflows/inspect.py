"""Read the state of runs, for handles, the command line and `horsies doctor`. Nothing here changes a run."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from horsies.db.statement import Op, Query, Row, Rows, execute, load, one, plan_for_values, rows
from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import BuiltTask, Graph, Join, Node, NodeKind, NodeStatus, OnError, WorkflowStatus
from horsies.model.result import TaskError
from horsies.model.sensitive import hide_error
from horsies.model.task import TaskId, TaskOptions
from horsies.tasks.inspect import decode_stored_error
from horsies.workflows.inputs import NodeResult
from horsies.workflows.render import NodePath, States

MAX_SCANNED = 2_000
"""How many runs one page of a list reads."""

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The state of one node of a run. `task_id` is the task that runs it, once it is enqueued; `workflow_id` is the run of a sub-workflow or a map."""

    node_id: str
    kind: NodeKind
    status: NodeStatus
    task_name: str | None
    task_id: TaskId | None
    workflow_id: str | None
    finished_at: datetime | None
    error: TaskError | None


@dataclass(frozen=True, slots=True)
class StoredNode:
    """A node of a run with its result."""

    info: NodeInfo
    result: NodeResult


@dataclass(frozen=True, slots=True)
class StuckWorkflow:
    """A tree of runs that nothing would advance, and why."""

    root_id: str
    reason: str


def get_status(workflow_id: str) -> Op[WorkflowStatus | None]:
    row = yield from one(SQL["get_status"](id=workflow_id))
    return None if row is None else WorkflowStatus(row[0])


def get_nodes(workflow_id: str, node_id: str | None = None, *, with_results: bool = False) -> Op[list[StoredNode]]:
    """Return the nodes of the run itself, not of its descendants, in the order of the graph."""
    query = SQL["get_nodes"](id=workflow_id, node_id=node_id, with_results=with_results)
    return [_to_node(row) for row in (yield from rows(query))]


def get_last_nodes(workflow_id: str) -> Op[list[StoredNode]]:
    """Return the nodes of a run that no other node waits for, with their results."""
    return [_to_node(row) for row in (yield from rows(SQL["get_last_nodes"](id=workflow_id)))]


def _to_node(row: Row) -> StoredNode:
    node_id, _, kind, status, *task_and_times, made_by, makes_list, result, error = row
    decoded = decode_stored_error(error)  # a row that was edited by hand must not hide the other nodes
    info = NodeInfo(node_id, NodeKind(kind), NodeStatus(status), *task_and_times, error=decoded)
    return StoredNode(info, NodeResult(node_id, info.status, BuiltTask(made_by, is_list=makes_list), result, error))


def get_stuck_workflows() -> Op[list[StuckWorkflow]]:
    """Return trees in a state that lasts only until the next step, or the next check of the maintenance leader, in a healthy system."""
    return [StuckWorkflow(*row) for row in (yield from rows(SQL["get_stuck_trees"]()))]


# -- graphs


def get_graph_view(workflow_id: str) -> Op[tuple[Graph, States]]:
    """Return the graph of a run, as far as rendering needs it, and the state of each node."""
    found = yield from rows(SQL["get_tree"](id=workflow_id))
    if not found:
        raise NodeNotFoundError(f"there is no workflow {workflow_id}")
    rows_by_run: dict[str, list[Row]] = {}  # the deepest runs first, so the root is the last
    for row in found:
        rows_by_run.setdefault(row[0], []).append(row)
    views: dict[str, tuple[Graph, States]] = {}  # by the parent node of the run
    for run in rows_by_run.values():
        views[run[0][2]] = _to_view(run, views)
    return views[found[-1][2]]


def _to_view(run: list[Row], views: Mapping[str, tuple[Graph, States]]) -> tuple[Graph, States]:
    states: dict[NodePath, NodeStatus] = {}
    nodes: list[Node] = []
    for row in run:
        row_id, index, node_id, kind, status, task_name, queue_name, waits_for, needed, allowed, awaits = row[3:]
        states[index,] = NodeStatus(status)
        child = None
        if row_id in views:
            child, child_states = views[row_id]
            states |= {(index, *path): state for path, state in child_states.items()}
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


# -- runs, for the command line


@dataclass(frozen=True, slots=True)
class WorkflowRun:
    """A run of a workflow. `left` is the number of its nodes that have not ended."""

    id: str
    name: str
    status: WorkflowStatus
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline: datetime | None
    left: int
    error: TaskError | None
    """In a list, a run that a failed node has paused has the error of that node."""
    node_counts: Mapping[NodeStatus, int] = field(default_factory=dict[NodeStatus, int])
    """In a list: the number of its nodes by status, of the first 1 000, without those of sub-workflows and maps."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What decides whether a run can be paused, resumed, cancelled or retried. `root_id` is None if it is a root run."""

    run: WorkflowRun
    root_id: str | None
    has_paused_descendants: bool


@dataclass(frozen=True, slots=True)
class RunNode:
    """A node of a run. `child` is the run of a sub-workflow; `items` has the number of items of a map by status."""

    node_id: str
    index: int
    kind: NodeKind
    status: NodeStatus
    task_name: str | None
    task_id: TaskId | None
    started_at: datetime | None
    finished_at: datetime | None
    error: TaskError | None
    child: "RunTree | None"
    items: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class RunTree:
    """A run with its nodes. The nodes of a map are its items."""

    run: WorkflowRun
    is_map: bool
    nodes: Sequence[RunNode]


@dataclass(frozen=True, slots=True)
class WorkflowPage:
    """A part of a list of runs. `next_after` is the `after` of the next page; None if this is the last one."""

    runs: Sequence[WorkflowRun]
    next_after: str | None
    is_complete: bool = True
    """False: so many runs were read that did not match that the search was stopped before the page was full. It continues with `next_after`."""
    searched_until: datetime | None = None
    """If it is not complete: all runs that were created since then were searched."""


def list_runs(
    *,
    limit: int,
    statuses: Sequence[WorkflowStatus] = (),
    name: str | None = None,
    error_code: str | None = None,
    message: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: str | None = None,
) -> Op[WorkflowPage]:
    """Return root runs, newest first."""
    query = SQL["list_runs"](
        statuses=[status.value for status in statuses] or None,
        live=bool(statuses) and {*statuses} <= {WorkflowStatus.RUNNING, WorkflowStatus.PAUSED},
        name=name,
        error_code=error_code,
        message=message and json.dumps(message, ensure_ascii=False)[1:-1],
        since=since,
        until=until,
        after=after,
        limit=limit + 1,
        scanned=MAX_SCANNED,
    )
    runs: list[WorkflowRun] = []
    for is_match, is_last, *row, counts in (yield from plan_for_values(query)):
        run = _to_run(row)
        if is_match and len(runs) == limit:
            return WorkflowPage(runs, runs[-1].id)
        if is_match:
            runs.append(replace(run, node_counts={NodeStatus(status): count for status, count in counts.items()}))
        is_over = since is not None and run.created_at < since  # older ones do not match either
        if is_last and not is_over:
            return WorkflowPage(runs, run.id, is_complete=False, searched_until=run.created_at)
    return WorkflowPage(runs, None)


def get_run_summary(workflow_id: str) -> Op[RunSummary | None]:
    row = yield from one(SQL["get_run"](id=workflow_id))
    return None if row is None else RunSummary(_to_run(row[:-2]), *row[-2:])


def get_run_tree(workflow_id: str) -> Op[RunTree]:
    """Return a run with its nodes and the runs of its sub-workflows. Items of maps inside it are only counted."""
    runs = yield from rows(SQL["get_descendant_runs"](id=workflow_id))
    if not runs:
        raise NodeNotFoundError(f"there is no workflow {workflow_id}")
    item_counts: dict[str, dict[str, int]] = {row[0]: {} for row in runs[:-1] if row[-2]}  # by the run of a map
    others = [row[0] for row in runs if row[0] not in item_counts]
    nodes, counts = yield from execute(
        SQL["get_nodes_of_runs"](runs=others), SQL["count_items"](runs=list(item_counts))
    )
    for run_id, status, count in counts:
        item_counts[run_id][status] = count
    nodes_by_run: dict[str, list[Row]] = {}
    for row in nodes:
        nodes_by_run.setdefault(row[0], []).append(row)
    children: dict[str, Any] = {}  # by the parent node; the deepest runs come first
    for *run, is_map, parent_node in runs:
        run_nodes = [_to_run_node(row, children.get(row[1])) for row in nodes_by_run.get(run[0], ())]
        children[parent_node] = (
            item_counts[run[0]] if run[0] in item_counts else RunTree(_to_run(run), is_map, run_nodes)
        )
    return children[runs[-1][-1]]


def _to_run(row: Sequence[Any]) -> WorkflowRun:
    run_id, name, status, *fields, error, quotes_sensitive = row
    return WorkflowRun(run_id, name, WorkflowStatus(status), *fields, error=_to_error(error, quotes_sensitive))


def _to_error(stored: str | None, is_sensitive: bool) -> TaskError | None:  # noqa: FBT001 - a column
    decoded = decode_stored_error(stored)
    return hide_error(decoded) if is_sensitive else decoded


def _to_run_node(row: Row, child: Any) -> RunNode:
    _, _, node_id, index, kind, status, *task_and_times, error, is_sensitive = row
    return RunNode(
        node_id,
        index,
        NodeKind(kind),
        NodeStatus(status),
        *task_and_times,
        error=_to_error(error, is_sensitive),
        child=child if isinstance(child, RunTree) else None,
        items=None if isinstance(child, RunTree) else child,
    )


# -- one run, for a page that shows it while it changes

MAX_COUNTED = 10_000
"""How many nodes of a run, and of each run inside it, are read to say how far it is."""

_STATUSES_BY_LETTER = {"Y" if status is NodeStatus.READY else status[0]: status for status in NodeStatus}


@dataclass(frozen=True, slots=True)
class InnerRun:
    """How far a sub-workflow or a map is: its nodes or items by status, of the first 10 000."""

    workflow_id: str
    status: WorkflowStatus
    left: int
    counts: Mapping[NodeStatus, int]


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run and of all its nodes, as small as possible.

    `letters` has one letter for each of its first 10 000 nodes, in their order: the first of the status, and Y for READY. `inner` has the runs of those
    that are sub-workflows or maps, by their index.
    """

    summary: RunSummary
    is_map: bool
    on_error: OnError
    parent_id: str | None
    """The run that it is a part of, and of which of its nodes."""
    parent_name: str | None
    parent_node: str | None
    letters: str
    inner: Mapping[int, InnerRun]

    @property
    def counts(self) -> Mapping[NodeStatus, int]:
        """The number of its nodes by status, of the first 10 000."""
        found = Counter(self.letters)
        return {status: found[letter] for letter, status in _STATUSES_BY_LETTER.items() if found[letter]}


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of a run. `child_id` is the run of a sub-workflow or a map, if it has begun."""

    node_id: str
    index: int
    kind: NodeKind
    status: NodeStatus
    task_name: str | None
    task_id: TaskId | None
    child_id: str | None
    started_at: datetime | None
    finished_at: datetime | None
    error: TaskError | None
    is_sensitive: bool


@dataclass(frozen=True, slots=True)
class NodePage:
    """A part of the nodes of a run. `next_first` is the `first` of the next page; None if this is the last one."""

    nodes: Sequence[NodeRow]
    next_first: int | None


def get_run_state(workflow_id: str) -> Op[RunState | None]:
    runs, places, ((letters,),), counts = yield from execute(
        SQL["get_run"](id=workflow_id),
        SQL["get_run_place"](id=workflow_id),
        SQL["get_node_letters"](id=workflow_id, counted=MAX_COUNTED),
        SQL["count_inner_nodes"](id=workflow_id, counted=MAX_COUNTED),
    )
    if not runs or not places:
        return None
    (row,), ((is_map, stored_on_error, parent_id, parent_name, parent_node),) = runs, places
    run = _to_run(row[:-2])
    on_error = OnError.PAUSE if stored_on_error == OnError.PAUSE else OnError.FAIL  # whatever is stored
    inner: dict[int, InnerRun] = {}
    counts_by_index: dict[int, dict[NodeStatus, int]] = {}
    for index, run_id, status, left, node_status, count in counts:
        found = counts_by_index.setdefault(index, {})
        if count:
            found[NodeStatus(node_status)] = count
        inner[index] = InnerRun(run_id, WorkflowStatus(status), left, found)
    return RunState(RunSummary(run, *row[-2:]), is_map, on_error, parent_id, parent_name, parent_node, letters, inner)


def list_nodes(
    workflow_id: str, *, statuses: Sequence[NodeStatus], text: str | None, first: int, limit: int
) -> Op[NodePage]:
    """Return nodes of the run itself, from this index on."""
    found = _to_rows((yield from rows(_nodes_query(workflow_id, statuses, text, first, limit + 1))))
    return NodePage(found[:limit], found[limit].index if len(found) > limit else None)


def list_first_failures(workflow_ids: Sequence[str]) -> Op[Mapping[str, NodeRow]]:
    """Return the first failed node of each of these runs that has one."""
    if not workflow_ids:
        return {}
    results = yield from execute(
        *(_nodes_query(each, [NodeStatus.FAILED], None, first=0, limit=1) for each in workflow_ids)
    )
    return {each: _to_rows(found)[0] for each, found in zip(workflow_ids, results, strict=True) if found}


def _nodes_query(workflow_id: str, statuses: Sequence[NodeStatus], text: str | None, first: int, limit: int) -> Query:
    return SQL["list_nodes"](
        id=workflow_id,
        statuses=[status.value for status in statuses or NodeStatus],
        text=text or "",
        first=first,
        limit=limit,
    )


def _to_rows(rows_of_nodes: Rows) -> list[NodeRow]:
    found: list[NodeRow] = []
    for node_id, index, kind, status, task_name, task_id, child_id, *times, error, is_sensitive in rows_of_nodes:
        shown = _to_error(error, is_sensitive)
        place = (node_id, index, NodeKind(kind), NodeStatus(status))
        found.append(NodeRow(*place, task_name, task_id, child_id, times[0], times[1], shown, is_sensitive))
    return found
