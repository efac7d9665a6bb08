"""Overview: how the whole house fares, in numbers that stay cheap to read however much is there."""

from collections.abc import Mapping
from dataclasses import dataclass

from horsies.db.load import load
from horsies.db.op import Op, ask, rows
from horsies.db.trouble import TookTooLong
from horsies.model.graph import WorkflowStatus
from horsies.model.status import TaskStatus

COUNTED_AT_MOST = 100_000
PATIENCE_MS = 2_000

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class Server:
    """Which database this is, and which schema is in it."""

    database: str
    server_version: str
    schema_version: int


def get_server() -> Op[Server]:
    found = yield from rows(SQL["get_server_info"]())
    return Server(*found[0])


def count_finished(minutes: int) -> Op[Mapping[TaskStatus, int] | None]:
    """How many tasks ended how in the last minutes. None: so many that counting them was given up."""
    try:
        _, _, found, _ = yield from ask(
            SQL["begin_count"](),
            SQL["set_count_timeout"](statement_timeout=f"{PATIENCE_MS}ms"),
            SQL["count_finished"](minutes=minutes),
            SQL["commit_count"](),
        )
    except TookTooLong:
        return None
    return {TaskStatus(status): count for status, count in found}


def count_workflows() -> Op[Mapping[WorkflowStatus, int]]:
    """Of those that have not ended, and that no other one contains; up to 100 000."""
    found = yield from rows(SQL["count_workflows"](counted=COUNTED_AT_MOST))
    return {WorkflowStatus(status): count for status, count in found}
