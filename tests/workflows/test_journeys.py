"""Workflows by real workers, from start to get."""

from typing import Any

from horsies import NodeKey, NodeStatus
from horsies.model.graph import WorkflowStatus
from tests.fixtures.workers import StartWorker

APP = "tests.apps.graphs:app"
TIMEOUT_MS = 20_000


def test_a_value_flows_along_a_chain(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = graphs.chain.start()
    assert handle.get(TIMEOUT_MS).unwrap() == 2
    assert handle.status() is WorkflowStatus.COMPLETED
    assert handle.result_for(graphs.one).unwrap() == 1


def test_many_results_meet_in_one_node(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = graphs.fan.start()
    assert handle.get(TIMEOUT_MS).unwrap() == sum(range(20))
    assert {info.status for info in handle.tasks()} == {NodeStatus.COMPLETED}


def test_failures_arrive_as_values_and_fail_the_workflow(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = graphs.failing.start()
    assert handle.get(TIMEOUT_MS).unwrap_err().error_code == "REFUSED"
    assert handle.result_for(NodeKey[list[str]]("report")).unwrap() == ["1", "REFUSED", "UPSTREAM_SKIPPED"]
    assert handle.status() is WorkflowStatus.FAILED
    assert "after bad  SKIPPED" in handle.to_text()


def test_a_map_runs_a_task_for_each_item(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = graphs.mapped.start()
    assert handle.get(TIMEOUT_MS).unwrap() == sum(range(10, 15))
    assert handle.result_for(graphs.more).unwrap() == [10, 11, 12, 13, 14]


def test_a_task_can_look_at_its_workflow(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    assert graphs.looking.start().get(TIMEOUT_MS).unwrap() == ["looking", "looker", "42"]


async def test_asyncio_code_starts_waits_and_looks(graphs: Any, worker: StartWorker) -> None:
    worker(APP)
    handle = await graphs.chain.start_async()
    assert (await handle.get_async(TIMEOUT_MS)).unwrap() == 2
    assert await handle.status_async() is WorkflowStatus.COMPLETED
    assert [*(await handle.results_async())] == ["one", "two"]
    assert "two  COMPLETED" in await handle.to_text_async()
    await graphs.app.close_async()
