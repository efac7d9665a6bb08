"""Advance: what has ended is told to those that wait for it, until nothing is left to tell.

**Nouns.** A *run* is a row of `workflows`: a graph under way. A sub-workflow is a run of its own, and so are the items of a map; the runs of one
start make a *tree*, and the row at its top, the *root*, is the lock for all of it. A *node* is a row of `nodes`. It is *resolved* when it is
COMPLETED, FAILED or SKIPPED, and it is *told* when that has been counted by the nodes that wait for it and by its run. READY is a node whose
join is met; ENQUEUED one whose task is in `tasks`. A node may *await* others beside its join: it stays PENDING until these have ended, however they
do. `awaits_left` counts down to that. A counter that is wrong in rows changed by hand is corrected by the keeper (`control.get_lost_nodes`).

**A step** is a few statements in one transaction, under the lock of the roots:

    lock_roots      whoever else is at these trees waits
    advance_nodes   resolved nodes are told: counters of those that wait, which become READY or SKIPPED; the run's count of what is left
    withdraw_tasks  of runs that were paused, what has not begun is taken back from its queue, and READY again
    open_maps       READY maps get a run with a node for each item
    open_runs       READY sub-workflows and maps begin: their first nodes are READY
    open_tasks      READY nodes become tasks (not while their run is paused, and no more than `max_parallel`)
    end_runs        runs with nothing left end; the node above that such a run stands for is resolved

A skip, or a run that ended, has news of its own, which the next step tells: `finish_runs` says of each tree whether there is anything left.

**Everything that is left to do can be read off the rows**: nodes that are resolved and not told, READY nodes in runs that are not held back, runs
with nothing left. No step depends on what its caller remembers, so anybody may take the next one. That is the whole of recovery:

- A worker's turn (`worker/batch.py`) ends tasks and takes a step for their trees, without the three statements that are seldom needed, in the
  *same transaction*. It dies before COMMIT: neither the endings nor the step have happened, and the keeper ends the tasks of the dead worker
  as it ends any. It dies after COMMIT: the endings are told. If something is left (a cascade of skips, a sub-workflow), the pump's next
  turn takes a full step; if that never comes, the keeper's does.
- `start` writes the tree as a first step would leave it, in one statement. Whoever loses the answer repeats it with the same ids. Only a map over a
  list that was given when the workflow was built is written as READY: `start` takes the step that opens it, or, if it dies before or was part of the
  caller's transaction, the keeper does.
- What ends tasks without knowing of graphs (a cancellation, an expiry) resolves their nodes in its own statement, and leaves the telling to the keeper.
- The keeper (`maintenance/rescue.py`) looks for what is left anywhere (`get_unfinished_trees`) and takes steps until nothing is.

**Two at once.** The lock of the root lets one step at a time look at a tree, so counters are never lost and a READY node is enqueued
once. Locks are always taken in the same order: roots by id, then tasks, then nodes and runs of trees whose roots are held. A node is resolved by its task
only if it is ENQUEUED with that very task: a late ending of a task from before a `retry()` changes nothing.

**What a step costs** is in proportion to what ended and to what that makes ready, not to the size of the graph: counters instead of counting, and nobody
reads a result. Beside that it looks at each run of the tree that is under way. No statement may be quadratic, whatever the planner knows of the
tables: see `lock_roots`, and `tests/workflows/test_growth.py`.
"""

from collections.abc import Iterable, Sequence
from itertools import count

from horsies.db.statement import Op, Query, Row, execute, load, rows
from horsies.model.codec import encode_error
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.result import TaskError
from horsies.model.task import TaskId

SQL = load(__file__)

BATCH = 100

NO_SUCCESS = encode_error(
    TaskError(error_code=OutcomeCode.WORKFLOW_FAILED, message="no case of its success policy is satisfied")
)
TOO_FEW = encode_error(
    TaskError(
        error_code=OutcomeCode.WORKFLOW_FAILED,
        message="<succeeded> of its <items> items succeeded, and min_success is <least>",
    )
)
"""`finish_runs` knows the numbers. Only where no item has failed: otherwise the error is that of the first one that did."""
NO_LIST = encode_error(
    TaskError(
        error_code=OutcomeCode.UPSTREAM_SKIPPED, message="the node that this map goes over has not returned a list"
    )
)

TOO_LARGE = encode_error(
    TaskError(
        error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR,
        message=f"the list of its items' results has <bytes> bytes of JSON, and a value can have {MOST_BYTES:,} at most; "
        "let each item store its data elsewhere and return where it is, or map over fewer items",
    )
)
"""`finish_runs` knows the number of bytes."""


def lock_roots(roots: Iterable[str]) -> Query:
    return SQL["lock_roots"](roots=sorted(roots))


def quick_step(roots: Sequence[str], task_ids: Sequence[TaskId]) -> list[Query]:
    """A step after these tasks have ended in the same transaction, without what only sub-workflows and maps need. The last of its answers
    says what is left (`unsettled_in`).
    """
    return [_advance_nodes(roots, task_ids), *_open_and_end(roots)]


def full_step(roots: Sequence[str], task_ids: Sequence[TaskId] = ()) -> list[Query]:
    return [
        _advance_nodes(roots, task_ids),
        SQL["withdraw_tasks"](roots=list(roots)),
        SQL["expand_maps"](roots=list(roots), no_list=NO_LIST),
        SQL["start_runs"](roots=list(roots)),
        *_open_and_end(roots),
    ]


def _open_and_end(roots: Sequence[str]) -> list[Query]:
    end_runs = SQL["finish_runs"](
        roots=list(roots), no_success=NO_SUCCESS, too_few=TOO_FEW, too_large=TOO_LARGE, max_bytes=MOST_BYTES
    )
    return [SQL["enqueue_ready_nodes"](roots=list(roots)), end_runs]


def _advance_nodes(roots: Sequence[str], task_ids: Sequence[TaskId]) -> Query:
    return SQL["advance_nodes"](roots=list(roots), task_ids=list(task_ids))


def unsettled_in(told: Iterable[Row], ended: Iterable[Row]) -> list[str]:
    """Of the roots of a step, those that need another, by its first and its last answer."""
    paused = {root for root, is_paused, _ in told if is_paused}
    return sorted(paused | {root for root, is_unsettled, *_ in ended if is_unsettled})


def settle(roots: Sequence[str], *, limits: Sequence[Query] = (), at_most: int | None = None) -> Op[Sequence[str]]:
    """Full steps, a transaction each, until nothing is left to do now, or so many; the roots that are left then.

    Steps always come to an end, unless somebody has changed the rows of a graph by hand.
    """
    taken = count()
    while roots and next(taken) != at_most:
        answers = yield from execute(
            SQL["begin_step"](), *limits, lock_roots(roots), *full_step(roots), SQL["commit_step"]()
        )
        roots = unsettled_in((), answers[-2])
    return roots


def settle_within(roots: Sequence[str]) -> Op[None]:
    """The same inside a transaction that holds the locks already."""
    while roots:
        answers = yield from execute(*full_step(roots))
        roots = unsettled_in((), answers[-1])


def get_unsettled(excluded: Sequence[str] = ()) -> Op[list[str]]:
    """Roots of trees in which something is left to do, because whoever should have done it has died; a batch of them."""
    found = yield from rows(SQL["get_unfinished_trees"](limit=BATCH, excluded=list(excluded)))
    return [root for (root,) in found]


def settle_everything() -> Op[None]:
    """What is left to do anywhere. The keeper does the same with more care (`maintenance/rescue.py`)."""
    while found := (yield from get_unsettled()):
        yield from settle(found)
