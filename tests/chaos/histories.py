"""Hand-written histories: one without violations, of which tests change one place."""

from dataclasses import replace

from benchmarks.chaos.history import (
    Cancel,
    Failed,
    Flow,
    Got,
    History,
    Injection,
    KeyedSend,
    Node,
    Outcome,
    Row,
    Sent,
)
from benchmarks.chaos.notes import Note, What

WORKER, PID = "w1", 100


def note(what: What, task_id: str, clock: float, outcome: str | None = None, *, attempt: int = 1) -> Note:
    return Note(what, task_id, attempt, WORKER, PID, clock, clock, outcome)


def ran(task_id: str, begin: float, end: float, outcome: str = "ok 1", *, attempt: int = 1) -> tuple[Note, ...]:
    return note("start", task_id, begin, attempt=attempt), note("end", task_id, end, outcome, attempt=attempt)


def row(task_id: str, begin: float = 10, end: float = 11, **columns: object) -> Row:
    """Return a task that ran once and completed, unless `columns` differ."""
    good = Row(task_id, "steady", "bulk", "COMPLETED", result="1", attempts=1, started=begin, finished=end)
    return replace(good, **columns)


def retried(task_id: str = "r", **columns: object) -> Row:
    """Return a task whose first attempt ended by a crash at 11."""
    columns = {"failed": (Failed(1, "WORKER_CRASHED", 10, 11),), **columns}
    return row(task_id, 12, 13, attempts=2, retries=5, retry_for=("WORKER_CRASHED",), **columns)


RETRIED_NOTES = (note("start", "r", 10.1), *ran("r", 12.1, 12.9, attempt=2))


def flow(**nodes: str) -> Flow:
    """Return two nodes and a third that depends on both, with the given statuses."""
    statuses = {"a": "COMPLETED", "b": "COMPLETED", "c": "COMPLETED"} | nodes
    status = "COMPLETED" if set(statuses.values()) == {"COMPLETED"} else "FAILED"
    return Flow(
        "flow",
        status,
        (
            Node("a", statuses["a"], "ta", (), 0, allow_failed_deps=False),
            Node("b", statuses["b"], "tb", (), 0, allow_failed_deps=False),
            Node("c", statuses["c"], "tc", ("a", "b"), 2, allow_failed_deps=False),
        ),
    )


FLOW_ROWS = (row("ta", 10, 11, node="a"), row("tb", 10, 12, node="b"), row("tc", 12.5, 13, node="c"))
FLOW_NOTES = (*ran("ta", 10.1, 10.9), *ran("tb", 10.1, 11.9), *ran("tc", 12.6, 12.9))

GOOD = History(
    notes=(
        *ran("t", 10.1, 10.9),
        *RETRIED_NOTES,
        *(note for start in (20, 21, 22) for note in ran(f"c{start}", start + 0.1, start + 1.9)),
        *ran("k1", 30.1, 30.9),
        *ran("k2", 31.1, 31.9),
        *FLOW_NOTES,
    ),
    sent=(
        Sent(0, Outcome.COMMITTED, 9.0, "t", delay_s=1.0),
        Sent(1, Outcome.UNKNOWN, 9.0),
        Sent(2, Outcome.ROLLED_BACK, 9.0),
    ),
    keyed=(KeyedSend("key", "k1"), KeyedSend("key", "k1"), KeyedSend("key", "k2")),
    cancels=(Cancel("x", "CANCELLED", 9.5),),
    got=(Got("t", "ok 1"), Got("x", "err TASK_CANCELLED")),
    rows=(
        row("t", n=0, good_until=10.5),
        retried(),
        *(row(f"c{start}", start, start + 2, queue="capped") for start in (20, 21, 22)),
        row("k1", 30, 31, key="key"),
        row("k2", 31.05, 32, key="key"),
        row("x", status="CANCELLED", error_code="TASK_CANCELLED", result=None, attempts=0, started=None),
        *FLOW_ROWS,
    ),
    flows=(flow(),),
    started_flows=("flow",),
    injections=(Injection("kill-child", 10.5, 10.6, pids=frozenset({PID})),),
    caps={"capped": 2},
    checks_crashes=True,
)


def with_notes(*more: Note) -> History:
    return replace(GOOD, notes=GOOD.notes + more)


def without_notes(task_id: str, what: str) -> History:
    return replace(GOOD, notes=tuple(n for n in GOOD.notes if (n.task_id, n.what) != (task_id, what)))


def with_row(changed: Row) -> History:
    """Replace the row with the same id."""
    rows = tuple(r for r in GOOD.rows if r.task_id != changed.task_id)
    return replace(GOOD, rows=(*rows, changed))
