"""How the death of a child affects the tasks that it held."""

from typing import Any

import pytest

from horsies.model.result import TaskError
from horsies.model.task import Claim
from horsies.worker.child import ChildExited
from tests.fixtures.dispatching import Child, Simulation, claim, simulate

CRASH = TaskError(error_code="WORKER_CRASHED", message="the child died")


def die(simulation: Simulation, begun: list[tuple[Claim, TaskError]], waiting: list[Claim]) -> None:
    child: Any = Child()
    simulation.dispatcher.on_child_report(child, ChildExited(begun, waiting))


def deaths(simulation: Simulation) -> list[int]:
    return [held.child_deaths for held in simulation.state.releases]


@pytest.mark.promise("W9")
def test_a_task_with_which_three_children_die_before_it_begins_fails() -> None:
    simulation = simulate()
    held = claim()
    for expected in (1, 2):
        die(simulation, [], [held])
        held = simulation.state.releases.pop()
        assert held.child_deaths == expected
    die(simulation, [], [held])
    assert simulation.state.releases == []
    assert [(of.id, of.error_code) for of in simulation.state.endings] == [(held.id, "WORKER_CRASHED")]


@pytest.mark.promise("W9")
def test_the_running_task_is_to_blame_and_not_those_that_wait() -> None:
    simulation = simulate()
    die(simulation, [(claim(), CRASH)], [claim(), claim()._replace(child_deaths=2)])
    assert deaths(simulation) == [0, 2]
    assert len(simulation.state.endings) == 1


def test_with_concurrency_a_task_that_was_about_to_begin_may_be_to_blame() -> None:
    simulation = simulate(concurrency=5)
    die(simulation, [(claim(), CRASH)], [claim()])
    assert deaths(simulation) == [1]


@pytest.mark.promise("W9")
def test_with_concurrency_tasks_without_a_slot_are_not_to_blame() -> None:
    simulation = simulate(concurrency=3, prefetch="auto")
    die(simulation, [(claim(), CRASH), (claim(), CRASH)], [claim() for _ in range(4)])
    assert deaths(simulation) == [1, 0, 0, 0]


def test_children_killed_by_a_shutdown_do_not_count() -> None:
    simulation = simulate()
    simulation.state.is_stopping = True
    die(simulation, [], [claim()._replace(child_deaths=2)])
    assert deaths(simulation) == [2]
