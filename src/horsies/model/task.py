"""One task as a value at each stage: sent, claimed, ended, and as a waiter reads it; and the columns that it has at each stage.

`db/statement.py` inserts the lists of columns into the statements, so a column that travels with the task is listed once.
"""

from datetime import datetime
from typing import Final, NamedTuple

from horsies.model.attempt_log import StoredLog
from horsies.model.send_options import SENT_COLUMNS, TaskId, TaskOptions
from horsies.model.status import TaskStatus

__all__ = ["Claim", "Ended", "Ending", "NewTask", "TaskId", "TaskOptions"]

MOVED_COLUMNS: Final = (
    "id", "args", *SENT_COLUMNS, "sent_at", "enqueued_at", "good_until", "failed_attempts", "progress", "claim_no", "root_id", "node_id",
)  # fmt: skip
"""What moves from `tasks` to `finished` unchanged. The ending adds the status, the number of attempts, the claim, the time and the result."""


class NewTask(NamedTuple):
    """A task to be sent; `args` is the JSON object of its arguments by name. A tuple, because one send may have very many."""

    id: TaskId
    args: str
    options: TaskOptions


class Claim(NamedTuple):
    """A task that a worker holds. `claim_no` distinguishes this claim from all others of the same task.

    A tuple, because it is made from a row, and the fields for a child from it: twenty thousand times a second.
    """

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
    is_cancelled: bool = False
    """Its cancellation was requested since it was claimed."""

    @property
    def weight(self) -> int:
        """The length of the payload."""
        return len(self.args or "") + len(self.inputs or "")

    @property
    def is_unread(self) -> bool:
        """Whether the payload is large and was left out of the claim."""
        return self.args is None or (self.takes_inputs and self.inputs is None)


CLAIM_EXPRESSIONS: Final = {
    "id": "id::text",
    # Return no time that Python cannot represent: the rows would be claimed, and the worker would not know which.
    "enqueued_at": "greatest(enqueued_at, 'epoch')",
    "attempt": "attempts + 1",
    # A large payload is left out and read after the commit (load_payloads): a message is limited to one gigabyte.
    "args": "case when pg_column_size(args) <= %(inline_bytes)s::integer and octet_length(args::text) <= %(inline_bytes)s::integer "
    "then args::text end",
    "retries_left": "coalesce(attempts < cardinality(retry_delays_ms), false)",
    "root_id": "root_id::text",
    "inputs": "case when takes_inputs then {schema}.node_inputs(node_id, %(inline_bytes)s::integer) end",
    "takes_inputs": "coalesce(takes_inputs, false)",
    "is_cancelled": "cancel_requested_at is not null",
}
"""The fields of a `Claim` in SQL. The others are columns of `tasks`."""
NO_PAYLOAD: Final = {"args": "null", "inputs": "null"}


class Ending(NamedTuple):
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
    child_pid: int | None = None
    """The process that ran it, if it began."""
    log: StoredLog | None = None
    """What it has logged, if its task keeps logs."""


class Ended(NamedTuple):
    """A finished task as a waiter reads it."""

    id: TaskId
    status: TaskStatus
    result: str | None
    error: str | None
