"""Enqueue tasks: insert PENDING rows, all or none, in the given order.

One statement carries the ids and arguments of many tasks, and their options once. If there is too much for one statement, the tasks are written to a
temporary file first (`SpooledTasks`): memory stays flat however many there are, an invalid call in the middle prevents the whole send, no transaction is
open while the caller's generator runs, and the send can be repeated. From there the rows go by COPY; tasks for later, and those on a caller's connection, go
in slices inside one transaction. All rows of a transaction have the same `enqueued_at`; the ids only increase, and so keep the order.

**Unknown outcome.** If the connection is lost, perhaps at COMMIT, the send is repeated with the same ids. Either all tasks were committed or none, so
the first id stands for all. A probe row with that id waits for a first attempt that is still in progress, and shows whether anything is left to
send, even if the tasks have already run and ended.

**Notifications** of an ordinary send are sent after its commit. A NOTIFY inside the transaction holds a cluster-wide lock until the transaction
is durable, so that eight producers would wait for each other's fsync. Both travel in one round trip: a notification is lost only if the server
stops between the two, and then workers find the task when they poll. A trigger notifies of all other inserts.

**Idempotency keys.** At most one task is live for each key of a task name. A key is a row that names its task, the *holder*. Ending the task does not
change that row; the next send with the same key checks it. A holder that is live, or that ended less than its window ago, keeps the key.
Otherwise the send takes the key over, provided that no other send has done so since it looked (`keys.task_id` is still the same). A send that meets an
uncommitted row waits in the INSERT: after a rollback the key is free; after a commit the send looks again with a newer snapshot, and so does the loser
of two sends that take a key over.

Each row of a key also has the id of the send that wrote it last. A send that replaced the arguments of a pending task, and whose answer was lost, finds
its own id there. One gap is left: if, before the repetition, that task has run and ended *and* another send has taken the key over and
ended too, there is no trace of the first send, and it is sent again.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice
from tempfile import SpooledTemporaryFile, gettempdir
from typing import TypeAlias, cast, overload
from weakref import finalize

from horsies.db.pipeline import copy_field
from horsies.db.statement import Op, Request, copy, execute, execute_then_notify, load, one, rows, to_array
from horsies.model.errors import KeyConflictError
from horsies.model.send_options import Key, sent_values, span_problems, to_timedelta
from horsies.model.task import NewTask, TaskId, TaskOptions
from horsies.model.validation import raise_problems
from horsies.tasks.ids import new_task_ids

SLICE_ROWS = 1_000
SLICE_CHARACTERS = 4_000_000
SPOOL_BYTES = 4_000_000
"""Spooled tasks stay in memory up to this size."""

SQL = load(__file__)


class PackedIds(Sequence[TaskId]):
    """Very many task ids, 16 bytes each."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def extend(self, ids: Sequence[TaskId]) -> None:
        self._bytes += bytes.fromhex("".join(ids).replace("-", ""))

    def __len__(self) -> int:
        return len(self._bytes) // 16

    @overload
    def __getitem__(self, index: int) -> TaskId: ...
    @overload
    def __getitem__(self, index: slice) -> list[TaskId]: ...
    def __getitem__(self, index: int | slice) -> TaskId | list[TaskId]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        start = range(len(self))[index] * 16
        text = self._bytes[start : start + 16].hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class SpooledTasks:
    """More tasks than fit into one statement, all with the same options. Their arguments are in a temporary file, one per line."""

    def __init__(self, payloads: Iterable[str], options: TaskOptions) -> None:
        self.options = options
        self.ids = PackedIds()
        try:
            gettempdir()
            in_memory = SPOOL_BYTES
        except FileNotFoundError:  # no folder is writable
            in_memory = 0  # everything
        self._file = SpooledTemporaryFile(  # noqa: SIM115 - closed with this object
            in_memory, "w+", encoding="utf-8", errors="surrogatepass", newline="\n", prefix="horsies-send-"
        )
        finalize(self, self._file.close)
        left = iter(payloads)
        while payloads := list(islice(left, SLICE_ROWS)):
            self.ids.extend(new_task_ids(len(payloads)))
            # A line break in JSON can only stand between two tokens.
            lines = [args.replace("\n", " ") + "\n" for args in payloads]
            try:
                self._file.writelines(lines)
            except OSError as error:
                error.add_note(
                    "send_many() sent nothing; set $TMPDIR to a folder that is writable and has enough space"
                )
                raise

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[NewTask]:
        self._file.seek(0)
        for task_id, line in zip(self.ids, self._file, strict=True):
            yield NewTask(task_id, line.removesuffix("\n"), self.options)


Tasks: TypeAlias = Sequence[NewTask] | SpooledTasks
"""Tasks with the same options. A sequence is what fits into one statement; `new_tasks` decides."""


def new_tasks(payloads: Iterable[str], options: TaskOptions) -> Tasks:
    """Give each payload an id."""
    left, first, characters = iter(payloads), list[str](), 0
    for args in left:
        first.append(args)
        characters += len(args)
        if len(first) > SLICE_ROWS or (characters > SLICE_CHARACTERS and len(first) > 1):
            return SpooledTasks(chain(first, left), options)
    return [NewTask(task_id, args, options) for task_id, args in zip(new_task_ids(len(first)), first, strict=True)]


def ids_of(tasks: Tasks) -> Sequence[TaskId]:
    return tasks.ids if isinstance(tasks, SpooledTasks) else [task.id for task in tasks]


def add_delay(options: TaskOptions, delay: float | timedelta) -> TaskOptions:
    """Return the options of `schedule()`. Raises ConfigError for a delay that is invalid, or if there is an `eta` too."""
    problems = list(span_problems("delay", delay))
    if options.due is not None:
        problems.append("eta and schedule() both set the time; use send() with eta, or schedule() without")
    raise_problems(f"schedule() of task {options.task_name!r}", problems)
    return options._replace(due=to_timedelta(delay)) if delay else options


def enqueue(tasks: Tasks, key: Key | None = None) -> Op[Sequence[TaskId]]:
    """Enqueue tasks and return their ids; with a key, the id of its holder, which may be another task."""
    if key is None and not isinstance(tasks, SpooledTasks):
        ids = [task.id for task in tasks]
        # The trigger does not notify: this send does, after its commit.
        params = {"ids": ids, "args": [task.args for task in tasks]}
        insert = SQL["enqueue_tasks"](notify="after_commit", **params, **option_params(tasks[0].options))
        yield Request((insert,), after_commit=(SQL["notify_enqueued"](ids=ids),))
        return ids
    yield from rows(SQL["begin_send"]())
    ids = yield from _enqueue_in_own_transaction(tasks, key)
    yield from rows(SQL["commit_send"]())
    return ids


def enqueue_again(tasks: Tasks, key: Key | None = None) -> Op[Sequence[TaskId]]:
    """Repeat a send whose outcome is unknown. The tasks are neither lost nor sent twice, even if they have already run."""
    ids = ids_of(tasks)
    _, _, probe = yield from execute(
        SQL["begin_send"](), SQL["insert_probe"](id=ids[0]), SQL["delete_probe"](id=ids[0])
    )
    if probe == [(False,)]:
        ids = yield from _enqueue_in_own_transaction(tasks, key)
    # The first attempt may have been cut off between its commit and its notification.
    yield from execute_then_notify(
        SQL["commit_send"](), after_commit=SQL["notify_enqueued"](ids=list(ids[:SLICE_ROWS]))
    )
    return ids


def _enqueue_in_own_transaction(tasks: Tasks, key: Key | None) -> Op[Sequence[TaskId]]:
    # COPY cannot compare a time with the clock of the database, so tasks for later go by INSERT.
    if isinstance(tasks, SpooledTasks) and tasks.options.due is None:
        yield from copy(SQL["copy_tasks"], _copy_lines(tasks))
        return tasks.ids
    return (yield from enqueue_within(tasks, key))


def enqueue_within(tasks: Tasks, key: Key | None = None) -> Op[Sequence[TaskId]]:
    """Do what `enqueue` does, inside a transaction that the caller begins and ends."""
    if key is not None:
        (task,) = tasks
        holder = yield from take_key(task, key)
        if holder is not None:
            return [holder]
    for slice_ in _slices(tasks) if isinstance(tasks, SpooledTasks) else [tasks]:
        params = {"ids": [task.id for task in slice_], "args": [task.args for task in slice_]}
        yield from rows(SQL["enqueue_tasks"](notify="", **params, **option_params(slice_[0].options)))
    return ids_of(tasks)


def take_key(task: NewTask, key: Key) -> Op[TaskId | None]:
    """Take a key for a task that is enqueued in the same transaction. If another task holds the key, return its id instead of None."""
    canonical = json.dumps(json.loads(task.args), sort_keys=True)  # the same in whatever order dicts were filled
    params = {
        "id": task.id,
        "task_name": task.options.task_name,
        "key": key.name,
        "args_hash": hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest(),
        "window_s": key.window.total_seconds(),
    }
    not_pending: TaskId | None = None
    while True:
        row = yield from one(SQL["take_key"](**params))
        if row is None:
            continue  # another send was faster; the next snapshot sees what it did
        holder, taken, sent_by_us, same_args = row
        if taken:
            return None
        if sent_by_us:
            return holder
        if key.on_conflict == "replace" and holder != not_pending:
            replaced = yield from one(
                SQL["replace_pending_task"](holder=holder, args=task.args, **option_params(task.options) | params)
            )
            if replaced:
                return holder
            not_pending = holder  # it has started or ended: look again
        elif key.on_conflict == "raise" or not same_args:
            reason = (
                ', and on_conflict is "raise"; use on_conflict="return" to get a handle to it'
                if same_args
                else ", which was sent with other arguments; use another key for another call"
            )
            message = f"key {key.name!r} of task {task.options.task_name!r} is held by {holder}{reason}"
            raise KeyConflictError(message, key=key.name, task_id=holder)
        else:
            return holder


def _slices(tasks: SpooledTasks) -> Iterator[list[NewTask]]:
    """Yield consecutive tasks, as many as fit into one statement."""
    slice_, characters = list[NewTask](), 0
    for task in tasks:
        characters += len(task.args)
        if len(slice_) == SLICE_ROWS or (slice_ and characters > SLICE_CHARACTERS):
            yield slice_
            slice_, characters = [], len(task.args)
        slice_.append(task)
    yield slice_


def _copy_lines(tasks: SpooledTasks) -> Iterator[str]:
    options = tasks.options
    values = sent_values(options).values()
    shared = [to_array(cast("list[object]", value)) if isinstance(value, list) else value for value in values]
    end_of_line = "\t".join(map(copy_field, [options.good_until, *shared])) + "\n"
    for task in tasks:
        yield f"{task.id}\t{copy_field(task.args)}\t{end_of_line}"


def option_params(options: TaskOptions) -> dict[str, object]:
    """Return the parameters of a statement that stores these options."""
    due = options.due
    return sent_values(options) | {
        "eta": due if isinstance(due, datetime) else None,
        "delay_s": due.total_seconds() if isinstance(due, timedelta) else None,
        "good_until": options.good_until,
    }
