"""Enqueue: PENDING rows, all or none of them."""

from collections.abc import Sequence

from horsies.db.load import load
from horsies.db.op import Op, Query, Statement, ask, rows
from horsies.model.task import NewTask

SQL = load(__file__)


def enqueue(tasks: Sequence[NewTask]) -> Op[None]:
    yield from rows(_insert(SQL["enqueue_tasks"], tasks))


def enqueue_again(tasks: Sequence[NewTask]) -> Op[None]:
    """The same send once more, after one whose outcome is unknown: never lost, never twice, even if it has already run."""
    yield from ask(
        SQL["begin_again"](),
        _insert(SQL["enqueue_tasks_again"], tasks),
        SQL["withdraw_finished"](ids=[task.id for task in tasks]),
        SQL["commit_again"](),
    )


def _insert(statement: Statement, tasks: Sequence[NewTask]) -> Query:
    return statement(
        ids=[task.id for task in tasks],
        task_names=[task.task_name for task in tasks],
        queue_names=[task.queue_name for task in tasks],
        priorities=[task.priority for task in tasks],
        args=[task.args for task in tasks],
    )
