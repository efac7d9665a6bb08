"""A node with join="any" or "quorum" and a context: what it waits for, what counts, and what its task is given."""

from functools import partial
from typing import Any

import psycopg
import pytest

from horsies import TaskNode, WorkflowStatus
from horsies.db.broker import PostgresBroker
from horsies.maintenance.rescue import resolve_lost_nodes, settle_workflows
from horsies.model.graph import NodeStatus
from horsies.model.task import Claim
from horsies.workflows import control
from horsies.workflows.inspect import get_stuck_workflows
from tests.fixtures.journey import row
from tests.fixtures.workers import StartWorker
from tests.workflows.steps import ending_of, start_run, states, status, take_batch

DONE, BAD, SKIPPED, PENDING, QUEUED = (
    NodeStatus.COMPLETED,
    NodeStatus.FAILED,
    NodeStatus.SKIPPED,
    NodeStatus.PENDING,
    NodeStatus.ENQUEUED,
)
TIMEOUT_MS = 20_000


class Three:
    """A workflow of `a`, `b` and a node that joins; the first two are ended by hand."""

    def __init__(self, graphs: Any, broker: PostgresBroker, sql: psycopg.Connection, **options: Any) -> None:
        self.broker, self.sql = broker, sql
        first, second = graphs.give.node(node_id="a")(1), graphs.give.node(node_id="b")(2)
        joined = TaskNode(graphs.look_at, node_id="joined", **options)
        self.spec = graphs.app.workflow("three", [first, second, joined])
        self.run = start_run(broker, self.spec.graph)
        self.claims: dict[str, Claim] = {}
        self.claim(2)

    def claim(self, limit: int = 1) -> None:
        for claim in take_batch(self.broker, limit).claimed[0]:
            [name] = row(
                self.sql,
                "select nodes.node_id from horsies.tasks join horsies.nodes on nodes.id = tasks.node_id where tasks.id = %s",
                claim.id,
            )
            self.claims[name] = claim

    def end(self, name: str, *, fails: bool = False) -> None:
        take_batch(self.broker, 0, endings=[ending_of(self.claims.pop(name), fails=fails)])

    @property
    def joined(self) -> NodeStatus:
        return states(self.sql, self.run)[2]


@pytest.fixture
def three(graphs: Any, broker: PostgresBroker, sql: psycopg.Connection) -> Any:
    return partial(Three, graphs, broker, sql)


JOINS: Any = pytest.mark.parametrize(
    "join", [{"join": "any"}, {"join": "quorum", "min_success": 1}], ids=["any", "quorum"]
)


@JOINS
def test_a_node_does_not_run_before_what_is_in_its_context_has_ended(three: Any, join: dict[str, Any]) -> None:
    run = three(waits_for=["a"], workflow_ctx_from=["b"], **join)
    run.end("a")
    assert run.joined is PENDING
    assert run.broker.run(get_stuck_workflows) == []
    run.end("b")
    assert run.joined is QUEUED


@JOINS
def test_a_node_of_the_context_that_counts_as_well_must_have_ended_too(three: Any, join: dict[str, Any]) -> None:
    run = three(waits_for=["a", "b"], workflow_ctx_from=["b"], **join)
    run.end("a")
    assert run.joined is PENDING
    run.end("b", fails=True)
    assert run.joined is QUEUED


@JOINS
def test_a_node_that_is_only_in_the_context_does_not_count(three: Any, join: dict[str, Any]) -> None:
    run = three(waits_for=["a"], workflow_ctx_from=["b"], **join)
    run.end("b")
    assert run.joined is PENDING
    run.end("a", fails=True)
    assert run.joined is SKIPPED


@JOINS
def test_its_failure_does_not_count_either(three: Any, join: dict[str, Any]) -> None:
    run = three(waits_for=["a"], workflow_ctx_from=["b"], **join)
    run.end("b", fails=True)
    assert run.joined is PENDING
    run.end("a")
    assert run.joined is QUEUED


@JOINS
def test_a_join_that_cannot_be_met_is_skipped_without_waiting_for_the_context(three: Any, join: dict[str, Any]) -> None:
    run = three(waits_for=["a"], workflow_ctx_from=["b"], **join)
    run.end("a", fails=True)
    assert run.joined is SKIPPED


def test_with_allowed_failures_it_still_waits_for_its_context(three: Any) -> None:
    run = three(waits_for=["a"], workflow_ctx_from=["b"], join="any", allow_failed_deps=True)
    run.end("a", fails=True)
    assert run.joined is PENDING
    run.end("b", fails=True)
    assert run.joined is QUEUED


def test_a_join_of_all_counts_everything_that_it_names(three: Any) -> None:
    run = three(waits_for=["a"], workflow_ctx_from=["b"])
    run.end("a")
    assert run.joined is PENDING
    run.end("b", fails=True)
    assert run.joined is SKIPPED


def test_a_retry_waits_for_the_context_again(three: Any) -> None:
    run = three(waits_for=["a"], workflow_ctx_from=["b"], join="any", allow_failed_deps=True)
    run.end("a")
    run.end("b", fails=True)
    run.claim()
    run.end("joined", fails=True)
    assert run.broker.run(partial(control.retry, run.run))
    assert states(run.sql, run.run) == (DONE, QUEUED, PENDING)
    run.claim()
    run.end("b")
    assert run.joined is QUEUED
    run.claim()
    run.end("joined")
    assert status(run.sql, run.run) is WorkflowStatus.COMPLETED


def test_a_pause_and_a_resumption_change_nothing_of_it(three: Any) -> None:
    run = three(waits_for=["a"], workflow_ctx_from=["b"], join="any")
    run.broker.run(partial(control.pause, run.run))
    run.end("a")
    run.broker.run(partial(control.resume, run.run))
    assert run.joined is PENDING
    run.broker.run(partial(control.pause, run.run))
    run.end("b")
    assert run.joined is NodeStatus.READY
    run.broker.run(partial(control.resume, run.run))
    assert run.joined is QUEUED


def test_an_end_that_was_not_counted_is_found_by_the_maintenance_leader(three: Any) -> None:
    """Rows were changed by hand: the node that ended does not know that another awaits it."""
    run = three(waits_for=["a"], workflow_ctx_from=["b"], join="any")
    run.end("a")
    run.sql.execute("update horsies.nodes set awaited_by = null where node_id = 'b'")
    run.end("b")
    assert run.joined is PENDING
    run.broker.run(resolve_lost_nodes)
    run.broker.run(settle_workflows)
    assert run.joined is QUEUED


def test_rendering_shows_awaited_nodes(three: Any) -> None:
    run = three(waits_for=["a"], workflow_ctx_from=["b"], join="any")
    assert "joined ← after any of a and the end of b" in run.spec.to_text()
    assert "joined ← after a and the end of b" in run.spec.handle(run.run).to_text()  # of one, any is all
    assert "n1 -.->|ended| n2" in run.spec.to_mermaid()
    assert "n1 -.->|ended| n2" in run.spec.handle(run.run).to_mermaid()


def test_real_workers_give_the_task_the_results_of_its_context(graphs: Any, worker: StartWorker) -> None:
    quick, slow = graphs.give.node(node_id="quick")(1), graphs.linger.node(node_id="slow")(0.5)
    joined = TaskNode(
        graphs.look_at, {"names": ["slow"]}, waits_for=[quick], workflow_ctx_from=[slow], join="any", node_id="joined"
    )
    worker("tests.apps.graphs:app", processes=3)
    handle = graphs.app.workflow("context", [quick, slow, joined], output=joined).start()
    assert handle.get(TIMEOUT_MS).unwrap() == ["1"]
