"""One task at each station of its journey."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from horsies.model.retry import RetryPolicy
from horsies.model.status import TaskStatus

TaskId: TypeAlias = str

DEFAULT_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class Terms:
    """On which terms tasks are sent: all but what they are called with, the same for a whole batch.

    `due` is a moment, or how long from now on the database's clock; None is now.
    """

    task_name: str
    queue_name: str
    priority: int = DEFAULT_PRIORITY
    timeout_ms: int | None = None
    retry: RetryPolicy | None = None
    due: datetime | timedelta | None = None
    good_until: datetime | None = None
    trace: str | None = None
    """Of the trace in which they are sent; see `horsies.events.Tracer`."""


class NewTask(NamedTuple):
    """A task as it is sent; `args` is the JSON object of its arguments by name. A tuple, because there may be very many."""

    id: TaskId
    args: str
    terms: Terms


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
    timeout_ms: int | None = None
    retries_left: bool = False
    root_id: str | None = None
    """Of a task that a workflow runs: the run at the top of its tree."""
    inputs: str | None = None
    """What its node is handed beside the arguments, as JSON that nobody between database and child reads."""
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How one claim ended. `result` and `error` are JSON that nobody between child and database reads."""

    id: TaskId
    claim_no: int
    status: TaskStatus
    result: str | None = None
    error_code: str | None = None
    error: str | None = None
    may_retry: bool = False
    """There are retries left: the policy on the row decides whether it is the end."""
    wants_retry: bool = False
    """The policy lists the exception that was raised, which only the child can know."""
    retry_after_ms: int | None = None
    root_id: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished task as a waiter reads it."""

    id: TaskId
    status: TaskStatus
    result: str | None
    error: str | None
