"""One task at each station of its journey."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from horsies.model.send_options import TaskId, TaskOptions
from horsies.model.status import TaskStatus

__all__ = ["Claim", "Ended", "Ending", "NewTask", "TaskId", "TaskOptions"]


class NewTask(NamedTuple):
    """A task as it is sent; `args` is the JSON object of its arguments by name. A tuple, because there may be very many."""

    id: TaskId
    args: str
    options: TaskOptions


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
    args: str | None
    """JSON; None if it is large, and still to be read."""
    timeout_ms: int | None = None
    retries_left: bool = False
    root_id: str | None = None
    """Of a task that a workflow runs: the run at the top of its tree."""
    inputs: str | None = None
    """What its node is handed beside the arguments, as JSON that nobody between database and child reads."""
    trace: str | None = None
    takes_inputs: bool = False
    child_deaths: int = 0
    """Child processes that died with it in their hands before it began."""

    @property
    def weight(self) -> int:
        """How long its payload is."""
        return len(self.args or "") + len(self.inputs or "")

    @property
    def is_unread(self) -> bool:
        """Its payload is large, and was left out of the claim."""
        return self.args is None or (self.takes_inputs and self.inputs is None)


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
