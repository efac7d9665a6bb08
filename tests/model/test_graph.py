"""Statuses of workflows and nodes, and joins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.graph import Graph, Join, Node, NodeKind, NodeStatus, WorkflowStatus
from tests.model.transitions import NODE_TRANSITIONS, WORKFLOW_TRANSITIONS


def node(join: Join = Join.ALL, waits_for: int = 3, *, min_success: int | None = None, allow: bool = False) -> Node:
    return Node(
        index=waits_for,
        node_id="it",
        kind=NodeKind.TASK,
        waits_for=tuple(range(waits_for)),
        join=join,
        min_success=min_success,
        allow_failed_deps=allow,
    )


def is_ready(it: Node, succeeded: int, unresolved: int) -> bool:
    """As `workflows/advance.sql` decides it. `unresolved` counts nodes that count in the join and have not ended."""
    return succeeded >= it.needed or (it.allow_failed_deps and unresolved == 0)


def test_every_status_has_transitions_and_none_leads_to_itself() -> None:
    assert set(NODE_TRANSITIONS) == set(NodeStatus)
    assert set(WORKFLOW_TRANSITIONS) == set(WorkflowStatus)
    assert all(status not in targets for status, targets in NODE_TRANSITIONS.items())
    assert all(status not in targets for status, targets in WORKFLOW_TRANSITIONS.items())


def test_a_final_status_is_left_only_by_a_retry() -> None:
    final_nodes = {status for status in NodeStatus if status.is_final}
    assert final_nodes == {NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED}
    assert all(not (NODE_TRANSITIONS[status] & final_nodes) for status in final_nodes)
    final = {status for status in WorkflowStatus if status.is_final}
    assert final == {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}
    assert all(WORKFLOW_TRANSITIONS[status] <= {WorkflowStatus.RUNNING, WorkflowStatus.PENDING} for status in final)


@pytest.mark.parametrize(
    ("join", "min_success", "needed"),
    [(Join.ALL, None, 3), (Join.ANY, None, 1), (Join.QUORUM, 2, 2)],
)
def test_a_join_needs_a_number_of_successes(join: Join, min_success: int | None, needed: int) -> None:
    it = node(join, min_success=min_success)
    assert it.needed == needed
    assert not is_ready(it, succeeded=needed - 1, unresolved=1)
    assert is_ready(it, succeeded=needed, unresolved=3 - needed)


@pytest.mark.parametrize("join", [Join.ALL, Join.ANY])
def test_a_node_that_waits_for_nothing_is_ready(join: Join) -> None:
    assert is_ready(node(join, waits_for=0), succeeded=0, unresolved=0)


@given(join=st.sampled_from(Join), waits_for=st.integers(1, 6), data=st.data())
def test_with_failures_allowed_a_node_runs_at_the_latest_when_all_have_ended(
    join: Join, waits_for: int, data: st.DataObject
) -> None:
    least, succeeded = data.draw(st.integers(1, waits_for)), data.draw(st.integers(0, waits_for))
    strict, tolerant = (node(join, waits_for, min_success=least, allow=allow) for allow in (False, True))
    assert is_ready(tolerant, succeeded, unresolved=0)
    assert is_ready(strict, succeeded, unresolved=0) == (succeeded >= strict.needed)
    for unresolved in range(1, waits_for - succeeded + 1):
        assert is_ready(tolerant, succeeded, unresolved) == is_ready(strict, succeeded, unresolved)


def test_a_graph_lists_dependents_and_finds_nodes_by_id() -> None:
    inner = Graph("inner", (node(waits_for=0),))
    first = Node(0, "first", NodeKind.TASK)
    second = Node(1, "second", NodeKind.WORKFLOW, waits_for=(0,), child=inner)
    third = Node(2, "third", NodeKind.TASK, waits_for=(0, 1))
    graph = Graph("outer", (first, second, third))
    assert graph.dependents() == ((1, 2), (2,), ())
    assert graph.node_named("third") is third
    assert graph.node_named("fourth") is None
