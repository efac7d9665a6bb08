"""What a start writes."""

from functools import partial
from uuid import uuid4

import psycopg
import pytest

from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.db.statement import rows
from horsies.model.errors import PayloadError, WorkflowConflictError
from horsies.model.graph import Graph, NodeKind, NodeStatus, WorkflowStatus
from horsies.model.task import TaskOptions
from horsies.workflows import advance
from horsies.workflows.inspect import get_stuck_workflows
from horsies.workflows.start import MAX_NOTIFIED_AFTER_COMMIT, plan_start, start_in_transaction
from tests.fixtures.journey import column, row
from tests.workflows.steps import node, node_path, run_all_tasks, start_run, states, status

PART = Graph("inner", (node(0), node(1, 0)), output=1)
NESTED = Graph("outer", (node(0, kind=NodeKind.WORKFLOW, terms=None, child=PART), node(1, 0)))


def test_the_same_id_twice_is_one_run(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    graph, workflow_id = Graph("once", (node(0), node(1, 0))), str(uuid4())
    assert start_run(broker, graph, workflow_id) == start_run(broker, graph, workflow_id) == workflow_id
    assert row(sql, "select count(*) from horsies.nodes") == (2,)
    assert row(sql, "select count(*) from horsies.tasks") == (1,)
    with pytest.raises(WorkflowConflictError, match="choose another workflow_id"):
        start_run(broker, Graph("other", (node(0),)), workflow_id)


def test_another_start_of_a_run_leaves_nothing_behind(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, NESTED)
    before = row(sql, "select (select count(*) from horsies.workflows), (select count(*) from horsies.nodes)")
    assert start_run(broker, NESTED, run) == run
    assert row(sql, "select (select count(*) from horsies.workflows), (select count(*) from horsies.nodes)") == before


def test_a_start_starts_all_nodes_without_dependencies_at_any_depth_and_needs_no_step(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    deepest = Graph("deepest", (node(0), node(1, 0)), time_limit_ms=1_000_000)
    deep = Graph("deep", (node(0, kind=NodeKind.WORKFLOW, terms=None, child=deepest), node(1)))
    later = Graph("later", (node(0),))
    run = start_run(
        broker,
        Graph(
            "top",
            (
                node(0, kind=NodeKind.WORKFLOW, terms=None, child=deep),
                node(1),
                node(2, 0, kind=NodeKind.WORKFLOW, terms=None, child=later),
            ),
        ),
    )
    found = sql.execute("select name, status, started_at is null, deadline is null from horsies.workflows").fetchall()
    assert sorted(found) == [
        ("deep", "RUNNING", False, True),
        ("deepest", "RUNNING", False, False),
        ("later", "PENDING", True, True),
        ("top", "RUNNING", False, True),
    ]
    assert states(sql, run) == (NodeStatus.RUNNING, NodeStatus.ENQUEUED, NodeStatus.PENDING)
    tasks = column(sql, "select id::text from horsies.tasks order by id")
    assert [node_path(sql, str(task_id)) for task_id in tasks] == [(1,), (0, 1), (0, 0, 0)]
    assert broker.run(partial(rows, advance.unfinished_trees())) == []
    assert broker.run(get_stuck_workflows) == []
    run_all_tasks(broker, sql, set())
    assert status(sql, run) is WorkflowStatus.COMPLETED


@pytest.mark.parametrize("max_notified", [0, MAX_NOTIFIED_AFTER_COMMIT], ids=["at the commit", "after it"])
def test_a_start_notifies_every_queue_with_new_tasks(
    broker: PostgresBroker, sql: psycopg.Connection, max_notified: int
) -> None:
    sql.execute(f'listen "{Channel.NEW.name_in(broker.config.schema)}"'.encode())
    others = TaskOptions("add", "other"), TaskOptions("add", "never")
    graph = Graph("two", (node(0), node(1), node(2, terms=others[0]), node(3, 0, terms=others[1])))
    start_run(broker, graph, max_notified=max_notified)
    queues = [notice.payload.split(" ", 2)[2] for notice in sql.notifies(timeout=5, stop_after=2)]
    assert sorted(queues) == ["default", "other"]


def test_a_start_in_a_caller_s_transaction_is_part_of_it(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    with psycopg.connect(broker.config.conninfo) as mine:
        broker.run_on(mine, partial(start_in_transaction, plan_start(NESTED)))
        assert column(sql, "select id from horsies.workflows") == []
        mine.rollback()
        assert column(sql, "select id from horsies.workflows") == []
        broker.run_on(mine, partial(start_in_transaction, plan_start(NESTED)))
        mine.commit()
    run_all_tasks(broker, sql, set())
    assert column(sql, "select distinct status from horsies.workflows") == ["COMPLETED"]


def test_a_start_that_is_too_large_for_one_statement_says_so_and_what_to_change() -> None:
    args = '{"text": "' + "x" * 1_000 + '"}'
    graph = Graph("heavy", tuple(node(n, args=args) for n in range(100)))
    size = len(plan_start(graph).nodes)
    assert plan_start(graph, max_bytes=size).name == "heavy"
    with pytest.raises(PayloadError, match=f"workflow 'heavy': a start of its 100 nodes takes at least {size:,} bytes"):
        plan_start(graph, max_bytes=size - 1)
    with pytest.raises(PayloadError, match=r"101,200 of them are arguments.*store the data elsewhere"):
        plan_start(graph, max_bytes=100_000)


def test_arguments_of_more_than_a_gigabyte_are_refused_before_they_are_written_out() -> None:
    args = '{"text": "' + "x" * 16_000_000 + '"}'  # the same object in every node
    graph = Graph("heaviest", tuple(node(n, args=args) for n in range(68)))
    with pytest.raises(PayloadError, match="1,088,000,816 of them are arguments"):
        plan_start(graph)
