"""A history: everything that was recorded in one section of a run, as values. The checker uses nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from benchmarks.chaos.notes import Note


class Outcome(StrEnum):
    """What a producer knows of a send."""

    COMMITTED = "committed"
    """The call returned."""
    UNKNOWN = "unknown"
    """It raised: the task is there once, or not at all."""
    ROLLED_BACK = "rolled back"
    """It was part of a transaction that the producer rolled back."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One task that a producer sent. `n` is in its arguments, so it can be found even if no id was returned."""

    n: int
    outcome: Outcome
    at: float
    """Time of day at which the call was made."""
    task_id: str | None = None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KeyedSend:
    """A send with a key that returned."""

    key: str
    task_id: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancellation that returned: when, and the name of its outcome."""

    task_id: str
    outcome: str
    at: float


@dataclass(frozen=True, slots=True)
class Got:
    """What a waiter received, in the form of a note: `ok <JSON>` or `err <code>`."""

    task_id: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt that failed and was followed by another."""

    attempt: int
    error_code: str
    started: float
    ended: float


@dataclass(frozen=True, slots=True)
class Row:
    """A task in the database at the end of the run. Times are times of day in seconds."""

    task_id: str
    task_name: str
    queue: str
    status: str
    n: int | None = None
    key: str | None = None
    priority: int = 100
    enqueued: float = 0.0
    good_until: float | None = None
    error_code: str | None = None
    result: str | None = None
    attempts: int = 0
    retries: int = 0
    """How many retries its policy allows."""
    retry_for: tuple[str, ...] = ()
    failed: tuple[Failed, ...] = ()
    started: float | None = None
    finished: float | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a workflow at the end of the run; `waits_for` are ids of nodes."""

    id: str
    status: str
    task_id: str | None
    waits_for: tuple[str, ...]
    needed: int
    allow_failed_deps: bool


@dataclass(frozen=True, slots=True)
class Flow:
    """A workflow run at the end of the run."""

    id: str
    status: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Injection:
    """An injected fault: when, and which workers and child processes it may kill."""

    kind: str
    began: float
    ended: float
    workers: frozenset[str] = frozenset()
    pids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class History:
    notes: tuple[Note, ...] = ()
    sent: tuple[Sent, ...] = ()
    keyed: tuple[KeyedSend, ...] = ()
    cancels: tuple[Cancel, ...] = ()
    got: tuple[Got, ...] = ()
    rows: tuple[Row, ...] = ()
    flows: tuple[Flow, ...] = ()
    started_flows: tuple[str, ...] = ()
    """Ids of the workflows whose start returned."""
    injections: tuple[Injection, ...] = ()
    caps: Mapping[str, int] = field(default_factory=dict[str, int])
    checks_crashes: bool = False
    """Whether a crash must have a cause among the injected faults. Not if a busy machine alone may delay a worker for that long."""
    in_order: bool = False
    """One worker with one slot found all tasks waiting: they begin by priority, then in the order of sending."""
