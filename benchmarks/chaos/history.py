"""A history: all that was written down of one section of a run, as values. The checker knows nothing else."""

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
    """It was part of a transaction that the producer gave up."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One task that a producer sent: `n` is in its arguments, so that it is found even if no id came back."""

    n: int
    outcome: Outcome
    at: float
    """Time of day at which the call was made."""
    task_id: str | None = None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KeyedSend:
    """A send under a key that came back."""

    key: str
    task_id: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancellation that came back: when, and the name of its outcome."""

    task_id: str
    outcome: str
    at: float


@dataclass(frozen=True, slots=True)
class Got:
    """What a waiter was told, written as in a note: `ok <JSON>` or `err <code>`."""

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
    """A task in the database at the end of it all. Moments are times of day in seconds."""

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
    """How many its policy allows."""
    retry_for: tuple[str, ...] = ()
    failed: tuple[Failed, ...] = ()
    started: float | None = None
    finished: float | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a workflow at the end of it all; `waits_for` are ids of nodes."""

    id: str
    status: str
    task_id: str | None
    waits_for: tuple[str, ...]
    needed: int
    allow_failed_deps: bool


@dataclass(frozen=True, slots=True)
class Flow:
    """A workflow run at the end of it all."""

    id: str
    status: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault: when, and which workers and child processes may lawfully die of it."""

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
    """Of workflows whose start came back."""
    blows: tuple[Blow, ...] = ()
    caps: Mapping[str, int] = field(default_factory=dict[str, int])
    judges_deaths: bool = False
    """Whether a crash must have a cause among the blows: not where a busy machine alone may silence a worker for so long."""
    in_order: bool = False
    """One worker with one slot found all tasks waiting: they begin by priority, and first come first served."""
