"""A connection that breaks before or after a statement of a step loses nothing and repeats nothing."""

from contextlib import suppress
from functools import partial

import psycopg
import pytest

from horsies.db import faults
from horsies.db.broker import PostgresBroker
from horsies.model.errors import BrokerError
from horsies.model.graph import Graph, Join, NodeKind, Ref, RefMode, WorkflowStatus
from horsies.workflows import control
from horsies.workflows.inspect import get_stuck_workflows
from tests.fixtures.journey import column, row
from tests.workflows.steps import advance_all_trees, ending_of, node, run_all_tasks, start_run, status, take_batch

STEP = [
    "lock_roots",
    "finish_tasks",
    "advance_nodes",
    "enqueue_ready_nodes",
    "finish_runs",
    "commit_batch",
    "expand_maps",
    "start_runs",
]
PART = Graph("part", (node(0), node(1, 0), node(2)), output=1)
GRAPH = Graph(
    "all of it",
    (
        node(0),
        node(1, 0, kind=NodeKind.MAP, refs=(Ref(("item",), 0, RefMode.EACH),), max_parallel=1),
        node(2, 0, kind=NodeKind.WORKFLOW, terms=None, child=PART),
        node(3, 1, 2),
        node(4, 0, 3, join=Join.ANY),
    ),
)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", STEP)
def test_a_batch_whose_answer_is_lost_is_repeated_and_counts_once(
    broker: PostgresBroker, sql: psycopg.Connection, statement: str, when: faults.When
) -> None:
    run = start_run(broker, GRAPH)
    claims = take_batch(broker, 3).claimed[0]
    try:
        faults.plant(statement, when, "drop")
        while claims:
            endings = [ending_of(claim, result="[1, 2]") for claim in claims]
            with suppress(BrokerError):
                take_batch(broker, 0, endings=endings)
            take_batch(broker, 0, endings=endings)  # as a worker does that does not know
            broker.run(advance_all_trees)
            claims = take_batch(broker, 3).claimed[0]
    finally:
        faults.clear()
    assert status(sql, run) is WorkflowStatus.COMPLETED
    assert broker.run(get_stuck_workflows) == []
    assert row(sql, "select count(*), count(distinct id) from horsies.finished") == (8, 8)
    assert column(sql, "select distinct resolved from horsies.nodes where workflow_id = %s and index = 3", run) == [2]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_start_whose_answer_is_lost_starts_once(
    broker: PostgresBroker, sql: psycopg.Connection, when: faults.When
) -> None:
    try:
        faults.plant("insert_tree", when, "drop")
        run = start_run(broker, Graph("one", (node(0), node(1, 0))))
    finally:
        faults.clear()
    run_all_tasks(broker, sql, set())
    assert status(sql, run) is WorkflowStatus.COMPLETED
    assert row(sql, "select count(*) from horsies.workflows") == (1,)
    assert row(sql, "select count(*) from horsies.finished") == (2,)


@pytest.mark.parametrize("statement", ["stop_runs", "end_unstarted_tasks", "stop_nodes", "commit_step"])
def test_a_cancellation_whose_answer_is_lost_is_whole(
    broker: PostgresBroker, sql: psycopg.Connection, statement: str
) -> None:
    run = start_run(broker, GRAPH)
    verb = partial(control.cancel, run)
    try:
        faults.plant(statement, "after", "drop")
        broker.run(verb, again=verb)
    finally:
        faults.clear()
    assert status(sql, run) is WorkflowStatus.CANCELLED
    assert column(sql, "select id from horsies.tasks") == []
    assert broker.run(get_stuck_workflows) == []
