"""Pause, resume, cancel and retry a hundred workflows at random while a worker is killed."""

from random import Random
from typing import Any

import pytest

from horsies import WorkflowHandle, WorkflowStatus
from horsies.maintenance import rescue
from horsies.workflows.inspect import get_stuck_workflows
from tests.fixtures.eventually import eventually
from tests.fixtures.workers import StartWorker

APP = "tests.apps.graphs:app"
COUNT = 100


@pytest.mark.timeout(120)
def test_no_workflow_is_stuck_after_random_operations_and_worker_deaths(graphs: Any, worker: StartWorker) -> None:
    chance = Random(5)  # noqa: S311 - no secret
    victim = worker(APP, processes=2, options=("--max-tasks-per-child=0",))
    worker(APP, options=("--max-tasks-per-child=0",))
    specs = [graphs.chain, graphs.failing, graphs.mapped, graphs.careful, graphs.nested, graphs.patchy]
    handles: list[WorkflowHandle[Any]] = [chance.choice(specs).start() for _ in range(COUNT)]
    for number in range(2 * COUNT):
        handle = chance.choice(handles)
        chance.choice([handle.pause, handle.resume, handle.cancel, handle.retry])()
        if number == COUNT:
            victim.kill()

    def all_have_ended() -> bool:
        states = {handle.workflow_id: handle.status() for handle in handles}
        for handle in handles:
            if states[handle.workflow_id] is WorkflowStatus.PAUSED:
                handle.resume()
        return all(status is not None and status.is_final for status in states.values())

    eventually(all_have_ended, 60.0, what="all have ended", seen=lambda: graphs.app.broker.run(get_stuck_workflows))
    # What was cancelled may still have a task that is being stopped; nothing else is left, and every end was propagated.
    eventually(lambda: not graphs.app.broker.run(get_stuck_workflows), 20.0, what="none is stuck")
    graphs.app.broker.run(rescue.settle_workflows)
