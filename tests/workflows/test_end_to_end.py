"""Workflows by real workers, from start to get."""

from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection

from horsies import (
    NodeKey,
    NodeStatus,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskNode,
    WorkflowStatus,
    from_node,
)
from horsies.workflows.inspect import get_stuck_workflows
from tests.fixtures.eventually import eventually
from tests.fixtures.journey import column
from tests.fixtures.workers import StartWorker

APP = "tests.apps.graphs:app"
TIMEOUT_MS = 20_000


@pytest.mark.promise("T3")
def test_a_value_flows_along_a_chain(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = graphs.chain.start()
    assert handle.get(TIMEOUT_MS).unwrap() == 2
    assert handle.status() is WorkflowStatus.COMPLETED
    assert handle.result_for(graphs.one).unwrap() == 1


@pytest.mark.promise("T3")
def test_many_results_meet_in_one_node(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = graphs.fan.start()
    assert handle.get(TIMEOUT_MS).unwrap() == sum(range(20))
    assert {info.status for info in handle.tasks()} == {NodeStatus.COMPLETED}


@pytest.mark.promise("T3")
def test_a_node_begins_when_all_that_it_waits_for_has_ended(graphs: Any, worker: StartWorker, tmp_path: Path) -> None:
    """One of two is held until a task that was sent after the other has ended, too."""
    worker(APP, processes=2)
    quick, held = graphs.give.node(node_id="quick")(1), graphs.wait_until.node(node_id="held")(str(tmp_path / "open"))
    both = graphs.add_up.node(node_id="both")([from_node(quick), from_node(held)])
    handle = graphs.app.workflow("meet", [quick, held, both], output=both).start()
    eventually(lambda: {info.node_id: info.status for info in handle.tasks()}["quick"] is NodeStatus.COMPLETED)
    assert graphs.add.send(1, 2).get(TIMEOUT_MS).unwrap() == 3
    assert {info.node_id: info.status for info in handle.tasks()}["both"] is NodeStatus.PENDING
    (tmp_path / "open").touch()
    assert handle.get(TIMEOUT_MS).unwrap() == 8


@pytest.mark.promise("T3")
def test_failures_arrive_as_values_and_fail_the_workflow(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = graphs.failing.start()
    assert handle.get(TIMEOUT_MS).unwrap_err().error_code == "REFUSED"
    assert handle.result_for(NodeKey[list[str]]("report")).unwrap() == ["1", "REFUSED", "UPSTREAM_SKIPPED"]
    assert handle.status() is WorkflowStatus.FAILED
    assert "after bad  SKIPPED" in handle.to_text()


@pytest.mark.promise("T3")
def test_a_map_runs_a_task_for_each_item(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = graphs.mapped.start()
    assert handle.get(TIMEOUT_MS).unwrap() == sum(range(10, 15))
    assert handle.result_for(graphs.more).unwrap() == [10, 11, 12, 13, 14]


@pytest.mark.promise("T3")
def test_a_task_can_look_at_its_workflow(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    assert graphs.looking.start().get(TIMEOUT_MS).unwrap() == ["looking", "looker", "42"]


async def test_a_blocking_start_inside_an_event_loop_works_and_warns(graphs: Any) -> None:
    with pytest.warns(UserWarning, match="use `await spec.start_async") as caught:
        handle = graphs.chain.start()
    assert caught[0].filename == __file__
    assert await handle.status_async() == WorkflowStatus.RUNNING
    await graphs.app.close_async()


@pytest.mark.promise("T3")
async def test_asyncio_code_starts_waits_and_looks(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = await graphs.chain.start_async()
    assert (await handle.get_async(TIMEOUT_MS)).unwrap() == 2
    assert await handle.status_async() is WorkflowStatus.COMPLETED
    assert [*(await handle.results_async())] == ["one", "two"]
    assert "two  COMPLETED" in await handle.to_text_async()
    await graphs.app.close_async()


@pytest.mark.promise("T3")
def test_a_sub_workflow_gives_its_value_to_the_one_around_it(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = graphs.nested.start()
    assert handle.get(TIMEOUT_MS).unwrap() == 5
    inside = next(info for info in handle.tasks() if info.node_id == "inside")
    assert graphs.app.workflow_handle(inside.workflow_id, graphs.chain).get(TIMEOUT_MS).unwrap() == 2


@pytest.mark.promise("T3")
def test_an_error_pauses_and_a_retry_goes_on(graphs: Any, worker: StartWorker, tmp_path: Path) -> None:
    worker(APP)
    there = tmp_path / "there"
    wants = graphs.refuse_until.node(node_id="wants")(str(there))
    handle = graphs.app.workflow("later", [wants, graphs.add.node()(from_node(wants))], on_error="pause").start()
    assert handle.get(TIMEOUT_MS).unwrap_err().error_code == "WORKFLOW_PAUSED"
    there.touch()
    assert handle.retry()
    assert handle.get(TIMEOUT_MS).is_ok()


@pytest.mark.promise("T3")
def test_a_node_is_retried_by_its_task_s_own_policy(graphs: Any, worker: StartWorker, tmp_path: Path) -> None:
    worker(APP)
    node = graphs.flaky.node()(str(tmp_path / "seen"))
    assert graphs.app.workflow("flaky", [node], output=node).start().get(TIMEOUT_MS).unwrap() == 1


@pytest.mark.promise("T3")
def test_a_cancellation_reaches_what_runs_in_a_sub_workflow(graphs: Any, worker: StartWorker, sql: Connection) -> None:
    worker(APP)
    inside = graphs.app.workflow("slow", [graphs.linger.node(node_id="slow")(60.0)])
    handle = graphs.app.workflow("around", [SubWorkflowNode(inside, node_id="inside")]).start()
    eventually(lambda: column(sql, "select id from horsies.tasks where status = 'RUNNING'"), 20.0)
    assert handle.cancel()
    assert handle.get(TIMEOUT_MS).unwrap_err().error_code == "WORKFLOW_CANCELLED"
    eventually(lambda: not column(sql, "select id from horsies.tasks"), 20.0, what="the task was stopped")


@pytest.mark.promise("T3", "W9")
@pytest.mark.parametrize("fault", ["advance_nodes:after:kill", "finish_runs:before:kill", "start_runs:after:kill"])
def test_a_worker_killed_in_a_step_leaves_a_workflow_that_another_completes(
    graphs: Any, worker: StartWorker, fault: str
) -> None:
    victim = worker(APP, faults=fault)
    slow = graphs.linger.node(node_id="slow")(0.0)  # may run again after a crash
    inside = SubWorkflowNode(graphs.app.workflow("part", [slow], output=slow), node_id="inside", waits_for=[graphs.one])
    handle = graphs.app.workflow("whole", [graphs.one, inside, graphs.two], output=inside).start()
    victim.wait()
    worker(APP)
    result = handle.get(TIMEOUT_MS)
    # A task whose ending died with its worker has crashed; whichever it is, the workflow has an end.
    assert result.is_ok() or result.unwrap_err().error_code == "WORKER_CRASHED"
    assert graphs.app.broker.run(get_stuck_workflows) == []


# -- without an output


@pytest.mark.promise("T3")
def test_a_workflow_without_an_output_gives_the_results_of_its_last_nodes(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    first, bad = graphs.give.node(node_id="first")(1), graphs.refuse.node(node_id="bad")()
    last = [graphs.add.node(node_id="second")(from_node(first)), graphs.add.node(node_id="never")(from_node(bad))]
    policy = SuccessPolicy(cases=[SuccessCase(required=["second"])])
    handle = graphs.app.workflow("open", [first, bad, *last], success_policy=policy).start()
    found = handle.get(TIMEOUT_MS).unwrap()
    assert [*found] == ["second", "never"]
    assert found["second"].unwrap() == 2
    assert found["never"].unwrap_err().error_code == "UPSTREAM_SKIPPED"


async def test_asyncio_code_is_given_them_as_well(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = await graphs.app.workflow("open", [graphs.one, graphs.two]).start_async()
    assert {name: result.unwrap() for name, result in (await handle.get_async(TIMEOUT_MS)).unwrap().items()} == {
        "two": 2
    }
    await graphs.app.close_async()


def test_a_node_that_another_only_has_in_its_context_is_not_a_last_one(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    first, second = graphs.give.node(node_id="first")(1), graphs.give.node(node_id="second")(2)
    last = TaskNode(
        graphs.look_at,
        {"names": ["second"]},
        waits_for=[first],
        workflow_ctx_from=[second],
        join="any",
        node_id="last",
    )
    handle = graphs.app.workflow("context", [first, second, last]).start()
    assert {name: result.unwrap() for name, result in handle.get(TIMEOUT_MS).unwrap().items()} == {"last": ["2"]}


def test_a_run_that_retention_has_removed_before_its_results_were_read_is_not_known(
    graphs: Any, worker: StartWorker, sql: Connection
) -> None:
    worker(APP)
    handle = graphs.app.workflow("open", [graphs.one]).start()
    handle.get(TIMEOUT_MS).unwrap()
    sql.execute("delete from horsies.nodes")
    assert handle.get(TIMEOUT_MS).unwrap_err().error_code == "WORKFLOW_NOT_FOUND"


# -- the error of a sub-workflow


def test_the_error_of_a_sub_workflow_says_which_nodes_failed_and_how_many_succeeded(
    graphs: Any, worker: StartWorker
) -> None:
    worker(APP)
    bad = graphs.refuse.node(node_id="bad\"'")()
    inner = graphs.app.workflow("inner", [graphs.give.node(node_id="good")(1), bad, graphs.add.node()(from_node(bad))])
    middle = SubWorkflowNode(inner, node_id="middle")
    outer = SubWorkflowNode(graphs.app.workflow("middle", [middle]), node_id="outer")
    handle = graphs.app.workflow("outer", [outer]).start()
    error = handle.get(TIMEOUT_MS).unwrap_err()
    assert error.error_code == "REFUSED"
    assert error.message == (
        "node 'middle' failed, 0 of 1 nodes succeeded: node 'bad\"'' failed, 1 of 3 nodes succeeded: as it was asked to"
    )
    assert handle.result_for(outer).unwrap_err() == error


def test_of_many_failed_nodes_the_first_are_named(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    inner = graphs.app.workflow("inner", [graphs.refuse.node(node_id=f"n{number}")() for number in range(5)])
    error = graphs.app.workflow("outer", [SubWorkflowNode(inner)]).start().get(TIMEOUT_MS).unwrap_err()
    names, _, rest = error.message.partition(" and 2 more failed, ")
    assert names.startswith("nodes 'n")
    assert names.count(", ") == 2
    assert rest == "0 of 5 nodes succeeded: as it was asked to"


def test_an_error_with_a_null_character_passes_through_a_sub_workflow(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    inner = graphs.app.workflow("inner", [graphs.echo.node(node_id="loud")("!\0\\")])
    error = graphs.app.workflow("outer", [SubWorkflowNode(inner)]).start().get(TIMEOUT_MS).unwrap_err()
    assert error.message == "node 'loud' failed, 0 of 1 nodes succeeded: !\0\\"
    assert error.data == ["!\0\\"]


def test_a_sub_workflow_none_of_whose_cases_is_satisfied_says_how_many_succeeded(
    graphs: Any, worker: StartWorker
) -> None:
    worker(APP)
    skipped = graphs.add.node(node_id="skipped", waits_for=["bad"])(1)
    policy = SuccessPolicy(cases=[SuccessCase(required=[skipped])])
    nodes = [graphs.give.node(node_id="good")(1), graphs.refuse.node(node_id="bad")(), skipped]
    inner = graphs.app.workflow("inner", nodes, success_policy=policy)
    error = graphs.app.workflow("outer", [SubWorkflowNode(inner)]).start().get(TIMEOUT_MS).unwrap_err()
    assert error.message.startswith("node 'bad' failed, 1 of 3 nodes succeeded: ")
