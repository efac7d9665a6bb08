"""Rules about workflows: each ends, and each node runs if, and only if, its dependencies allow it."""

from collections import Counter
from collections.abc import Iterator

from benchmarks.chaos.evidence import Evidence, Finding
from benchmarks.chaos.history import Flow, Node

FLOW_ENDS = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
NODE_ENDS = frozenset({"COMPLETED", "FAILED", "SKIPPED"})


def flow_wrong(evidence: Evidence) -> Finding:
    known = {flow.id for flow in evidence.history.flows}
    for workflow_id in evidence.history.started_flows:
        if workflow_id not in known:
            yield f"workflow {workflow_id}", "was started, and is not in the database"
    tasks = Counter(row.node for row in evidence.history.rows if row.node is not None)
    for flow in evidence.history.flows:
        nodes = {node.id: node for node in flow.nodes}
        for problem in [
            *_flow_problems(flow),
            *(problem for node in flow.nodes for problem in _node_problems(evidence, node, nodes, tasks[node.id])),
        ]:
            yield f"workflow {flow.id}", problem


def _flow_problems(flow: Flow) -> Iterator[str]:
    if flow.status not in FLOW_ENDS:
        yield f"is still {flow.status}"
        return
    open_nodes = [node.id for node in flow.nodes if node.status not in NODE_ENDS]
    failed = [node.id for node in flow.nodes if node.status == "FAILED"]
    if open_nodes:
        yield f"is {flow.status}, and its nodes {open_nodes} have not ended"
    if flow.status == "COMPLETED" and failed:
        yield f"is COMPLETED, and its nodes {failed} have failed"
    if flow.status == "FAILED" and not failed:
        yield "is FAILED, and none of its nodes is"


def _node_problems(evidence: Evidence, node: Node, nodes: dict[str, Node], tasks: int) -> Iterator[str]:
    if tasks > (0 if node.status == "SKIPPED" else 1):
        yield f"node {node.id} is {node.status}, and had {tasks} tasks"
    row = None if node.task_id is None else evidence.rows.get(node.task_id)
    if row is None:
        return
    if (row.status == "COMPLETED") != (node.status == "COMPLETED"):
        yield f"node {node.id} is {node.status}, and its task {row.status}"
    ready_at = _ready_at(evidence, node, nodes)
    for start in evidence.starts_of(row.task_id, row.attempts):
        if ready_at is not None and start.clock < ready_at:
            yield f"node {node.id} began {ready_at - start.clock:.3f} s before its dependencies had ended"


def _ready_at(evidence: Evidence, node: Node, nodes: dict[str, Node]) -> float | None:
    """Return when enough of its dependencies had ended; None if that is unknown."""
    before = [nodes[other] for other in node.waits_for]
    if node.allow_failed_deps:
        ended = [_ended(evidence, other) for other in before if other.status != "SKIPPED"]
        wanted = len(ended)
    else:
        ended = [_ended(evidence, other) for other in before if other.status == "COMPLETED"]
        wanted = node.needed
    moments = sorted(moment for moment in ended if moment is not None)
    return moments[wanted - 1] if len(moments) == len(ended) and 0 < wanted <= len(moments) else None


def _ended(evidence: Evidence, node: Node) -> float | None:
    row = None if node.task_id is None else evidence.rows.get(node.task_id)
    return None if row is None else row.finished
