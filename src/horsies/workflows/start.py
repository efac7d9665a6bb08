"""Start a workflow: write a tree of runs of any size, with the tasks of its first nodes, in one statement.

Which nodes start immediately is known before anything is written: the nodes of the root run without dependencies, and the same inside
those of them that are sub-workflows. They are written as started, with their tasks, so no step (`advance.py`) is needed.

All ids are generated here, and references between nodes become ids of rows, also those from a sub-workflow to a node of an outer one. So
the database never has to resolve names, and a start whose answer was lost is repeated with the same ids. Like any other start with
the id of an existing run, it finds that run and changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic_core import to_json

from horsies.db.statement import Op, Query, Rows, execute_then_notify, load, rows
from horsies.model.errors import PayloadError, WorkflowConflictError
from horsies.model.graph import Graph, Node, NodeKind, NodeStatus, Ref, RefMode, WorkflowStatus
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.send_options import sent_values
from horsies.model.task import TaskId
from horsies.tasks.ids import new_task_id, new_task_ids
from horsies.workflows.advance import run_steps

SQL = load(__file__)

# With more tasks, workers are notified in the transaction: reading all these tasks again after the commit would cost more than other
# transactions lose by waiting for the lock of NOTIFY.
MAX_NOTIFIED_AFTER_COMMIT: Final = 1_000

# JSON of one start. It is one parameter of one statement, which PostgreSQL limits to 1 GB and copies more than once while it parses it.
MAX_START_BYTES: Final = 2 * MOST_BYTES

# A map is expanded by a step: most maps wait for their list, and few are among the first nodes.
STARTED: Final = {
    NodeKind.TASK: NodeStatus.ENQUEUED,
    NodeKind.WORKFLOW: NodeStatus.RUNNING,
    NodeKind.MAP: NodeStatus.READY,
}


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The rows of one start, as JSON. `task_ids` are the tasks of its first nodes; it `needs_step` if a map is among them."""

    root: str
    name: str
    runs: str
    nodes: str
    task_ids: list[TaskId]
    needs_step: bool
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class NewRun:
    """A graph with the ids of its rows. `ancestors` start at the root; `inner_ids` has the task or the run of each node."""

    graph: Graph
    id: str
    parent_node: str | None
    ancestors: "tuple[NewRun, ...]"
    is_started: bool
    node_ids: Sequence[str]
    inner_ids: Sequence[str]

    def source_id(self, ref: Ref) -> str:
        return (*self.ancestors, self)[-1 - ref.up].node_ids[ref.node]

    def starts(self, node: Node) -> bool:
        return self.is_started and not node.waits_for


def plan_start(graph: Graph, workflow_id: str | None = None, *, max_bytes: int = MAX_START_BYTES) -> StartPlan:
    """Return the rows to write. Raise PayloadError if they are too large for one start."""
    root = workflow_id or new_task_id()
    runs = list(_new_runs(graph, root))
    nodes = [row for run in runs for row in _node_rows(run)]
    argument_bytes = sum(len(row["args"]) + len(row.get("item") or "") for row in nodes)
    # The arguments alone are checked first, so as not to encode gigabytes for nothing.
    text = to_json(nodes) if argument_bytes <= max_bytes else b""
    if (size := max(argument_bytes, len(text))) > max_bytes:
        raise PayloadError(
            f"workflow {graph.name!r}: a start of its {len(nodes):,} nodes takes at least {size:,} bytes of JSON, and {max_bytes:,} is the "
            f"most; {argument_bytes:,} of them are arguments, the rest grows with nodes and edges; store the data elsewhere and pass its "
            "location, put a node that joins between layers that wait for all of each other, or start several workflows"
        )
    return StartPlan(
        root=root,
        name=graph.name,
        runs=to_json([_run_row(run, root) for run in runs]).decode(),
        nodes=text.decode(),
        task_ids=[row["task_id"] for row in nodes if row["task_id"]],
        needs_step=any(row["status"] == NodeStatus.READY for row in nodes),
    )


def start(plan: StartPlan, *, max_notified: int = MAX_NOTIFIED_AFTER_COMMIT) -> Op[str]:
    """Write the rows. Return the id of the run, which may have existed before."""
    if len(plan.task_ids) > max_notified:
        root = yield from start_in_transaction(plan)
    else:
        notify = SQL["notify_started"](ids=plan.task_ids)
        answer = yield from execute_then_notify(_insert_tree(plan, "after_commit"), after_commit=notify)
        root = yield from _check_name(plan, answer)
    if plan.needs_step:
        yield from run_steps([root])
    return root


def start_in_transaction(plan: StartPlan) -> Op[str]:
    """Write the rows in a transaction that the caller begins and ends.

    A step in it would depend on the caller's search_path, so it is left to the maintenance leader.
    """
    answer = yield from rows(_insert_tree(plan))
    return (yield from _check_name(plan, answer))


def _insert_tree(plan: StartPlan, notify: Literal["", "after_commit"] = "") -> Query:
    # A trigger notifies workers at the commit, unless they are notified afterwards (see `tasks/enqueue.py`).
    return SQL["insert_tree"](runs=plan.runs, nodes=plan.nodes, trace=plan.trace, notify=notify)


def _check_name(plan: StartPlan, answer: Rows) -> Op[str]:
    ((is_new, _),) = answer
    if not is_new:
        ((name,),) = yield from rows(SQL["get_run_name"](root=plan.root))
        if name != plan.name:
            raise WorkflowConflictError(
                f"workflow {plan.root} is a run of {name!r}, so {plan.name!r} was not started; choose another workflow_id"
            )
    return plan.root


# -- rows


def _new_runs(
    graph: Graph,
    run_id: str,
    parent_node: str | None = None,
    ancestors: tuple[NewRun, ...] = (),
    *,
    is_started: bool = True,
) -> Iterator[NewRun]:
    size = len(graph.nodes)
    run = NewRun(graph, run_id, parent_node, ancestors, is_started, new_task_ids(size), new_task_ids(size))
    yield run
    for node in graph.nodes:
        if node.child is not None:
            ids = run.inner_ids[node.index], run.node_ids[node.index]
            yield from _new_runs(node.child, *ids, (*ancestors, run), is_started=run.starts(node))


def _run_row(run: NewRun, root: str) -> dict[str, Any]:
    graph = run.graph
    return {
        "id": run.id,
        "root_id": root,
        "ancestors": [ancestor.id for ancestor in run.ancestors],
        "parent_node": run.parent_node,
        "name": graph.name,
        "definition_key": graph.definition_key,
        "status": WorkflowStatus.RUNNING if run.is_started else WorkflowStatus.PENDING,
        "on_error": graph.on_error,
        "output": graph.output,
        "success_cases": graph.success_cases or None,
        "optional": sorted(graph.optional),
        "unresolved": len(graph.nodes),
        "time_limit_ms": graph.time_limit_ms,
    }


def _node_rows(run: NewRun) -> Iterator[dict[str, Any]]:
    for node, dependents, awaited_by in zip(
        run.graph.nodes, run.graph.dependents(), run.graph.awaited_by(), strict=True
    ):
        is_started, is_task, made = run.starts(node), node.kind is NodeKind.TASK, node.made
        yield {
            "id": run.node_ids[node.index],
            "workflow_id": run.id,
            "index": node.index,
            "node_id": node.node_id,
            "kind": node.kind,
            "status": STARTED[node.kind] if is_started else NodeStatus.PENDING,
            "task_id": run.inner_ids[node.index] if is_started and is_task else None,
            "waits_for": node.counted,
            "dependents": [run.node_ids[index] for index in dependents],
            "needed": node.needed,
            "allow_failed_deps": node.allow_failed_deps,
            "args": node.args,
            "source": run.source_id(each) if (each := node.each) and node.items is None else None,
            "max_parallel": node.max_parallel,
            "child_id": None if is_task else run.inner_ids[node.index],
            "made_by": made.task_name,
            "makes_list": made.is_list,
            **_rare_columns(run, node, awaited_by),
            **_input_columns(run, node),
            **_task_columns(node),
        }


def _rare_columns(run: NewRun, node: Node, awaited_by: Sequence[int]) -> dict[str, Any]:
    """Return columns that most nodes leave out: a start is one JSON text of limited size."""
    columns = {
        "awaits": node.awaits or None,
        "awaits_left": len(node.awaits) or None,
        "awaited_by": [run.node_ids[index] for index in awaited_by] or None,
        "item": node.items,
        "max_failures": node.max_failures,
        "min_item_success": node.min_item_success,
    }
    return {name: value for name, value in columns.items() if value is not None}


def _input_columns(run: NewRun, node: Node) -> dict[str, Any]:
    """Return the nodes whose results the task takes, each once, and the references to them by their place in that list.

    The lists of results of maps come after them (see the SQL function `node_inputs`).
    """
    places: dict[str, int] = {}

    def place_of(node_id: str) -> int:
        return places.setdefault(node_id, len(places))

    context = [place_of(run.node_ids[index]) for index in node.ctx_from]
    nodes = [(ref, place_of(run.source_id(ref))) for ref in node.refs if ref.mode in {RefMode.VALUE, RefMode.RESULT}]
    maps = {run.source_id(ref): None for ref in node.refs if ref.mode is RefMode.RESULTS}
    lists = {map_id: len(places) + number for number, map_id in enumerate(maps)}
    refs = [
        *([ref.path, place, ref.mode] for ref, place in nodes),
        # Written as a value, so that a worker of an older release, which does not know this mode, can read it.
        *([ref.path, lists[run.source_id(ref)], RefMode.VALUE] for ref in node.refs if ref.mode is RefMode.RESULTS),
        *([ref.path, None, ref.mode] for ref in node.refs if ref.mode is RefMode.EACH),
    ]
    return {
        "refs": {"refs": refs, "context": context},
        "inputs": list(places),
        **({"results_of": list(maps)} if maps else {}),
        "takes_inputs": bool(refs or node.wants),
        "wants_meta": bool(node.wants),
    }


def _task_columns(node: Node) -> dict[str, Any]:
    if (terms := node.terms) is None:
        return {}
    columns = sent_values(terms) | {"good_until": terms.good_until.isoformat() if terms.good_until else None}
    del columns["trace"]  # that of the start, the same for all
    if not terms.is_sensitive:
        del columns["is_sensitive"]  # few are, and a start is one JSON text of limited size
    if terms.on_failure is None:
        del columns["on_failure"]
    return columns
