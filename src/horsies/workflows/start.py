"""Start: a whole tree of runs, and the tasks of its first nodes, in one transaction, however large it is.

All ids are made here, and references between nodes become ids of rows, also those from a sub-workflow to a node above it. So the database
never has to find its way by names, and a start whose answer was lost is repeated word for word: its `start_id` tells whether it was
committed. Another start under the same id finds the run there and changes nothing.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from horsies.db.load import load
from horsies.db.op import Op, Query, ask
from horsies.model.errors import WorkflowConflictError
from horsies.model.graph import Graph, Node, NodeKind, NodeStatus, Ref, RefMode, WorkflowStatus
from horsies.model.task import Terms
from horsies.tasks.ids import new_task_ids
from horsies.workflows import advance

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Beginning:
    """All that is written at a start."""

    root: str
    start_id: str
    name: str
    runs: str
    nodes: str
    is_flat: bool
    """There is no sub-workflow and no map at its top."""
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A graph with the ids of its rows. `lineage` are the runs above it, from the top down."""

    graph: Graph
    id: str
    parent_node: str | None
    lineage: "tuple[Run, ...]"
    node_ids: Sequence[str]
    child_ids: Sequence[str]

    def named_by(self, ref: Ref) -> str:
        return (*self.lineage, self)[-1 - ref.up].node_ids[ref.node]


def plan(graph: Graph, workflow_id: str | None = None) -> Beginning:
    spare, start_id = new_task_ids(2)
    root = workflow_id or spare
    runs = list(_runs(graph, root))
    return Beginning(
        root=root,
        start_id=start_id,
        name=graph.name,
        runs=json.dumps([_run_row(run, root) for run in runs]),
        nodes=json.dumps([row for run in runs for row in _node_rows(run)]),
        is_flat=all(node.kind is NodeKind.TASK for node in graph.nodes),
    )


def start(beginning: Beginning) -> Op[str]:
    """The id of the run, which may have been there before."""
    _, *answers, _, names = yield from ask(
        advance.SQL["begin_step"](), *_statements(beginning), advance.SQL["commit_step"](), _get_name(beginning)
    )
    _refuse_another(beginning, names[0][0])
    yield from advance.settle(advance.unsettled_in((), answers[-1]))
    return beginning.root


def start_within(beginning: Beginning) -> Op[str]:
    """The same inside a transaction that somebody else begins and ends."""
    *answers, names = yield from ask(*_statements(beginning), _get_name(beginning))
    _refuse_another(beginning, names[0][0])
    yield from advance.settle_within(advance.unsettled_in((), answers[-1]))
    return beginning.root


def _statements(beginning: Beginning) -> list[Query]:
    open_first = advance.open_flat if beginning.is_flat else advance.open_all
    return [
        SQL["insert_runs"](start_id=beginning.start_id, runs=beginning.runs),
        SQL["insert_nodes"](
            root=beginning.root, start_id=beginning.start_id, nodes=beginning.nodes, trace=beginning.trace
        ),
        *open_first([beginning.root]),
    ]


def _get_name(beginning: Beginning) -> Query:
    return SQL["get_name"](root=beginning.root)


def _refuse_another(beginning: Beginning, name: str) -> None:
    if name != beginning.name:
        raise WorkflowConflictError(
            f"workflow {beginning.root} is a run of {name!r}, so {beginning.name!r} was not started; choose another workflow_id"
        )


# -- rows


def _runs(graph: Graph, run_id: str, parent_node: str | None = None, lineage: tuple[Run, ...] = ()) -> Iterator[Run]:
    size = len(graph.nodes)
    run = Run(graph, run_id, parent_node, lineage, new_task_ids(size), new_task_ids(size))
    yield run
    for node in graph.nodes:
        if node.child is not None:
            yield from _runs(node.child, run.child_ids[node.index], run.node_ids[node.index], (*lineage, run))


def _run_row(run: Run, root: str) -> dict[str, Any]:
    graph = run.graph
    return {
        "id": run.id,
        "root_id": root,
        "ancestors": [above.id for above in run.lineage],
        "parent_node": run.parent_node,
        "name": graph.name,
        "definition_key": graph.definition_key,
        "status": WorkflowStatus.PENDING if run.lineage else WorkflowStatus.RUNNING,
        "on_error": graph.on_error,
        "output": graph.output,
        "success_cases": graph.success_cases or None,
        "optional": sorted(graph.optional),
        "unresolved": len(graph.nodes),
        "time_limit_ms": graph.time_limit_ms,
    }


def _node_rows(run: Run) -> Iterator[dict[str, Any]]:
    for node, dependents in zip(run.graph.nodes, run.graph.dependents(), strict=True):
        is_first = not run.lineage and node.is_ready(succeeded=0, unresolved=len(node.waits_for))
        yield {
            "id": run.node_ids[node.index],
            "workflow_id": run.id,
            "index": node.index,
            "node_id": node.node_id,
            "kind": node.kind,
            "status": NodeStatus.READY if is_first else NodeStatus.PENDING,
            "waits_for": node.waits_for,
            "dependents": [run.node_ids[index] for index in dependents],
            "needed": node.needed,
            "allow_failed_deps": node.allow_failed_deps,
            "args": node.args,
            "source": run.named_by(node.each) if node.each else None,
            "max_parallel": node.max_parallel,
            "child_id": None if node.kind is NodeKind.TASK else run.child_ids[node.index],
            "made_by": node.made.task_name,
            "makes_list": node.made.is_list,
            **_inputs(run, node),
            **(_terms(node.terms) if node.terms else {}),
        }


def _inputs(run: Run, node: Node) -> dict[str, Any]:
    """The nodes whose results the task is handed, each once, and where these stand: by their place in that list."""
    places: dict[str, int] = {}

    def place_of(node_id: str) -> int:
        return places.setdefault(node_id, len(places))

    refs = [
        [ref.path, None if ref.mode is RefMode.EACH else place_of(run.named_by(ref)), ref.mode] for ref in node.refs
    ]
    context = [place_of(run.node_ids[index]) for index in node.ctx_from]
    return {
        "refs": {"refs": refs, "context": context},
        "inputs": list(places),
        "takes_inputs": bool(refs or node.wants),
        "wants_meta": bool(node.wants),
    }


def _terms(terms: Terms) -> dict[str, Any]:
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
