"""Advance workflows: propagate the end of nodes to the nodes that wait for them, until nothing is left to do.

**Terms.** A *run* is a row of `workflows`: one execution of a graph. A sub-workflow has a run of its own, and so does a map, whose
nodes are its items. The runs of one start form a *tree*. The row of its *root* run is the lock for the whole tree. A *node* is a
row of `nodes`. It is *resolved* when it is COMPLETED, FAILED or SKIPPED, and *propagated* when its dependents and its run have counted
that. A node is READY when its join is met, and ENQUEUED when its task is in `tasks`. A node may also *await* other nodes in addition
to its join: it stays PENDING until they have ended, in any status. `awaits_left` counts them down. If rows were changed by hand and
this counter is wrong, the maintenance leader corrects it (`control.get_lost_nodes`).

**A step** is a few statements in one transaction that holds the locks of the roots:

    lock_roots            wait for other transactions that work on these trees
    advance_nodes         propagate resolved nodes: update the counters of their dependents, which become READY or SKIPPED, and of their run
    withdraw_tasks        take tasks of paused runs that have not started from their queue; their nodes become READY again
    expand_maps           create a run for each READY map, with a node for each item
    start_runs            start the runs of READY sub-workflows and maps; their first nodes become READY
    enqueue_ready_nodes   create the tasks of READY nodes, unless their run is paused, and at most `max_parallel`
    finish_runs           end runs in which all nodes are propagated, and resolve the parent node of each such run

A skipped node and the parent node of a run that ended are propagated by the next step. `finish_runs` returns whether a tree needs one.

**All remaining work can be read from the rows**: nodes that are resolved but not propagated, READY nodes in runs that are not paused,
runs in which nothing is left. A step does not depend on anything that its caller remembers, so any process may run the next step.
Recovery needs nothing else:

- A batch of a worker (`worker/batch.py`) ends tasks and runs a step for their trees in the *same transaction*, without the three
  statements that are seldom needed. If the worker dies before COMMIT, neither the endings nor the step have happened, and the
  maintenance leader rescues the tasks of the dead worker like any others. If it dies after COMMIT, the endings are propagated. If
  something is left to do (a cascade of skips, a sub-workflow), the next batch of the dispatcher runs a full step; if there is no
  next batch, the maintenance leader does.
- `start` writes the tree in one statement, in the state that a first step would leave. If its answer is lost, it is repeated with the
  same ids. Only a map over a list that was given when the workflow was built is written as READY. `start` runs the step that expands
  it. If the process dies before that, or the start was part of the caller's transaction, the maintenance leader does.
- Statements that end tasks without knowing of graphs (a cancellation, an expiry) resolve the nodes of these tasks, and leave it to the
  maintenance leader to propagate them.
- The maintenance leader (`maintenance/rescue.py`) looks for remaining work in all trees (`get_unfinished_trees`) and runs steps until
  there is none. What only a manual change can leave, it looks for in some of the live runs each time, and so in all of them in turns.

**Concurrency.** The lock of the root admits one step at a time per tree, so no update of a counter is lost, and a READY node is
enqueued once. Locks are always taken in the same order: roots by id, then tasks, then nodes and runs of trees whose roots are locked.
A task resolves its node only if the node is ENQUEUED with this task: a late ending of a task from before a `retry()` changes nothing.

**The cost of a step** is proportional to the nodes that ended and the nodes that become ready, not to the size of the graph: it updates
counters instead of counting, and reads no results. It also reads each active run of the tree. No statement may be quadratic, whatever
statistics the planner has: see `lock_roots` in `advance.sql`, and `tests/workflows/test_growth.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final
from uuid import UUID

from horsies.db.statement import Op, Query, Row, execute, load, rows
from horsies.model.codec import encode_error
from horsies.model.error_codes import OperationalErrorCode, OutcomeCode
from horsies.model.payload_errors import MOST_BYTES
from horsies.model.result import TaskError
from horsies.model.task import TaskId

SQL = load(__file__)

MAX_TREES: Final = 100  # per query for unfinished trees
EXAMINED_RUNS: Final = 500
FIRST_RUN: Final = (str(UUID(int=0)), str(UUID(int=0)))

# Errors of runs, as JSON. `finish_runs` replaces what is in angle brackets.
NO_CASE_SATISFIED: Final = encode_error(
    TaskError(error_code=OutcomeCode.WORKFLOW_FAILED, message="no case of its success policy is satisfied")
)
# Used only if no item has failed. Otherwise the error is that of the first item that did.
TOO_FEW_ITEMS: Final = encode_error(
    TaskError(
        error_code=OutcomeCode.WORKFLOW_FAILED,
        message="<succeeded> of its <items> items succeeded, and min_success is <least>",
    )
)
NOT_A_LIST: Final = encode_error(
    TaskError(error_code=OutcomeCode.UPSTREAM_SKIPPED, message="the source node of this map has not returned a list")
)
LIST_TOO_LARGE: Final = encode_error(
    TaskError(
        error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR,
        message=f"the list of its items' results has <bytes> bytes of JSON, and a value can have {MOST_BYTES:,} at most; "
        "let each item store its data elsewhere and return where it is, or map over fewer items",
    )
)


def lock_roots(roots: Iterable[str]) -> Query:
    return SQL["lock_roots"](roots=sorted(roots))  # always in the same order, so that steps cannot deadlock


def quick_step(roots: Sequence[str], task_ids: Sequence[TaskId]) -> list[Query]:
    """Return the statements of a step after these tasks ended in the same transaction, without those for pauses, maps and sub-workflows.

    Pass the answers of the first and the last one to `unfinished_roots`.
    """
    return [
        SQL["advance_nodes"](roots=list(roots), task_ids=list(task_ids)),
        SQL["enqueue_ready_nodes"](roots=list(roots)),
        SQL["finish_runs"](
            roots=list(roots),
            no_success=NO_CASE_SATISFIED,
            too_few=TOO_FEW_ITEMS,
            too_large=LIST_TOO_LARGE,
            max_bytes=MOST_BYTES,
        ),
    ]


def full_step(roots: Sequence[str], task_ids: Sequence[TaskId] = ()) -> list[Query]:
    advance_nodes, *enqueue_and_finish = quick_step(roots, task_ids)
    return [
        advance_nodes,
        SQL["withdraw_tasks"](roots=list(roots)),
        SQL["expand_maps"](roots=list(roots), no_list=NOT_A_LIST),
        SQL["start_runs"](roots=list(roots)),
        *enqueue_and_finish,
    ]


def unfinished_roots(advanced: Iterable[Row], finished: Iterable[Row]) -> list[str]:
    """Return the roots that need another step, by the answers of `advance_nodes` (empty after a full step) and `finish_runs`."""
    paused = {root for root, is_paused, _ in advanced if is_paused}
    return sorted(paused | {root for root, needs_step, *_ in finished if needs_step})


def run_steps(roots: Sequence[str], *, limits: Sequence[Query] = (), at_most: int | None = None) -> Op[Sequence[str]]:
    """Run full steps, each in a transaction of its own, until nothing is left to do or `at_most` were run. Return the roots that need more.

    The number of steps is finite, unless the rows of a graph were changed by hand.
    """
    numbers = count()
    while roots and next(numbers) != at_most:
        answers = yield from execute(
            SQL["begin_step"](), *limits, lock_roots(roots), *full_step(roots), SQL["commit_step"]()
        )
        roots = unfinished_roots((), answers[-2])
    return roots


def run_steps_in_transaction(roots: Sequence[str]) -> Op[None]:
    """Run full steps until nothing is left to do, in a transaction that already holds the locks."""
    while roots:
        answers = yield from execute(*full_step(roots))
        roots = unfinished_roots((), answers[-1])


@dataclass(slots=True)
class RunSweep:
    """How far the live runs have been examined: the root and the id of the last one."""

    after: tuple[str, str] = FIRST_RUN


def get_unfinished_trees(excluded: Sequence[str] = (), sweep: RunSweep | None = None) -> Op[list[str]]:
    """Return the roots of up to `MAX_TREES` trees with work left, for example because a process died. If there are none, the sweep goes on."""
    sweep = sweep or RunSweep()
    found = yield from rows(unfinished_trees(excluded, sweep.after))
    unfinished = [root for is_end, root, _ in found if not is_end]
    if not unfinished:
        sweep.after = next(((root, run) for is_end, root, run in found if is_end), FIRST_RUN)
    return unfinished


def unfinished_trees(excluded: Sequence[str] = (), after: tuple[str, str] = FIRST_RUN) -> Query:
    root, run = after
    limits = {"limit": MAX_TREES, "runs": EXAMINED_RUNS}
    return SQL["get_unfinished_trees"](excluded=list(excluded), after_root=root, after_run=run, **limits)
