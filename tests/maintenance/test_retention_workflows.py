"""Workflows are deleted as whole trees, long after their end; what a live one needs is never deleted."""

import json
from datetime import timedelta
from functools import partial

import psycopg
import pytest

from horsies import BrokerError, RetentionConfig, RetrievalCode
from horsies.app import Horsies
from horsies.db.broker import PostgresBroker
from horsies.db.faults import When
from horsies.maintenance import retention
from horsies.maintenance.isolate import FailedRows
from horsies.maintenance.retention import RetentionLimits
from horsies.model.config import AppConfig
from horsies.model.graph import Graph, NodeKind, Ref, RefMode, WorkflowStatus
from horsies.workflows import control
from tests.fixtures.faults import Plant
from tests.fixtures.journey import column
from tests.maintenance.aged_rows import WEEK, days_of, make_day, retained
from tests.workflows.steps import ending_of, node, run_all_tasks, start_run, status, take_batch

RUNS = "select distinct root_id::text from horsies.workflows union select distinct root_id::text from horsies.nodes"


def tree() -> Graph:
    """A tree with a sub-workflow and a map."""
    part = Graph("inner", (node(0), node(1, 0)), output=1)
    each = (Ref(("item",), 0, RefMode.EACH),)
    below = node(1, 0, kind=NodeKind.WORKFLOW, terms=None, child=part)
    return Graph("outer", (node(0), below, node(2, 0, kind=NodeKind.MAP, refs=each, args='{"item":null}')))


def finish_tree(broker: PostgresBroker, sql: psycopg.Connection) -> str:
    run = start_run(broker, tree())
    ((source,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(source, result="[1, 2]")])
    run_all_tasks(broker, sql, set())
    assert status(sql, run) is WorkflowStatus.COMPLETED
    return run


def grow_old(sql: psycopg.Connection, run: str, days: int = 31) -> None:
    sql.execute(
        "update horsies.workflows set finished_at = finished_at - make_interval(days => %s) where root_id = %s",
        [days, run],
    )


def test_a_tree_goes_when_its_end_is_old_enough(
    broker: PostgresBroker, sql: psycopg.Connection, app_config: AppConfig
) -> None:
    old, young, live = finish_tree(broker, sql), finish_tree(broker, sql), start_run(broker, tree())
    grow_old(sql, old)
    grow_old(sql, young, 29)
    sql.execute(
        "update horsies.workflows set created_at = now() - interval '1 year', started_at = now() - interval '1 year'"
    )
    assert retained(broker)["workflows"].count == 1
    assert set(column(sql, RUNS)) == {young, live}
    app = Horsies(app_config)
    assert app.workflow_handle(old).get(timeout_ms=0).err_value.error_code == RetrievalCode.WORKFLOW_NOT_FOUND
    app.close()
    run_all_tasks(broker, sql, set())


def test_all_old_trees_go_however_many_and_however_large(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    for _ in range(4):
        grow_old(sql, finish_tree(broker, sql))
    for _ in range(4):
        start_run(broker, Graph("small", (node(0),)))
    run_all_tasks(broker, sql, set())
    sql.execute("update horsies.workflows set finished_at = now() - interval '40 days'")
    assert retained(broker, limits=RetentionLimits(trees=3, nodes=4))["workflows"].count == 8
    assert column(sql, RUNS) == []


def test_workflows_that_are_kept_without_a_limit_are_kept(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = finish_tree(broker, sql)
    grow_old(sql, run, 4_000)
    retained(broker, RetentionConfig(workflows=None))
    assert column(sql, RUNS) == [run]


def test_a_cancelled_workflow_stays_while_a_task_of_it_still_runs(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, tree())
    ((claim,),) = take_batch(broker).claimed
    assert broker.run(partial(control.cancel, run))
    grow_old(sql, run)
    assert retained(broker)["workflows"].count == 0
    take_batch(broker, 0, endings=[ending_of(claim)])
    assert retained(broker)["workflows"].count == 1


def test_a_tree_that_is_about_to_be_retried_stays(
    broker: PostgresBroker, database: str, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("one", (node(0),)))
    run_all_tasks(broker, sql, {(0,)})
    grow_old(sql, run)
    with psycopg.connect(database) as other:
        other.execute("select from horsies.workflows where id = %s for update", [run])
        done = retained(broker)["workflows"]
        assert (done.count, done.postponed) == (0, True)
    assert broker.run(partial(control.retry, run))
    assert retained(broker)["workflows"].count == 0
    run_all_tasks(broker, sql, set())
    assert status(sql, run) is WorkflowStatus.COMPLETED


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("statement", ["get_old_trees", "lock_old_trees", "delete_nodes"])
def test_a_process_that_dies_at_it_leaves_whole_trees(
    statement: str, when: When, broker: PostgresBroker, sql: psycopg.Connection, faults: Plant
) -> None:
    run = finish_tree(broker, sql)
    size = "select (select count(*) from horsies.workflows), (select count(*) from horsies.nodes)"
    (whole,) = sql.execute(size.encode()).fetchall()
    grow_old(sql, run)
    faults(statement, when, "drop")
    with pytest.raises(BrokerError, match="planted fault"):
        broker.run(partial(retention.delete_old_workflows, timedelta(days=30), FailedRows()))
    assert sql.execute(size.encode()).fetchall() in ([whole], [(0, 0)])
    retained(broker)
    assert sql.execute(size.encode()).fetchall() == [(0, 0)]


def test_a_live_workflow_goes_on_when_the_day_of_its_first_task_is_gone(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    refs = (Ref(("a",), 0, RefMode.VALUE),)
    run = start_run(broker, Graph("slow", (node(0), node(1, 0, refs=refs, args='{"a":null}')), output=1))
    ((first,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(first, result='"kept"')])
    table = make_day(sql, 9)
    sql.execute("update horsies.finished set finished_at = finished_at - interval '9 days'")
    retained(broker, WEEK)
    assert table not in days_of(sql)
    ((second,),) = take_batch(broker).claimed
    assert [one["result"] for one in json.loads(second.inputs or "")["inputs"]] == ['"kept"']
    take_batch(broker, 0, endings=[ending_of(second)])
    assert status(sql, run) is WorkflowStatus.COMPLETED
