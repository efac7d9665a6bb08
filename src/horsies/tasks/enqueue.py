"""Enqueue: PENDING rows, all or none of them."""

from collections.abc import Iterable, Sequence

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
        timeouts_ms=[task.timeout_ms for task in tasks],
        delays_ms=[_array(task.retry.delays_ms) if task.retry else None for task in tasks],
        jitters=[task.retry.jitter if task.retry else 0.0 for task in tasks],
        retry_for=[_array(task.retry.codes) if task.retry else None for task in tasks],
    )


def _array(items: Iterable[object]) -> str:
    """As PostgreSQL writes an array. Numbers and error codes need no quotes."""
    return "{" + ",".join(map(str, items)) + "}"
