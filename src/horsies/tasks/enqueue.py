"""Enqueue: PENDING rows, all or none of them, in the order they were given.

A statement carries the ids and arguments of many tasks and their terms once. What is too much for one statement goes by COPY, or
in slices if it is for later or on a caller's connection, inside one transaction. Within a transaction all rows have the same `enqueued_at`, and the ids, which only grow, keep the order.

A send whose outcome is unknown (the connection was lost, perhaps at COMMIT) is repeated with the same ids. Because all of it was
committed or nothing, the first id stands for all: the probe waits for a first attempt that is still under way, and tells whether
there is anything left to send, even if it has been run and finished meanwhile.

Workers are told of an ordinary send when it is committed, not in it: a NOTIFY holds a lock of the whole cluster until its transaction is
durable, so eight producers would wait for one another's disk. Both travel together, so only a server that dies between the two can
leave a task untold, and then workers find it when they look by themselves. Whatever else inserts rows is told of by a trigger.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

from horsies.db.arrays import array
from horsies.db.lines import field
from horsies.db.load import load
from horsies.db.op import Op, Query, ask, ask_and_tell, copy, rows
from horsies.model.options import Key
from horsies.model.task import NewTask, TaskId
from horsies.tasks import keys
from horsies.tasks.terms import params_of

SLICE_ROWS = 1_000
SLICE_CHARACTERS = 4_000_000

SQL = load(__file__)


def enqueue(tasks: Sequence[NewTask], key: Key | None = None) -> Op[list[TaskId]]:
    """Their ids; with a key, the id of the task that has it, which may be another."""
    if key is None and len(first := next(_slices(tasks))) == len(tasks):
        ids = [task.id for task in tasks]
        yield from ask_and_tell(_insert(first, "after_commit"), afterwards=SQL["notify_enqueued"](ids=ids))
        return ids
    yield from rows(SQL["begin_send"]())
    if _can_be_copied(tasks):
        yield from copy(SQL["copy_tasks"], _lines(tasks))
        ids = [task.id for task in tasks]
    else:
        ids = yield from enqueue_within(tasks, key)
    yield from rows(SQL["commit_send"]())
    return ids


def enqueue_again(tasks: Sequence[NewTask], key: Key | None = None) -> Op[list[TaskId]]:
    """The same send once more, after one whose outcome is unknown: never lost, never twice, even if it has already run."""
    first = tasks[0].id
    _, _, probe = yield from ask(SQL["begin_send"](), SQL["insert_probe"](id=first), SQL["delete_probe"](id=first))
    is_new = probe == [(False,)]
    ids = (yield from enqueue_within(tasks, key)) if is_new else [task.id for task in tasks]
    # The first attempt may have been cut off before it told anybody.
    yield from ask_and_tell(SQL["commit_send"](), afterwards=SQL["notify_enqueued"](ids=ids[:SLICE_ROWS]))
    return ids


def enqueue_within(tasks: Sequence[NewTask], key: Key | None = None) -> Op[list[TaskId]]:
    """The same inside a transaction that somebody else begins and ends."""
    if key is not None:
        (task,) = tasks
        holder = yield from keys.take(task, key)
        if holder is not None:
            return [holder]
    for some in _slices(tasks):
        yield from rows(_insert(some))
    return [task.id for task in tasks]


def _slices(tasks: Sequence[NewTask]) -> Iterator[Sequence[NewTask]]:
    """Neighbours on the same terms, not too many for one statement."""
    start = characters = 0
    for position, task in enumerate(tasks):
        first, count = tasks[start], position - start
        characters += len(task.args)
        alike = task.terms is first.terms or task.terms == first.terms
        if count and (not alike or count == SLICE_ROWS or characters > SLICE_CHARACTERS):
            yield tasks[start:position]
            start, characters = position, len(task.args)
    if tasks:
        yield tasks[start:]


def _can_be_copied(tasks: Sequence[NewTask]) -> bool:
    """COPY cannot ask the database's clock whether a moment has passed."""
    terms = tasks[0].terms
    return len(tasks) > SLICE_ROWS and terms.due is None and all(task.terms is terms for task in tasks)


def _lines(tasks: Sequence[NewTask]) -> Iterator[str]:
    terms, retry = tasks[0].terms, tasks[0].terms.retry
    policy = (array(retry.delays_ms), retry.jitter, array(retry.codes)) if retry else (None, 0.0, None)
    same = (terms.task_name, terms.queue_name, terms.priority, terms.good_until, terms.timeout_ms, *policy, terms.trace)
    rest = "\t".join(map(field, same)) + "\n"
    for task in tasks:
        yield f"{task.id}\t{field(task.args)}\t{rest}"


def _insert(tasks: Sequence[NewTask], notify: Literal["", "after_commit"] = "") -> Query:
    """The trigger notifies at the commit, unless workers are told afterwards."""
    ids, args = [task.id for task in tasks], [task.args for task in tasks]
    return SQL["enqueue_tasks"](ids=ids, args=args, notify=notify, **params_of(tasks[0].terms))
