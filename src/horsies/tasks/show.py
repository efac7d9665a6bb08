"""Show: everything that is stored about one task, for those who look into what went wrong."""

from dataclasses import dataclass
from datetime import datetime

from horsies.db.load import load
from horsies.db.op import Op, one
from horsies.model.task import TaskId
from horsies.tasks.inspect import TaskInfo, get_info

WHOLE = 2**31 - 1

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Stored:
    """What `TaskInfo` leaves out. `args` and `result` are JSON, and None unless they were asked for."""

    claim_no: int
    max_retries: int
    cancel_requested_at: datetime | None
    lease_until: datetime | None
    workflow_id: str | None
    workflow_name: str | None
    node_id: str | None
    key: str | None
    args_bytes: int
    result_bytes: int | None
    args: str | None
    result: str | None


def show(task_id: TaskId, *, characters: int = 0) -> Op[tuple[TaskInfo, Stored] | None]:
    """With so many characters of its arguments and of its result."""
    info = yield from get_info(task_id)
    if info is None:
        return None
    row = yield from one(SQL["get_task_detail"](id=task_id, task_name=info.task_name, characters=characters))
    return None if row is None else (info, Stored(*row))
