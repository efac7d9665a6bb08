"""Idempotency keys: at most one live task for each key of a task name.

A key is a row that names its task. Nobody touches it when the task ends; whoever sends under the same key finds out. A holder is
*live*, or ended less than its window ago: then it keeps the key. Else the key is taken over, if nobody else has done so since
we looked (`keys.task_id` must still be the one that was seen). A send that comes while another's is not committed waits in the INSERT: after
a rollback the key is free, after a commit it looks again with a younger snapshot, as does the loser of two that take over.

Each row also carries the id of the send that wrote it last. A send whose answer was lost, and which had replaced the arguments of
a waiting task, finds its own id there. One gap is left: if, before the repetition, that task has run and ended *and* another send has taken
the key over and ended too, nothing remembers it, and it is sent again.
"""

import hashlib
import json

from horsies.db.load import load
from horsies.db.op import Op, one
from horsies.model.errors import KeyConflictError
from horsies.model.options import Key
from horsies.model.task import NewTask, TaskId
from horsies.tasks.terms import params_of

SQL = load(__file__)


def take(task: NewTask, key: Key) -> Op[TaskId | None]:
    """None: the key is this task's, which is to be enqueued in the same transaction. Else the id of the task that has the key."""
    params = {
        "id": task.id,
        "task_name": task.terms.task_name,
        "key": key.name,
        "args_hash": _hash(task.args),
        "window_s": key.window.total_seconds(),
    }
    begun: TaskId | None = None
    while True:
        row = yield from one(SQL["take_key"](**params))
        if row is None:
            continue  # somebody was quicker; what they did can be seen now
        holder, taken, sent_by_us, same_args = row
        if taken:
            return None
        if sent_by_us:
            return holder
        if key.on_conflict == "replace" and holder != begun:
            if (
                yield from one(
                    SQL["replace_pending_task"](holder=holder, args=task.args, **params_of(task.terms) | params)
                )
            ):
                return holder
            begun = holder  # or ended: look again
        elif key.on_conflict == "raise" or not same_args:
            raise _conflict(task, key, holder, same_args=same_args)
        else:
            return holder


def _hash(args: str) -> str:
    """The same for equal arguments, in whatever order a dict of them was filled."""
    canonical = json.dumps(json.loads(args), sort_keys=True)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def _conflict(task: NewTask, key: Key, holder: TaskId, *, same_args: bool) -> KeyConflictError:
    what = f"key {key.name!r} of task {task.terms.task_name!r} is held by {holder}"
    if same_args:
        message = f'{what}, and on_conflict is "raise"; use on_conflict="return" to get a handle to it'
    else:
        message = f"{what}, which was sent with other arguments; use another key for another call"
    return KeyConflictError(message, key=key.name, task_id=holder)
