"""Maps with failures, their results item by item, and lists that are given when the workflow is built."""

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg
import pytest

from horsies import NodeKey, NodeStatus, SubWorkflowNode, WorkflowStatus, each, from_node, results_from
from horsies.db.broker import PostgresBroker
from horsies.maintenance.rescue import settle_workflows
from horsies.model.graph import Graph, Node, NodeKind, Ref, RefMode
from horsies.workflows import control
from horsies.workflows.inputs import inputs_from_json
from horsies.workflows.inspect import get_stuck_workflows
from horsies.workflows.start import plan_start, start_in_transaction
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column, row
from tests.fixtures.workers import StartWorker
from tests.workflows.steps import ending_of, node, run_all_tasks, start_run, states, status, take_batch

APP = "tests.apps.graphs:app"
TIMEOUT_MS = 20_000
DONE, BAD, SKIPPED, PENDING, READY, QUEUED, RUNNING = (
    NodeStatus.COMPLETED,
    NodeStatus.FAILED,
    NodeStatus.SKIPPED,
    NodeStatus.PENDING,
    NodeStatus.READY,
    NodeStatus.ENQUEUED,
    NodeStatus.RUNNING,
)


def mapped(items: list[Any], **options: Any) -> Node:
    """Node 0: a map over a list that is known."""
    refs = (Ref(("item",), -1, RefMode.EACH),)
    return node(0, kind=NodeKind.MAP, refs=refs, args='{"item":null}', items=json.dumps(items), **options)


def joined(**options: Any) -> Node:
    """Node 1: takes the results of all items of node 0."""
    return node(1, 0, refs=(Ref(("pages",), 0, RefMode.RESULTS),), args='{"pages":null}', **options)


def items_of(sql: psycopg.Connection) -> tuple[NodeStatus, ...]:
    return states(sql, str(row(sql, "select id from horsies.workflows where is_map")[0]))


def given_to(inputs: str | None) -> Any:
    text = inputs_from_json(inputs or "").insert_into('{"pages":null}')
    assert isinstance(text, str)
    return json.loads(text)["pages"]


# -- when a map counts as failed


@pytest.mark.parametrize(
    ("limits", "failed", "end"),
    [
        ({}, 0, DONE),
        ({}, 1, BAD),
        ({"max_failures": 0}, 0, DONE),
        ({"max_failures": 0}, 1, BAD),
        ({"max_failures": 1}, 1, DONE),
        ({"max_failures": 1}, 2, BAD),
        ({"max_failures": 4}, 4, DONE),
        ({"min_item_success": 0}, 4, DONE),
        ({"min_item_success": 3}, 1, DONE),
        ({"min_item_success": 3}, 2, BAD),
        ({"max_failures": 2, "min_item_success": 3}, 2, BAD),
        ({"max_failures": 0, "min_item_success": 1}, 1, BAD),
    ],
)
def test_a_map_counts_as_failed_when_its_limits_say_so(
    limits: dict[str, int], failed: int, end: NodeStatus, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2, 3, 4], **limits),)))
    run_all_tasks(broker, sql, {(0, number) for number in range(failed)})
    assert states(sql, run) == (end,)
    assert items_of(sql) == (BAD,) * failed + (DONE,) * (4 - failed)
    assert status(sql, run) is (WorkflowStatus.COMPLETED if end is DONE else WorkflowStatus.FAILED)
    assert broker.run(get_stuck_workflows) == []


def test_a_map_runs_all_items_after_too_many_failures(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2, 3], max_parallel=1, max_failures=0),)))
    ((claim,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(claim, fails=True)])
    assert states(sql, run) == (RUNNING,)
    assert items_of(sql) == (BAD, QUEUED, READY)


def test_a_map_with_fewer_items_than_must_succeed_says_so(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    numbers = graphs.up_to.node(node_id="numbers")(1)
    more = graphs.add.map_node(node_id="more", min_success=2)(each(numbers))
    error = graphs.app.workflow("few", [numbers, more]).start().get(TIMEOUT_MS).unwrap_err()
    assert (error.error_code, error.message) == ("WORKFLOW_FAILED", "1 of its 1 items succeeded, and min_success is 2")


# -- what others are given of it


def test_a_node_is_given_the_results_of_all_items_in_their_order(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    start_run(broker, Graph("map", (mapped([1, 2, 3], max_failures=1), joined())))
    claims = take_batch(broker, 3).claimed[0]
    by_item = {json.loads(inputs_from_json(claim.inputs or "").item or ""): claim for claim in claims}
    take_batch(broker, 0, endings=[ending_of(by_item[3], result='"three"')])
    take_batch(broker, 0, endings=[ending_of(by_item[2], fails=True)])
    take_batch(broker, 0, endings=[ending_of(by_item[1], result='"one"')])
    ((claim,),) = take_batch(broker).claimed
    first, second, third = given_to(claim.inputs)
    assert (first, third) == ({"ok": "one"}, {"ok": "three"})
    assert second["err"]["error_code"] == "BROKEN"


@pytest.mark.parametrize("allows", [False, True])
def test_of_a_map_that_failed_they_are_given_to_those_who_allow_failures(
    *, allows: bool, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2]), joined(allow_failed_deps=allows))))
    first, second = take_batch(broker, 2).claimed[0]
    take_batch(broker, 0, endings=[ending_of(first), ending_of(second, fails=True)])
    assert states(sql, run) == (BAD, QUEUED if allows else SKIPPED)
    if allows:
        ((claim,),) = take_batch(broker).claimed
        assert [next(iter(result)) for result in given_to(claim.inputs)] == ["ok", "err"]


def test_with_any_join_it_waits_for_the_end_of_the_map(
    graphs: Any, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    one = graphs.give.node(node_id="one")(1)
    more = graphs.add.map_node(node_id="more")(each([1]))
    last = graphs.codes.node(node_id="last", join="any", waits_for=[one])(results_from(more))
    run = start_run(broker, graphs.app.workflow("any", [one, more, last]).graph)
    ends = {claim.task_name: claim for claim in take_batch(broker, 2).claimed[0]}
    take_batch(broker, 0, endings=[ending_of(ends["give"])])
    assert states(sql, run)[2] is PENDING
    take_batch(broker, 0, endings=[ending_of(ends["add"], fails=True)])
    assert states(sql, run)[2] is QUEUED


def test_a_map_that_never_had_items_gives_no_results(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    bad = graphs.refuse.node(node_id="bad")()
    numbers = graphs.up_to.node(node_id="numbers", waits_for=[bad])(1)
    more = graphs.add.map_node(node_id="more")(each(numbers))
    last = graphs.codes.node(node_id="last", allow_failed_deps=True)(results_from(more))
    handle = graphs.app.workflow("none", [bad, numbers, more, last]).start()
    assert handle.get(TIMEOUT_MS).unwrap_err().error_code == "REFUSED"
    error = handle.result_for(last).unwrap_err()
    assert error.error_code == "UPSTREAM_SKIPPED"
    assert error.message.startswith("node 'more' has no value, because it is SKIPPED")


def test_items_that_were_stopped_arrive_as_skipped(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2, 3], max_parallel=1), joined(allow_failed_deps=True))))
    ((claim,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(claim)])
    ((claim,),) = take_batch(broker).claimed
    broker.run(partial(control.cancel, str(row(sql, "select id from horsies.workflows where is_map")[0])))
    assert states(sql, run) == (BAD, QUEUED)
    ((last,),) = take_batch(broker).claimed
    first, second, third = given_to(last.inputs)
    assert first == {"ok": 1}
    assert (second["err"]["error_code"], third["err"]["error_code"]) == ("RESULT_NOT_READY", "UPSTREAM_SKIPPED")
    take_batch(broker, 0, endings=[ending_of(claim, fails=True)])


def test_a_null_character_in_a_result_or_an_error_arrives(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    texts = graphs.echo.map_node(node_id="texts", max_failures=1)(each(["a\0b", "!\0"]))
    last = graphs.texts_of.node(node_id="last")(results_from(texts))
    handle = graphs.app.workflow("nulls", [texts, last], output=last).start()
    assert handle.get(TIMEOUT_MS).unwrap() == ["a\0b", "!\0"]


def test_real_workers_run_a_map_with_failures_and_its_join(graphs: Any, worker: StartWorker) -> None:
    worker(APP, processes=2)
    halves = graphs.halve.map_node(node_id="halves", max_failures=2)(each([2, 3, 4, 5]))
    last = graphs.codes.node(node_id="last")(results_from(halves))
    spec = graphs.app.workflow("halves", [halves, last], output=last)
    handle = spec.start()
    assert handle.get(TIMEOUT_MS).unwrap() == ["1", "ODD", "2", "ODD"]
    assert handle.status() is WorkflowStatus.COMPLETED
    assert handle.result_for(halves).unwrap() == [1, 2]
    assert handle.results()["halves"].unwrap() == [1, 2]
    (of_items,) = [info.workflow_id for info in handle.tasks() if info.node_id == "halves"]
    by_item = graphs.app.workflow_handle(of_items).get(TIMEOUT_MS).unwrap()
    assert [*by_item] == ["halves[0]", "halves[1]", "halves[2]", "halves[3]"]
    assert by_item["halves[3]"].unwrap_err().error_code == "ODD"


def test_results_flow_into_a_sub_workflow_and_into_another_map(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    halves = graphs.halve.map_node(node_id="halves", max_failures=1)(each([2, 3]))
    inner = SubWorkflowNode(graphs.CodesOf, kwargs={"results": results_from(halves)}, node_id="inner")
    by_name = SubWorkflowNode(graphs.CodesOf, args_from={"results": halves}, node_id="by name")
    ways = graphs.code_at.map_node(node_id="ways")(each([0, 1]), results_from(halves))
    handle = graphs.app.workflow("into", [halves, inner, by_name, ways]).start()
    last = {name: result.unwrap() for name, result in handle.get(TIMEOUT_MS).unwrap().items()}
    assert last == {"inner": ["1", "ODD"], "by name": ["1", "ODD"], "ways": ["1", "ODD"]}


def test_a_map_goes_through_what_succeeded_of_another(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    halves = graphs.halve.map_node(node_id="halves", max_failures=2)(each([2, 3, 4, 5]))
    more = graphs.add.map_node(node_id="more")(each(halves))
    handle = graphs.app.workflow("both", [halves, more], output=more).start()
    assert handle.get(TIMEOUT_MS).unwrap() == [2, 3]


# -- what becomes of it


def test_a_retry_runs_the_failed_items_of_a_map_that_failed(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2, 3, 4], max_failures=1), joined())))
    run_all_tasks(broker, sql, {(0, 0), (0, 1)})
    assert states(sql, run) == (BAD, SKIPPED)
    assert broker.run(partial(control.retry, run))
    assert items_of(sql) == (QUEUED, QUEUED, DONE, DONE)
    run_all_tasks(broker, sql, {(0, 1)})
    assert states(sql, run) == (DONE, DONE)
    assert items_of(sql) == (DONE, BAD, DONE, DONE)
    assert status(sql, run) is WorkflowStatus.COMPLETED


def test_a_retry_leaves_a_map_alone_that_counts_as_successful(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2], max_failures=1), joined())))
    run_all_tasks(broker, sql, {(0, 0), (1,)})
    assert states(sql, run) == (DONE, BAD)
    assert broker.run(partial(control.retry, run))
    assert items_of(sql) == (BAD, DONE)
    run_all_tasks(broker, sql, set())
    assert states(sql, run) == (DONE, DONE)


def test_failures_within_the_limit_pause_nothing(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    graph = Graph("map", (mapped([1, 2, 3], max_parallel=1, max_failures=1), joined()), on_error="pause")  # pyright: ignore[reportArgumentType]
    run = start_run(broker, graph)
    run_all_tasks(broker, sql, {(0, 0)})
    assert status(sql, run) is WorkflowStatus.COMPLETED


def test_a_pause_in_the_middle_keeps_what_failed(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2, 3], max_parallel=1, max_failures=1), joined())))
    ((claim,),) = take_batch(broker).claimed
    assert broker.run(partial(control.pause, run))
    take_batch(broker, 0, endings=[ending_of(claim, fails=True)])
    assert items_of(sql) == (BAD, READY, READY)
    assert broker.run(partial(control.resume, run))
    run_all_tasks(broker, sql, set())
    assert (states(sql, run), status(sql, run)) == ((DONE, DONE), WorkflowStatus.COMPLETED)


def test_a_cancellation_in_the_middle_ends_it(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2, 3], max_failures=3), joined())))
    ((claim,),) = take_batch(broker).claimed
    assert broker.run(partial(control.cancel, run))
    take_batch(broker, 0, endings=[ending_of(claim, fails=True)])
    assert status(sql, run) is WorkflowStatus.CANCELLED
    assert states(sql, run) == (BAD, SKIPPED)
    assert broker.run(get_stuck_workflows) == []


def test_a_map_ends_although_the_worker_of_its_last_item_dies_before_the_step(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2], max_failures=1), joined())))
    first, second = take_batch(broker, 2).claimed[0]
    sql.execute(
        "update horsies.nodes set propagated = false, status = 'FAILED', error = %s where task_id = %s",
        ['{"error_code":"X"}', first.id],
    )
    sql.execute(
        "update horsies.nodes set propagated = false, status = 'COMPLETED', result = '1' where task_id = %s",
        [second.id],
    )
    sql.execute("delete from horsies.tasks")
    broker.run(settle_workflows)
    assert states(sql, run) == (DONE, QUEUED)
    assert broker.run(get_stuck_workflows) == []


# -- lists that are given


@pytest.mark.parametrize("options", [{}, {"max_parallel": 2}], ids=["all at once", "two at once"])
@pytest.mark.parametrize("items", [[], [1, 2, 3], (4, 5), range(3)], ids=repr)
def test_a_map_goes_through_a_list_that_is_given(
    items: Any, options: dict[str, Any], graphs: Any, worker: StartWorker
) -> None:
    worker(APP)
    more = graphs.add.map_node(node_id="more", **options)(each(items), b=10)
    total = graphs.add_up.node(node_id="total")(from_node(more))
    handle = graphs.app.workflow("given", [more, total], output=total).start()
    assert handle.get(TIMEOUT_MS).unwrap() == sum(number + 10 for number in items)


def test_its_items_are_written_by_the_annotation_and_may_be_null(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    days = graphs.day_of.map_node(node_id="days")(each([at, None]))
    spec = graphs.app.workflow("days", [days], output=days)
    assert spec.start().get(TIMEOUT_MS).unwrap() == ["2026-01-02", "never"]


def test_a_list_is_as_it_was_when_the_node_was_made(graphs: Any) -> None:
    items = [1, 2]
    more = graphs.add.map_node()(each(items))
    items.append(3)
    assert graphs.app.workflow("given", [more]).graph.nodes[0].items == "[1,2]"


def test_a_given_list_waits_for_other_nodes_and_runs_inside_of_sub_workflows(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    first = graphs.give.node(node_id="first")(1)
    more = graphs.add.map_node(node_id="more", waits_for=[first])(each([1, 2]), b=from_node(first))
    at_once = graphs.add.map_node(node_id="at once")(each([5]))
    inner = graphs.app.workflow("inner", [first, more, at_once], output=more)
    outer = SubWorkflowNode(inner, node_id="outer")
    handle = graphs.app.workflow("outer", [outer], output=outer).start()
    assert handle.get(TIMEOUT_MS).unwrap() == [2, 3]


def test_a_map_started_in_the_callers_transaction_is_expanded_by_the_maintenance_leader(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    beginning = plan_start(Graph("map", (mapped([1, 2]),)))
    broker.run(partial(start_in_transaction, beginning))
    assert states(sql, beginning.root) == (READY,)
    assert broker.run(get_stuck_workflows) != []
    broker.run(settle_workflows)
    assert items_of(sql) == (QUEUED, QUEUED)


def test_a_start_that_is_repeated_after_its_answer_was_lost_opens_it_once(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    graph = Graph("map", (mapped([1, 2]),))
    run = start_run(broker, graph, "01a1e6a1-f358-744b-91cb-dfd0e1b99856")
    assert start_run(broker, graph, run) == run
    assert column(sql, "select count(*) from horsies.tasks") == [2]


def test_the_results_are_read_only_by_those_who_ask(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("map", (mapped([1, 2]), node(1, 0, refs=(Ref(("a",), 0, RefMode.VALUE),)))))
    run_all_tasks(broker, sql, set())
    assert states(sql, run) == (DONE, DONE)
    assert column(sql, "select count(*) from horsies.nodes where results_of is not null") == [0]


def test_a_key_names_a_map_as_well(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    halves = graphs.halve.map_node(node_id="halves", max_failures=1)(each([2, 3]))
    last = graphs.codes.node(node_id="last")(results_from(NodeKey[list[int]]("halves")))
    spec = graphs.app.workflow("by key", [halves, last], output=last)
    assert spec.start().get(TIMEOUT_MS).unwrap() == ["1", "ODD"]


def test_a_worker_that_dies_while_items_run_loses_none(
    graphs: Any, worker: StartWorker, broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    victim = worker(APP, processes=2)
    lasting = graphs.linger.map_node(node_id="lasting", max_failures=1)(each([-1.0, 0.5, 0.5]))
    last = graphs.codes.node(node_id="last")(results_from(lasting))
    handle = graphs.app.workflow("dies", [lasting, last], output=last).start()
    eventually(lambda: column(sql, "select id from horsies.tasks where status = 'RUNNING'"))
    victim.kill()
    worker(APP)
    assert handle.get(TIMEOUT_MS).unwrap() == ["UNHANDLED_ERROR", "1", "1"]
    assert broker.run(get_stuck_workflows) == []
