"""One task as a value at each stage: sent, claimed, ended, and as a waiter reads it."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from horsies.model.send_options import TaskId, TaskOptions
from horsies.model.status import TaskStatus

__all__ = ["Claim", "Ended", "Ending", "NewTask", "TaskId", "TaskOptions"]


class NewTask(NamedTuple):
    """A task to be sent; `args` is the JSON object of its arguments by name. A tuple, because one send may have very many."""

    id: TaskId
    args: str
    options: TaskOptions


@dataclass(frozen=True, slots=True)
class Claim:
    """A task that a worker holds. `claim_no` distinguishes this claim from all others of the same task."""

    id: TaskId
    claim_no: int
    task_name: str
    queue_name: str
    priority: int
    enqueued_at: datetime
    attempt: int
    args: str | None
    """JSON; None if it is large and was left out of the claim."""
    timeout_ms: int | None = None
    retries_left: bool = False
    root_id: str | None = None
    """For a task of a workflow: the run at the top of its tree."""
    inputs: str | None = None
    """What its node receives besides the arguments, as JSON. Only the child decodes it."""
    trace: str | None = None
    takes_inputs: bool = False
    child_deaths: int = 0
    """How many child processes died while they held the task and had not started it."""

    @property
    def weight(self) -> int:
        """The length of the payload."""
        return len(self.args or "") + len(self.inputs or "")

    @property
    def is_unread(self) -> bool:
        """Whether the payload is large and was left out of the claim."""
        return self.args is None or (self.takes_inputs and self.inputs is None)


@dataclass(frozen=True, slots=True)
class Ending:
    """How one claim ended. `result` and `error` are JSON that is not decoded between the child and the database."""

    id: TaskId
    claim_no: int
    status: TaskStatus
    result: str | None = None
    error_code: str | None = None
    error: str | None = None
    may_retry: bool = False
    """There are retries left: the policy in the row decides whether the task ends."""
    wants_retry: bool = False
    """The policy lists the exception that was raised. Only the child can know this."""
    retry_after_ms: int | None = None
    root_id: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished task as a waiter reads it."""

    id: TaskId
    status: TaskStatus
    result: str | None
    error: str | None
