"""Start: a whole tree of runs, and the tasks of its first nodes, in one transaction, however large it is.

All ids are made here, and references between nodes become ids of rows, also those from a sub-workflow to a node above it. So the database
never has to find its way by names, and a start whose answer was lost is repeated word for word: its `start_id` tells whether it was
committed. Another start under the same id finds the run there and changes nothing.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from horsies.db.load import load
from horsies.db.op import Op, ask
from horsies.model.errors import WorkflowConflictError
from horsies.model.graph import Graph, Node, NodeKind, Ref, RefMode
from horsies.model.task import Terms
from horsies.tasks.ids import new_task_id
from horsies.workflows import advance

SQL = load(__file__)


@dataclass(frozen=True)
class Run:
    """A graph with an id for itself and for each of its nodes."""

    graph: Graph
    id: str
    above: "Run | None" = None
    parent_node: str | None = None
    node_ids: tuple[str, ...] = ()
    below: tuple["Run | None", ...] = field(default=(), compare=False)

    @cached_property
    def lineage(self) -> tuple["Run", ...]:
        """From the root down to the run above this one."""
        return () if self.above is None else (*self.above.lineage, self.above)

    def node_at(self, ref: Ref) -> str:
        run = (*self.lineage, self)[-1 - ref.up]
        return run.node_ids[ref.node]


@dataclass(frozen=True, slots=True)
class Beginning:
    """All that is written at a start."""

    root: str
    start_id: str
    name: str
    runs: str
    nodes: str
    is_flat: bool
    """There is no sub-workflow and no map in it."""


def plan(graph: Graph, workflow_id: str | None = None) -> Beginning:
    root = workflow_id or new_task_id()
    runs = list(_runs(graph, root, None, None))
    return Beginning(
        root=root,
        start_id=new_task_id(),
        name=graph.name,
        runs=json.dumps([_run_row(run, root) for run in runs]),
        nodes=json.dumps([_node_row(run, node) for run in runs for node in run.graph.nodes]),
        is_flat=all(node.kind is NodeKind.TASK for node in graph.nodes),
    )


def start(beginning: Beginning) -> Op[str]:
    """The id of the run, which may have been there before."""
    roots = [beginning.root]
    answers = yield from ask(
        advance.SQL["begin_step"](), *_statements(beginning), advance.SQL["commit_step"](), SQL["get_name"](root=roots[0])
    )
    _check_name(beginning, answers[-1][0][0])
    yield from advance.settle(advance.unsettled_in(answers[-3]))
    return beginning.root


def start_within(beginning: Beginning) -> Op[str]:
    """The same inside a transaction that somebody else begins and ends."""
    *answers, names = yield from ask(*_statements(beginning), SQL["get_name"](root=beginning.root))
    _check_name(beginning, names[0][0])
    yield from advance.settle_within(advance.unsettled_in(answers[-1]))
    return beginning.root


def _statements(beginning: Beginning) -> list[Any]:
    opening = advance.open_all if not beginning.is_flat else advance.open_flat
    return [
        SQL["insert_runs"](start_id=beginning.start_id, runs=beginning.runs),
        SQL["insert_nodes"](root=beginning.root, start_id=beginning.start_id, nodes=beginning.nodes),
        *opening([beginning.root]),
    ]


def _check_name(beginning: Beginning, name: str) -> None:
    if name != beginning.name:
        raise WorkflowConflictError(
            f"workflow {beginning.root} is a run of {name!r}, so {beginning.name!r} was not started; choose another workflow_id"
        )


# -- rows


def _runs(graph: Graph, run_id: str, above: Run | None, parent_node: str | None) -> Iterator[Run]:
    run = Run(graph, run_id, above, parent_node, tuple(new_task_id() for _ in graph.nodes))
    yield run
    for node in graph.nodes:
        if node.child is not None:
            yield from _runs(node.child, _child_id(run, node), run, run.node_ids[node.index])
