"""What the worker makes of a child's death."""

from dataclasses import replace

import pytest

from horsies.model.result import TaskError
from horsies.model.task import Claim
from horsies.worker.pending import PendingWork
from horsies.worker.reports import ChildReports, TaskEvents
from horsies.worker.timeouts import TaskStopper
from tests.worker.test_pending import claim, pending

CRASH = TaskError(error_code="WORKER_CRASHED", message="the child died")


def clerk_of(made: PendingWork) -> ChildReports:
    return ChildReports(made, TaskStopper(made, 1.0), TaskEvents(), entered=lambda: None, armed=lambda: None)


def deaths(claims: list[Claim]) -> list[int]:
    return [held.child_deaths for held in claims]


@pytest.mark.promise("W9")
def test_a_task_that_children_die_with_before_it_begins_is_counted_and_ended_the_third_time() -> None:
    made = pending()
    held = claim()
    for expected in (1, 2):
        clerk_of(made).on_death([], [held])
        held = made.releases.pop()
        assert held.child_deaths == expected
    clerk_of(made).on_death([], [held])
    assert made.releases == []
    assert [(of.id, of.error_code) for of in made.endings] == [(held.id, "WORKER_CRASHED")]


@pytest.mark.promise("W9")
def test_the_task_that_ran_is_to_blame_and_not_those_behind_it() -> None:
    made = pending()
    clerk_of(made).on_death([(claim(), CRASH)], [claim(), replace(claim(), child_deaths=2)])
    assert deaths(made.releases) == [0, 2]
    assert len(made.endings) == 1


def test_where_many_run_at_once_it_may_be_one_that_was_on_its_way() -> None:
    made = pending(concurrency=5)
    clerk_of(made).on_death([(claim(), CRASH)], [claim()])
    assert deaths(made.releases) == [1]


def test_children_that_are_killed_because_the_worker_leaves_count_for_nothing() -> None:
    made = pending()
    made.is_stopping = True
    clerk_of(made).on_death([], [replace(claim(), child_deaths=2)])
    assert deaths(made.releases) == [2]
