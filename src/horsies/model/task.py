"""One task at each station of its journey."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from horsies.model.status import TaskStatus

TaskId: TypeAlias = str

DEFAULT_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task as it is sent; `args` is the JSON object of its arguments by name."""

    id: TaskId
    task_name: str
    queue_name: str
    priority: int
    args: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A task that a worker holds. `claim_no` tells this claim from every other of the same task."""

    id: TaskId
    claim_no: int
    task_name: str
    queue_name: str
    priority: int
    enqueued_at: datetime
    attempt: int
    args: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How one claim ended. `result` and `error` are JSON that nobody between child and database reads."""

    id: TaskId
    claim_no: int
    status: TaskStatus
    result: str | None = None
    error_code: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished task as a waiter reads it."""

    id: TaskId
    status: TaskStatus
    result: str | None
    error: str | None
