"""How graphs advance. The test plays the worker, with the statements that workers use."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg

from horsies.db.broker import PostgresBroker
from horsies.model.graph import Graph, Join, NodeKind, NodeStatus, Ref, RefMode, WorkflowStatus
from horsies.workflows.control import retry
from tests.fixtures.eventually import wait_until_blocked
from tests.fixtures.journey import column, row
from tests.workflows.steps import ending_of, node, node_path, run_all_tasks, start_run, states, status, take_batch

DONE, BAD, SKIPPED = NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED


def test_a_chain_runs_one_after_another(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("chain", (node(0), node(1, 0), node(2, 1))))
    claimed = take_batch(broker).claimed[0]
    for _ in range(2):
        (claimed,) = take_batch(broker, endings=[ending_of(claim) for claim in claimed]).claimed
        assert len(claimed) == 1
    assert states(sql, run) == (DONE, DONE, NodeStatus.ENQUEUED)
    take_batch(broker, endings=[ending_of(claimed[0])])
    assert status(sql, run) is WorkflowStatus.COMPLETED


def test_skips_cascade_and_other_branches_continue(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("fork", (node(0), node(1, 0), node(2, 1), node(3, 2), node(4), node(5, 4))))
    run_all_tasks(broker, sql, {(0,)})
    assert states(sql, run) == (BAD, SKIPPED, SKIPPED, SKIPPED, DONE, DONE)
    assert status(sql, run) is WorkflowStatus.FAILED
    assert row(sql, "select error->>'error_code' from horsies.workflows") == ("BROKEN",)


def test_results_come_back_beside_the_arguments(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    refs = (Ref(("a",), 0, RefMode.VALUE), Ref(("b", 0), 1, RefMode.RESULT))
    start_run(broker, Graph("join", (node(0), node(1), node(2, 0, 1, refs=refs, args='{"a":null,"b":[null]}'))))
    first = take_batch(broker, 2).claimed[0]
    assert [claim.inputs for claim in first] == [None, None]
    ((last,),) = take_batch(broker, endings=[ending_of(claim, result='"r"') for claim in first]).claimed
    found = json.loads(last.inputs or "")
    assert [one["result"] for one in found["inputs"]] == ['"r"', '"r"']


def test_a_sub_workflow_runs_and_returns_its_value(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    inner = Graph("inner", (node(0), node(1, 0)), output=1)
    outer = Graph("outer", (node(0), node(1, 0, kind=NodeKind.WORKFLOW, terms=None, child=inner), node(2, 1)), output=1)
    run = start_run(broker, outer)
    run_all_tasks(broker, sql, set())
    assert states(sql, run) == (DONE, DONE, DONE)
    assert status(sql, run) is WorkflowStatus.COMPLETED
    assert row(sql, "select result::text from horsies.nodes where workflow_id = %s and index = 1", run) == ("1",)


def test_a_map_runs_for_each_item_and_joins(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    each = (Ref(("item",), 0, RefMode.EACH),)
    graph = Graph(
        "map", (node(0), node(1, 0, kind=NodeKind.MAP, refs=each, args='{"item":null}', max_parallel=2), node(2, 1))
    )
    run = start_run(broker, graph)
    ((source,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(source, result="[10, 20, 30, 40, 50]")])
    seen = 0
    while seen < 5:
        (claims,) = take_batch(broker, 10).claimed
        assert 1 <= len(claims) <= 2
        items = [json.loads(claim.inputs or "")["item"] for claim in claims]
        take_batch(
            broker, 0, endings=[ending_of(claim, result=item) for claim, item in zip(claims, items, strict=True)]
        )
        seen += len(claims)
    assert row(sql, "select result::text from horsies.nodes where workflow_id = %s and index = 1", run) == (
        "[10, 20, 30, 40, 50]",
    )
    run_all_tasks(broker, sql, set())
    assert status(sql, run) is WorkflowStatus.COMPLETED


def test_a_map_over_an_empty_list_has_an_empty_list_of_results(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    each = (Ref(("item",), 0, RefMode.EACH),)
    run = start_run(broker, Graph("map", (node(0), node(1, 0, kind=NodeKind.MAP, refs=each))))
    ((source,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(source, result="[]")])
    assert states(sql, run) == (DONE, DONE)
    assert status(sql, run) is WorkflowStatus.COMPLETED


def test_a_join_of_any_runs_at_the_first_success(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    run = start_run(broker, Graph("race", (node(0), node(1), node(2, 0, 1, join=Join.ANY))))
    first, second = take_batch(broker, 2).claimed[0]
    ((third,),) = take_batch(broker, 5, endings=[ending_of(first)]).claimed
    take_batch(broker, 0, endings=[ending_of(third)])
    assert status(sql, run) is WorkflowStatus.RUNNING
    take_batch(broker, 0, endings=[ending_of(second)])
    assert status(sql, run) is WorkflowStatus.COMPLETED


def test_two_concurrent_batches_of_one_workflow_are_serialized_and_both_count(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    run = start_run(broker, Graph("meeting", (node(0), node(1), node(2, 0, 1))))
    first, second = take_batch(broker, 2).claimed[0]
    with psycopg.connect(broker.config.conninfo) as other, ThreadPoolExecutor(2) as threads:
        other.execute("select from horsies.workflows where id = %s for update", [run])
        late = [threads.submit(take_batch, broker, 0, endings=[ending_of(claim)]) for claim in (first, second)]
        wait_until_blocked(sql, other)
        assert column(sql, "select id from horsies.tasks where status <> 'RUNNING'") == []
        other.commit()
        for batch in late:
            batch.result(10)
    assert states(sql, run) == (DONE, DONE, NodeStatus.ENQUEUED)


def test_what_waits_for_a_map_gets_its_results_in_the_order_of_the_items(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    each = (Ref(("item",), 0, RefMode.EACH),)
    run = start_run(broker, Graph("order", (node(0), node(1, 0, kind=NodeKind.MAP, refs=each))))
    ((source,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(source, result="[3, 1, 2]")])
    claims = sorted(take_batch(broker, 10).claimed[0], key=lambda claim: json.loads(claim.inputs or "")["item"])
    for claim in claims:
        take_batch(broker, 0, endings=[ending_of(claim, result=json.loads(claim.inputs or "")["item"])])
    assert row(sql, "select result::text from horsies.nodes where workflow_id = %s and index = 1", run) == (
        "[3, 1, 2]",
    )


def test_a_map_over_a_value_that_is_not_a_list_fails(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    each = (Ref(("item",), 0, RefMode.EACH),)
    run = start_run(broker, Graph("no list", (node(0), node(1, 0, kind=NodeKind.MAP, refs=each), node(2, 1))))
    ((source,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(source, result='"text"')])
    assert states(sql, run) == (DONE, BAD, SKIPPED)
    assert status(sql, run) is WorkflowStatus.FAILED


def test_a_large_result_is_stored_once_however_many_take_it(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    taking = (Ref(("a",), 0, RefMode.VALUE),)
    run = start_run(
        broker, Graph("wide", (node(0), *(node(n, 0, refs=taking, args='{"a":null}') for n in range(1, 6))))
    )
    ((source,),) = take_batch(broker).claimed
    large = json.dumps("x" * 100_000)
    (claims,) = take_batch(broker, 10, endings=[ending_of(source, result=large)]).claimed
    assert all(json.loads(claim.inputs or "")["inputs"][0]["result"] == large for claim in claims)
    assert row(sql, "select max(length(args::text)) from horsies.tasks where root_id = %s", run) == (10,)


def fill_items(sql: psycopg.Connection, run: str, text: str, count: int) -> None:
    """By hand, where the database keeps it compressed: each result is that text so often, less than a stored value may be."""
    sql.execute(
        "update horsies.nodes set result = to_json(repeat(%s, %s)) where root_id = %s and status = 'COMPLETED' and item is not null",
        [text, count, run],
    )


def test_a_map_whose_results_are_too_large_for_one_value_fails_and_the_step_succeeds(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    each = (Ref(("item",), 0, RefMode.EACH),)
    run = start_run(
        broker, Graph("large map", (node(0), node(1, 0, kind=NodeKind.MAP, refs=each), node(2, 1), node(3)))
    )
    source, other = sorted(take_batch(broker, 2).claimed[0], key=lambda claim: node_path(sql, claim.id))
    take_batch(broker, 0, endings=[ending_of(source, result=json.dumps(list(range(18))))])
    *items, last = take_batch(broker, 18).claimed[0]
    take_batch(broker, 0, endings=[ending_of(claim) for claim in items])
    fill_items(sql, run, "x", 16_000_000)
    take_batch(broker, 0, endings=[ending_of(last), ending_of(other)])
    assert states(sql, run) == (DONE, BAD, SKIPPED, DONE)
    assert status(sql, run) is WorkflowStatus.FAILED
    error = row(sql, "select error from horsies.nodes where workflow_id = %s and index = 1", run)[0]
    assert error["error_code"] == "WORKER_SERIALIZATION_ERROR"
    assert "has 272,000,072 bytes of JSON, and a value can have 268,435,456 at most" in error["message"]
    assert "return where it is" in error["message"]
    assert column(sql, "select status from horsies.workflows where is_map") == ["FAILED"]


def test_a_retry_of_a_map_that_is_too_large_fails_in_the_same_way(
    broker: PostgresBroker, sql: psycopg.Connection
) -> None:
    each = (Ref(("item",), 0, RefMode.EACH),)
    run = start_run(broker, Graph("large map", (node(0), node(1, 0, kind=NodeKind.MAP, refs=each))))
    ((source,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(source, result=json.dumps(list(range(18))))])
    *items, last = take_batch(broker, 18).claimed[0]
    take_batch(broker, 0, endings=[ending_of(claim) for claim in items])
    fill_items(sql, run, "x", 16_000_000)
    take_batch(broker, 0, endings=[ending_of(last)])
    assert broker.run(partial(retry, run))
    assert states(sql, run) == (DONE, BAD)
    assert status(sql, run) is WorkflowStatus.FAILED
    fill_items(sql, run, "x", 10)
    assert broker.run(partial(retry, run))
    assert status(sql, run) is WorkflowStatus.COMPLETED


def test_compressed_results_count_with_their_full_size(broker: PostgresBroker, sql: psycopg.Connection) -> None:
    each = (Ref(("item",), 0, RefMode.EACH),)
    run = start_run(broker, Graph("map", (node(0), node(1, 0, kind=NodeKind.MAP, refs=each))))
    ((source,),) = take_batch(broker).claimed
    take_batch(broker, 0, endings=[ending_of(source, result="[1, 2, 3]")])
    *items, last = take_batch(broker, 3).claimed[0]
    take_batch(broker, 0, endings=[ending_of(claim) for claim in items])
    fill_items(sql, run, "x", 1_000_000)
    take_batch(broker, 0, endings=[ending_of(last)])
    assert status(sql, run) is WorkflowStatus.COMPLETED
    size = row(sql, "select octet_length(result::text) from horsies.nodes where workflow_id = %s and index = 1", run)
    assert size == (2_000_011,)
