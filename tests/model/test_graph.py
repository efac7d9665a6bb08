"""The states of workflows and nodes, and the joins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.model.graph import (
    LEGAL_NODE_MOVES,
    LEGAL_WORKFLOW_MOVES,
    Graph,
    Join,
    Node,
    NodeKind,
    NodeStatus,
    WorkflowStatus,
)


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


def test_every_state_has_its_moves_and_no_state_moves_to_itself() -> None:
    assert set(LEGAL_NODE_MOVES) == set(NodeStatus)
    assert set(LEGAL_WORKFLOW_MOVES) == set(WorkflowStatus)
    assert all(state not in moves for state, moves in LEGAL_NODE_MOVES.items())
    assert all(state not in moves for state, moves in LEGAL_WORKFLOW_MOVES.items())


def test_what_has_ended_moves_only_by_a_retry() -> None:
    final_nodes = {state for state in NodeStatus if state.is_final}
    assert final_nodes == {NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED}
    assert all(not (LEGAL_NODE_MOVES[state] & final_nodes) for state in final_nodes)
    final = {state for state in WorkflowStatus if state.is_final}
    assert final == {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}
    assert all(LEGAL_WORKFLOW_MOVES[state] <= {WorkflowStatus.RUNNING, WorkflowStatus.PENDING} for state in final)


@pytest.mark.parametrize(
    ("join", "min_success", "needed"),
    [(Join.ALL, None, 3), (Join.ANY, None, 1), (Join.QUORUM, 2, 2)],
)
def test_a_join_needs_so_many_successes(join: Join, min_success: int | None, needed: int) -> None:
    it = node(join, min_success=min_success)
    assert it.needed == needed
    assert not it.is_ready(succeeded=needed - 1, unresolved=1)
    assert it.is_ready(succeeded=needed, unresolved=3 - needed)


@pytest.mark.parametrize("join", [Join.ALL, Join.ANY])
def test_a_node_that_waits_for_nothing_is_ready(join: Join) -> None:
    assert node(join, waits_for=0).is_ready(succeeded=0, unresolved=0)


@given(join=st.sampled_from(Join), waits_for=st.integers(1, 6), data=st.data())
def test_with_failures_allowed_a_node_runs_at_the_latest_when_all_have_ended(
    join: Join, waits_for: int, data: st.DataObject
) -> None:
    least, succeeded = data.draw(st.integers(1, waits_for)), data.draw(st.integers(0, waits_for))
    strict, tolerant = (node(join, waits_for, min_success=least, allow=allow) for allow in (False, True))
    assert tolerant.is_ready(succeeded, unresolved=0)
    assert strict.is_ready(succeeded, unresolved=0) == (succeeded >= strict.needed)
    for unresolved in range(1, waits_for - succeeded + 1):
        assert tolerant.is_ready(succeeded, unresolved) == strict.is_ready(succeeded, unresolved)


def test_a_graph_knows_who_waits_for_whom_and_its_nodes_by_id() -> None:
    inner = Graph("inner", (node(waits_for=0),))
    first = Node(0, "first", NodeKind.TASK)
    second = Node(1, "second", NodeKind.WORKFLOW, waits_for=(0,), child=inner)
    third = Node(2, "third", NodeKind.TASK, waits_for=(0, 1))
    graph = Graph("outer", (first, second, third))
    assert graph.dependents() == ((1, 2), (2,), ())
    assert graph.node_named("third") is third
    assert graph.node_named("fourth") is None
