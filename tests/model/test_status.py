"""Statuses of tasks."""

import pytest

from horsies.model.status import TaskStatus
from tests.model.transitions import TASK_TRANSITIONS

FINAL = {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED}


def reachable(start: TaskStatus) -> set[TaskStatus]:
    seen: set[TaskStatus] = set()
    todo = {start}
    while todo:
        here = todo.pop()
        new = TASK_TRANSITIONS[here] - seen
        seen |= new
        todo |= new
    return seen


@pytest.mark.parametrize("status", TaskStatus)
def test_every_status_has_transitions(status: TaskStatus):
    assert status in TASK_TRANSITIONS


@pytest.mark.parametrize("status", TaskStatus)
def test_a_status_is_final_exactly_if_it_has_no_transitions(status: TaskStatus):
    assert status.is_final == (status in FINAL) == (not TASK_TRANSITIONS[status])


@pytest.mark.parametrize("status", sorted(set(TaskStatus) - FINAL))
def test_a_task_that_has_not_ended_can_reach_every_ending(status: TaskStatus):
    assert reachable(status) >= FINAL


@pytest.mark.parametrize("status", sorted(set(TaskStatus) - {TaskStatus.PENDING}))
def test_every_status_can_be_reached_from_pending(status: TaskStatus):
    assert status in reachable(TaskStatus.PENDING)


def test_no_transition_leads_to_the_same_status():
    assert all(status not in targets for status, targets in TASK_TRANSITIONS.items())


def test_only_a_running_task_can_complete():
    assert {status for status, targets in TASK_TRANSITIONS.items() if TaskStatus.COMPLETED in targets} == {
        TaskStatus.RUNNING
    }


def test_only_a_running_or_a_pending_task_can_fail():
    before = {status for status, targets in TASK_TRANSITIONS.items() if TaskStatus.FAILED in targets}
    assert before == {TaskStatus.RUNNING, TaskStatus.PENDING}


def test_a_running_task_does_not_expire():
    assert TaskStatus.EXPIRED not in TASK_TRANSITIONS[TaskStatus.RUNNING]


@pytest.mark.parametrize("status", TaskStatus)
def test_a_status_equals_its_text(status: TaskStatus):
    assert TaskStatus(str(status)) is status
    assert status.value == status.name
