"""Compute the final states of a workflow by brute force: visit all nodes until nothing changes.

`failing` names the nodes whose task fails when it is run, each by the way to it: `(3,)` is node 3, `(3, 0)` is node 0 of the
sub-workflow that node 3 runs, or item 0 of the map that it is. The final states do not depend on the order of completion: a
node runs if enough of the nodes that it waits for succeed.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from horsies.model.graph import Graph, Join, Node, NodeKind, NodeStatus, WorkflowStatus

NodePath = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ends:
    """The final states of the workflow and its nodes if it is resumed whenever it pauses."""

    workflow: WorkflowStatus
    nodes: tuple[NodeStatus, ...]


def resolve(graph: Graph, failing: Collection[NodePath], above: NodePath = ()) -> Ends:
    states = dict.fromkeys(range(len(graph.nodes)), NodeStatus.PENDING)
    changed = True
    while changed:
        changed = False
        for node in graph.nodes:
            if states[node.index] is NodeStatus.PENDING:
                states[node.index] = _look(node, states, failing, above)
                changed = changed or states[node.index] is not NodeStatus.PENDING
    nodes = tuple(states[node.index] for node in graph.nodes)
    return Ends(_verdict(graph, nodes), nodes)


def first_failed(graph: Graph, nodes: Sequence[NodeStatus], order: Sequence[int]) -> int | None:
    """Whose error a FAILED workflow has, if its nodes ended in this order."""
    failed = [index for index in order if nodes[index] is NodeStatus.FAILED]
    serious = [index for index in failed if index not in graph.optional]
    return next(iter([*serious, *failed]), None)


def _look(node: Node, states: Mapping[int, NodeStatus], failing: Collection[NodePath], above: NodePath) -> NodeStatus:
    before = [states[other] for other in node.counted]
    succeeded = sum(1 for state in before if state is NodeStatus.COMPLETED)
    ended = sum(1 for state in before if state.is_final)
    all_ended = ended == len(before)
    match node.join:
        case Join.ALL:
            is_met, is_lost = succeeded == len(before), succeeded < ended
        case Join.ANY:
            is_met, is_lost = succeeded > 0 or not before, all_ended and succeeded == 0
        case Join.QUORUM:
            wanted = node.min_success or 0
            is_met, is_lost = succeeded >= wanted, succeeded + (len(before) - ended) < wanted
    if is_met or (node.allow_failed_deps and all_ended):
        if not all(states[other].is_final for other in node.awaits):
            return NodeStatus.PENDING
        return _run(node, failing, (*above, node.index))
    return NodeStatus.SKIPPED if is_lost and not node.allow_failed_deps else NodeStatus.PENDING


def _run(node: Node, failing: Collection[NodePath], way: NodePath) -> NodeStatus:
    if node.child is not None:
        is_good = resolve(node.child, failing, way).workflow is WorkflowStatus.COMPLETED
    elif node.kind is NodeKind.MAP:
        count = len(json.loads(node.items or "[]"))
        is_good = _map_is_good(node, count, sum(1 for item in range(count) if (*way, item) in failing))
    else:
        is_good = way not in failing
    return NodeStatus.COMPLETED if is_good else NodeStatus.FAILED


def _map_is_good(node: Node, count: int, failed: int) -> bool:
    if node.max_failures is None and node.min_item_success is None:
        return failed == 0
    most = count if node.max_failures is None else node.max_failures
    return failed <= most and count - failed >= (node.min_item_success or 0)


def _verdict(graph: Graph, nodes: Sequence[NodeStatus]) -> WorkflowStatus:
    if graph.success_cases:
        is_good = any(all(nodes[index] is NodeStatus.COMPLETED for index in case) for case in graph.success_cases)
    else:
        is_good = all(state is not NodeStatus.FAILED or index in graph.optional for index, state in enumerate(nodes))
    return WorkflowStatus.COMPLETED if is_good else WorkflowStatus.FAILED
