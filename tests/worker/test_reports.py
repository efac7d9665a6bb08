"""How the death of a child affects the tasks that it held."""

from dataclasses import replace

import pytest

from horsies.model.result import TaskError
from horsies.model.task import Claim
from horsies.worker.pending import PendingWork
from horsies.worker.reports import ChildReports, TaskEvents
from horsies.worker.timeouts import TaskStopper
from tests.worker.test_pending import claim, make_pending

CRASH = TaskError(error_code="WORKER_CRASHED", message="the child died")


def reports_for(pending: PendingWork) -> ChildReports:
    return ChildReports(
        pending, TaskStopper(pending, 1.0), TaskEvents(), on_change=lambda: None, on_deadline=lambda: None
    )


def deaths(claims: list[Claim]) -> list[int]:
    return [held.child_deaths for held in claims]


@pytest.mark.promise("W9")
def test_a_task_with_which_three_children_die_before_it_begins_fails() -> None:
    pending = make_pending()
    held = claim()
    for expected in (1, 2):
        reports_for(pending).on_death([], [held])
        held = pending.releases.pop()
        assert held.child_deaths == expected
    reports_for(pending).on_death([], [held])
    assert pending.releases == []
    assert [(of.id, of.error_code) for of in pending.endings] == [(held.id, "WORKER_CRASHED")]


@pytest.mark.promise("W9")
def test_the_running_task_is_to_blame_and_not_those_that_wait() -> None:
    pending = make_pending()
    reports_for(pending).on_death([(claim(), CRASH)], [claim(), replace(claim(), child_deaths=2)])
    assert deaths(pending.releases) == [0, 2]
    assert len(pending.endings) == 1


def test_with_concurrency_a_waiting_task_may_be_to_blame() -> None:
    pending = make_pending(concurrency=5)
    reports_for(pending).on_death([(claim(), CRASH)], [claim()])
    assert deaths(pending.releases) == [1]


def test_children_killed_by_a_shutdown_do_not_count() -> None:
    pending = make_pending()
    pending.is_stopping = True
    reports_for(pending).on_death([], [replace(claim(), child_deaths=2)])
    assert deaths(pending.releases) == [2]
