"""Start: a whole tree of runs, and the tasks of its first nodes, in one statement, however large it is.

What begins at once is known before anything is written: the nodes at the top that wait for nobody, and the same inside of those that are
sub-workflows. They are written as begun, with their tasks, so that a start needs no step (`advance.py`) and leaves nothing to one.

All ids are made here, and references between nodes become ids of rows, also those from a sub-workflow to a node above it. So the database
never has to find its way by names, and a start whose answer was lost is repeated word for word: it finds its run there, as another start
under the same id does, and changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic_core import to_json

from horsies.db.statement import Op, Query, Rows, execute_then_notify, load, rows
from horsies.model.errors import PayloadError, WorkflowConflictError
from horsies.model.graph import Graph, Node, NodeKind, NodeStatus, Ref, RefMode, WorkflowStatus
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.task import TaskId, TaskOptions
from horsies.tasks.ids import new_task_id, new_task_ids
from horsies.workflows.advance import settle

SQL = load(__file__)

NOTIFY_AFTER_COMMIT = 1_000
"""Of more tasks workers are told in the transaction: looking each of them up again would cost more than others lose by waiting."""

MOST_START_BYTES: Final = 2 * MOST_BYTES
"""Of JSON in one start. It is one parameter of one statement, which PostgreSQL limits to 1 GB and copies more than once while it reads it."""

# A map is opened by a step: most wait for their list, and the others are few.
BEGUN = {NodeKind.TASK: NodeStatus.ENQUEUED, NodeKind.WORKFLOW: NodeStatus.RUNNING, NodeKind.MAP: NodeStatus.READY}


@dataclass(frozen=True, slots=True)
class StartedNode:
    """All that is written at a start."""

    root: str
    name: str
    runs: str
    nodes: str
    task_ids: list[TaskId]
    """Of its first nodes."""
    needs_step: bool
    """Whether a map is among its first nodes."""
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A graph with the ids of its rows. `lineage` are the runs above it, from the top down."""

    graph: Graph
    id: str
    parent_node: str | None
    lineage: "tuple[PlannedRun, ...]"
    is_begun: bool
    node_ids: Sequence[str]
    inner_ids: Sequence[str]
    """Of each node its task, or the run that it stands for."""

    def named_by(self, ref: Ref) -> str:
        return (*self.lineage, self)[-1 - ref.up].node_ids[ref.node]

    def begins(self, node: Node) -> bool:
        return self.is_begun and not node.waits_for


def plan(graph: Graph, workflow_id: str | None = None, *, most_bytes: int = MOST_START_BYTES) -> StartedNode:
    """Raises PayloadError if it is too large to be started."""
    root = workflow_id or new_task_id()
    runs = list(_runs(graph, root))
    nodes = [row for run in runs for row in _node_rows(run)]
    of_arguments = sum(len(row["args"]) + len(row.get("item") or "") for row in nodes)
    if of_arguments > most_bytes:  # looked at first: not to write gigabytes for nothing
        raise _too_large(graph, len(nodes), of_arguments, of_arguments, most_bytes)
    written = to_json(nodes)
    if len(written) > most_bytes:
        raise _too_large(graph, len(nodes), len(written), of_arguments, most_bytes)
    return StartedNode(
        root=root,
        name=graph.name,
        runs=to_json([_run_row(run, root) for run in runs]).decode(),
        nodes=written.decode(),
        task_ids=[row["task_id"] for row in nodes if row["task_id"]],
        needs_step=any(row["status"] == NodeStatus.READY for row in nodes),
    )


def _too_large(graph: Graph, nodes: int, size: int, of_arguments: int, most_bytes: int) -> PayloadError:
    return PayloadError(
        f"workflow {graph.name!r}: a start of its {nodes:,} nodes takes at least {size:,} bytes of JSON, and {most_bytes:,} is the most; "
        f"{of_arguments:,} of them are arguments, the rest grows with nodes and edges; keep the data elsewhere and pass where it is, put a node that "
        "joins between layers that wait for all of each other, or start several workflows"
    )


def start(beginning: StartedNode) -> Op[str]:
    """The id of the run, which may have been there before."""
    if len(beginning.task_ids) > NOTIFY_AFTER_COMMIT:
        root = yield from start_within(beginning)
    else:
        told = SQL["notify_started"](ids=beginning.task_ids)
        answer = yield from execute_then_notify(_insert(beginning, "after_commit"), after_commit=told)
        root = yield from _started(beginning, answer)
    if beginning.needs_step:
        yield from settle([root])
    return root


def start_within(beginning: StartedNode) -> Op[str]:
    """The same inside a transaction that somebody else begins and ends. A step in it would depend on their search_path, so it is left to the keeper."""
    answer = yield from rows(_insert(beginning))
    return (yield from _started(beginning, answer))


def _insert(beginning: StartedNode, notify: Literal["", "after_commit"] = "") -> Query:
    """The trigger notifies workers at the commit, unless they are told afterwards (see `tasks/enqueue.py`)."""
    return SQL["insert_tree"](runs=beginning.runs, nodes=beginning.nodes, trace=beginning.trace, notify=notify)


def _started(beginning: StartedNode, answer: Rows) -> Op[str]:
    ((is_new, _),) = answer
    if not is_new:
        ((name,),) = yield from rows(SQL["get_run_name"](root=beginning.root))
        if name != beginning.name:
            raise WorkflowConflictError(
                f"workflow {beginning.root} is a run of {name!r}, so {beginning.name!r} was not started; choose another workflow_id"
            )
    return beginning.root


# -- rows


def _runs(
    graph: Graph,
    run_id: str,
    parent_node: str | None = None,
    lineage: tuple[PlannedRun, ...] = (),
    *,
    is_begun: bool = True,
) -> Iterator[PlannedRun]:
    size = len(graph.nodes)
    run = PlannedRun(graph, run_id, parent_node, lineage, is_begun, new_task_ids(size), new_task_ids(size))
    yield run
    for node in graph.nodes:
        if node.child is not None:
            names = run.inner_ids[node.index], run.node_ids[node.index]
            yield from _runs(node.child, *names, (*lineage, run), is_begun=run.begins(node))


def _run_row(run: PlannedRun, root: str) -> dict[str, Any]:
    graph = run.graph
    return {
        "id": run.id,
        "root_id": root,
        "ancestors": [above.id for above in run.lineage],
        "parent_node": run.parent_node,
        "name": graph.name,
        "definition_key": graph.definition_key,
        "status": WorkflowStatus.RUNNING if run.is_begun else WorkflowStatus.PENDING,
        "on_error": graph.on_error,
        "output": graph.output,
        "success_cases": graph.success_cases or None,
        "optional": sorted(graph.optional),
        "unresolved": len(graph.nodes),
        "time_limit_ms": graph.time_limit_ms,
    }


def _node_rows(run: PlannedRun) -> Iterator[dict[str, Any]]:
    for node, dependents, awaited_by in zip(
        run.graph.nodes, run.graph.dependents(), run.graph.awaited_by(), strict=True
    ):
        is_begun, is_task, made = run.begins(node), node.kind is NodeKind.TASK, node.made
        yield {
            "id": run.node_ids[node.index],
            "workflow_id": run.id,
            "index": node.index,
            "node_id": node.node_id,
            "kind": node.kind,
            "status": BEGUN[node.kind] if is_begun else NodeStatus.PENDING,
            "task_id": run.inner_ids[node.index] if is_begun and is_task else None,
            "waits_for": node.counted,
            "dependents": [run.node_ids[index] for index in dependents],
            "needed": node.needed,
            "allow_failed_deps": node.allow_failed_deps,
            "args": node.args,
            "source": run.named_by(each) if (each := node.each) and node.items is None else None,
            "max_parallel": node.max_parallel,
            "child_id": None if is_task else run.inner_ids[node.index],
            "made_by": made.task_name,
            "makes_list": made.is_list,
            **_seldom_given(run, node, awaited_by),
            **_inputs(run, node),
            **(_terms(node.terms) if node.terms else {}),
        }


def _seldom_given(run: PlannedRun, node: Node, awaited_by: Sequence[int]) -> dict[str, Any]:
    """What most nodes do not have is left out: a start is one JSON text, and its size is limited."""
    given = {
        "awaits": node.awaits,
        "awaits_left": len(node.awaits),
        "awaited_by": [run.node_ids[index] for index in awaited_by],
        "item": node.items,
    }
    limits = {"max_failures": node.max_failures, "min_item_success": node.min_item_success}
    return {name: value for name, value in given.items() if value} | {
        name: value for name, value in limits.items() if value is not None
    }


def _inputs(run: PlannedRun, node: Node) -> dict[str, Any]:
    """The nodes whose results the task is handed, each once, and where these stand: by their place in that list. After them stand the lists of
    the results of maps (see the SQL function `node_inputs`).
    """
    places: dict[str, int] = {}

    def place_of(node_id: str) -> int:
        return places.setdefault(node_id, len(places))

    context = [place_of(run.node_ids[index]) for index in node.ctx_from]
    whole = [ref for ref in node.refs if ref.mode in {RefMode.VALUE, RefMode.RESULT}]
    taken = [place_of(run.named_by(ref)) for ref in whole]
    maps = {run.named_by(ref): None for ref in node.refs if ref.mode is RefMode.RESULTS}
    lists = {map_id: len(places) + number for number, map_id in enumerate(maps)}
    refs = [
        *([ref.path, place, ref.mode] for ref, place in zip(whole, taken, strict=True)),
        # Read as a value, also by a worker of a release that does not know this mode.
        *([ref.path, lists[run.named_by(ref)], RefMode.VALUE] for ref in node.refs if ref.mode is RefMode.RESULTS),
        *([ref.path, None, ref.mode] for ref in node.refs if ref.mode is RefMode.EACH),
    ]
    return {
        "refs": {"refs": refs, "context": context},
        "inputs": list(places),
        **({"results_of": list(maps)} if maps else {}),
        "takes_inputs": bool(refs or node.wants),
        "wants_meta": bool(node.wants),
    }


def _terms(terms: TaskOptions) -> dict[str, Any]:
    retry = terms.retry
    return {
        "task_name": terms.task_name,
        "queue_name": terms.queue_name,
        "priority": terms.priority,
        "timeout_ms": terms.timeout_ms,
        "good_until": terms.good_until.isoformat() if terms.good_until else None,
        "retry_delays_ms": retry.delays_ms if retry else None,
        "retry_jitter": retry.jitter if retry else 0.0,
        "retry_for": retry.codes if retry else None,
    }
