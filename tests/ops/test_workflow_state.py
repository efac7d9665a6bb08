"""The state of a run, as pages read it once a second, and the list of its nodes."""

from collections.abc import Generator
from uuid import uuid4

import psycopg
import pytest

from horsies import AppConfig, Horsies
from horsies.db.broker import PostgresBroker
from horsies.model.graph import Graph, NodeKind, NodeStatus, OnError, Ref, RefMode, WorkflowStatus
from horsies.model.sensitive import HIDDEN
from horsies.model.task import TaskOptions
from horsies.ops.api import Ops
from tests.workflows.steps import ending_of, node, run_all_tasks, start_run, take_batch

INNER = Graph("inner", (node(0), node(1, 0)), output=1)
PARTS = Graph(
    "parts",
    (
        node(0),
        node(1, 0, kind=NodeKind.MAP, refs=(Ref(("item",), 0, RefMode.EACH),), terms=TaskOptions("double", "default")),
        node(2, 1, kind=NodeKind.WORKFLOW, terms=None, child=INNER),
        node(3, 2),
    ),
)


@pytest.fixture
def ops(database: str, broker: PostgresBroker) -> Generator[Ops]:
    app = Horsies(AppConfig.for_database_url(database))
    yield app.ops
    app.broker.close()


def test_each_node_has_a_letter_that_is_its_status(ops: Ops, broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("w", tuple(node(index, *([0] if index else [])) for index in range(4))))
    ((first,),) = take_batch(broker).claimed
    found = ops.get_workflow_state(run)
    assert found is not None
    assert (found.letters, found.counts) == ("RPPP", {NodeStatus.RUNNING: 1, NodeStatus.PENDING: 3})
    ((second,),) = take_batch(broker, 1, endings=[ending_of(first)]).claimed
    take_batch(broker, 0, endings=[ending_of(second, fails=True)])
    sql.execute(
        "update horsies.nodes set status = 'READY' where id = (select id from horsies.nodes where status = 'ENQUEUED' limit 1)"
    )
    found = ops.get_workflow_state(run)
    assert found is not None
    assert sorted(found.letters) == sorted("CFEY")
    for status in NodeStatus:
        sql.execute("update horsies.nodes set status = %s, task_id = null", [status])
        found = ops.get_workflow_state(run)
        assert found is not None
        assert found.counts == {status: 4}


def test_sub_workflows_and_maps_are_counted_and_know_where_they_belong(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, PARTS)
    ((claim,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(claim, result="[1, 2, 3]")])
    found = ops.get_workflow_state(run)
    assert found is not None
    assert (found.inner[1].counts, found.inner[2].counts) == ({NodeStatus.ENQUEUED: 3}, {NodeStatus.PENDING: 2})
    run_all_tasks(broker, sql, set())
    done = ops.get_workflow_state(run)
    assert done is not None
    assert (done.inner[1].counts, done.inner[2].status) == ({NodeStatus.COMPLETED: 3}, WorkflowStatus.COMPLETED)
    part = ops.get_workflow_state(done.inner[1].workflow_id)
    assert part is not None
    assert (part.is_map, part.parent_id, part.parent_name, part.parent_node) == (True, run, "parts", "n1")
    assert (done.is_map, done.parent_id, done.on_error) == (False, None, OnError.FAIL)
    assert ops.get_workflow_state(str(uuid4())) is None


def test_nodes_are_listed_in_pages_by_status_and_text(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("w", tuple(node(index) for index in range(5))))
    page = ops.list_workflow_nodes(run, limit=2)
    assert ([each.node_id for each in page.nodes], page.next_first) == (["n0", "n1"], 2)
    page = ops.list_workflow_nodes(run, limit=3, first=2)
    assert ([each.node_id for each in page.nodes], page.next_first) == (["n2", "n3", "n4"], None)
    take_batch(broker)
    (running,) = ops.list_workflow_nodes(run, statuses=[NodeStatus.RUNNING]).nodes
    assert running.started_at is not None
    assert ops.list_workflow_nodes(run, statuses=[NodeStatus.FAILED]).nodes == []
    assert [each.index for each in ops.list_workflow_nodes(run, text="N3").nodes] == [3]
    assert len(ops.list_workflow_nodes(run, text="ADD").nodes) == 5, "the name of the task counts, too"
    assert ops.list_workflow_nodes(run, text="%").nodes == []
    run_all_tasks(broker, sql, {(1,)})
    (failed,) = ops.list_workflow_nodes(run, statuses=[NodeStatus.FAILED]).nodes
    assert failed.error is not None
    assert (failed.node_id, failed.error.error_code, failed.is_sensitive) == ("n1", "BROKEN", False)


def test_errors_of_sensitive_tasks_stay_hidden_in_the_run_and_in_the_runs_around_it(
    ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    secret = node(0, terms=TaskOptions("add", "default", is_sensitive=True))
    part = Graph("inner", (secret,), output=0)
    run = start_run(broker, Graph("outer", (node(0, kind=NodeKind.WORKFLOW, terms=None, child=part),)))
    run_all_tasks(broker, sql, {(0, 0)})
    outer = ops.get_workflow_state(run)
    assert outer is not None
    inner = ops.get_workflow_state(outer.inner[0].workflow_id)
    assert inner is not None
    (outer_node,) = ops.list_workflow_nodes(run).nodes
    (inner_node,) = ops.list_workflow_nodes(inner.summary.run.id).nodes
    tree, summary = ops.show_workflow(run), ops.get_workflow_summary(run)
    (listed,) = ops.list_workflows(error_code="BROKEN").runs
    assert summary is not None
    assert tree.nodes[0].child is not None
    runs = (outer.summary.run, inner.summary.run, summary.run, listed, tree.run, tree.nodes[0].child.run)
    nodes = (outer_node, inner_node, tree.nodes[0], tree.nodes[0].child.nodes[0])
    for error in (each.error for each in (*runs, *nodes)):
        assert error is not None
        assert (error.error_code, error.message) == ("BROKEN", HIDDEN)
    (stored,) = sql.execute(
        "select {schema}.error_message(error) from {schema}.workflows where id = %s".replace("{schema}", "horsies"),
        [run],
    )
    assert ops.list_workflows(message=stored[0]).runs == []


@pytest.mark.parametrize("is_sensitive", [False, True])
def test_a_run_that_its_node_has_paused_is_listed_with_the_error_of_that_node(
    *, is_sensitive: bool, ops: Ops, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    terms = TaskOptions("add", "default", is_sensitive=is_sensitive)
    paused = start_run(broker, Graph("paused", (node(0), node(1, 0, terms=terms), node(2, 1)), on_error=OnError.PAUSE))
    run_all_tasks(broker, sql, {(1,)})
    ops.pause_workflow(start_run(broker, Graph("by hand", (node(0),))))
    by_hand, run = ops.list_workflows(statuses=[WorkflowStatus.PAUSED]).runs
    assert (run.id, by_hand.error) == (paused, None)
    assert run.error is not None
    assert run.error.error_code == "BROKEN"
    assert (run.error.message == HIDDEN) is is_sensitive
