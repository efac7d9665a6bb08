"""The oracle itself, on graphs that one can follow by hand."""

from horsies.model.graph import Graph, Join, Node, NodeKind, NodeStatus, WorkflowStatus
from tests.workflows.oracle import Ends, first_failed, resolve

DONE, FAILED, SKIPPED = NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED


def task(
    index: int, *waits_for: int, join: Join = Join.ALL, min_success: int | None = None, allow: bool = False
) -> Node:
    return Node(
        index,
        f"n{index}",
        NodeKind.TASK,
        waits_for=waits_for,
        join=join,
        min_success=min_success,
        allow_failed_deps=allow,
    )


def test_a_skip_cascades_and_other_branches_continue() -> None:
    graph = Graph("g", (task(0), task(1), task(2, 0), task(3, 2), task(4, 1)))
    assert resolve(graph, {(0,)}) == Ends(WorkflowStatus.FAILED, (FAILED, DONE, SKIPPED, SKIPPED, DONE))
    assert resolve(graph, ()) == Ends(WorkflowStatus.COMPLETED, (DONE,) * 5)


def test_joins_run_when_enough_succeed_and_are_skipped_when_enough_no_longer_can() -> None:
    graph = Graph(
        "g",
        (
            task(0),
            task(1),
            task(2),
            task(3, 0, 1, 2, join=Join.ANY),
            task(4, 0, 1, 2, join=Join.QUORUM, min_success=2),
            task(5, 0, 1, 2, allow=True),
        ),
    )
    assert resolve(graph, {(0,)}).nodes[3:] == (DONE, DONE, DONE)
    assert resolve(graph, {(0,), (1,)}).nodes[3:] == (DONE, SKIPPED, DONE)
    assert resolve(graph, {(0,), (1,), (2,)}).nodes[3:] == (SKIPPED, SKIPPED, DONE)


def test_a_success_policy_decides_instead_of_the_failures() -> None:
    graph = Graph("g", (task(0), task(1), task(2, 1)), success_cases=((0,), (1, 2)))
    assert resolve(graph, {(0,)}).workflow is WorkflowStatus.COMPLETED
    assert resolve(graph, {(2,)}).workflow is WorkflowStatus.COMPLETED
    assert resolve(graph, {(0,), (2,)}).workflow is WorkflowStatus.FAILED


def test_an_optional_failure_fails_nothing_by_itself() -> None:
    graph = Graph("g", (task(0), task(1)), optional=frozenset({0}))
    assert resolve(graph, {(0,)}).workflow is WorkflowStatus.COMPLETED
    ends = resolve(graph, {(0,), (1,)})
    assert ends.workflow is WorkflowStatus.FAILED
    assert first_failed(graph, ends.nodes, order=[0, 1]) == 1


def test_the_failure_of_a_sub_workflow_is_the_failure_of_its_node() -> None:
    inner = Graph("inner", (task(0), task(1, 0)))
    graph = Graph("g", (Node(0, "sub", NodeKind.WORKFLOW, child=inner), task(1, 0)))
    assert resolve(graph, {(0, 1)}).nodes == (FAILED, SKIPPED)
    assert resolve(graph, {(1,)}).nodes == (DONE, FAILED)
