import pytest

from horsies.model.status import LEGAL_MOVES, TaskStatus

FINAL = {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED}


def reachable(start: TaskStatus) -> set[TaskStatus]:
    seen: set[TaskStatus] = set()
    todo = {start}
    while todo:
        here = todo.pop()
        new = LEGAL_MOVES[here] - seen
        seen |= new
        todo |= new
    return seen


@pytest.mark.parametrize("status", TaskStatus)
def test_every_status_has_its_moves_written_down(status: TaskStatus):
    assert status in LEGAL_MOVES


@pytest.mark.parametrize("status", TaskStatus)
def test_a_status_is_final_exactly_when_no_way_leads_out(status: TaskStatus):
    assert status.is_final == (status in FINAL) == (not LEGAL_MOVES[status])


@pytest.mark.parametrize("status", sorted(set(TaskStatus) - FINAL))
def test_a_task_that_has_not_ended_can_reach_every_ending(status: TaskStatus):
    assert reachable(status) >= FINAL


@pytest.mark.parametrize("status", sorted(set(TaskStatus) - {TaskStatus.PENDING}))
def test_every_status_can_be_reached_from_pending(status: TaskStatus):
    assert status in reachable(TaskStatus.PENDING)


def test_no_move_leads_nowhere():
    assert all(status not in moves for status, moves in LEGAL_MOVES.items())


def test_only_a_running_task_can_complete():
    assert {status for status, moves in LEGAL_MOVES.items() if TaskStatus.COMPLETED in moves} == {TaskStatus.RUNNING}


def test_a_task_fails_when_it_runs_or_while_nobody_can_run_it():
    before = {status for status, moves in LEGAL_MOVES.items() if TaskStatus.FAILED in moves}
    assert before == {TaskStatus.RUNNING, TaskStatus.PENDING}


def test_a_running_task_does_not_expire():
    assert TaskStatus.EXPIRED not in LEGAL_MOVES[TaskStatus.RUNNING]


def test_the_moves_cannot_be_changed():
    with pytest.raises(TypeError):
        LEGAL_MOVES[TaskStatus.COMPLETED] = frozenset()  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("status", TaskStatus)
def test_a_status_is_its_own_text(status: TaskStatus):
    assert TaskStatus(str(status)) is status
    assert status.value == status.name
