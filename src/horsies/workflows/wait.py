"""Wait: sleep until runs have ended, and read how. Who sleeps and who reads is the desk's business (`db/desk.py`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

from horsies.db.channels import Channel
from horsies.db.load import load
from horsies.db.op import Op, rows
from horsies.db.ticket import Found, Subject, Ticket
from horsies.model.codec import encode_error
from horsies.model.graph import Made, NodeStatus, WorkflowStatus
from horsies.workflows.control import OVERDUE
from horsies.workflows.inputs import failure_of

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker  # brings psycopg, which a process that only runs tasks can do without

SQL = load(__file__)


class NoEnd(Enum):
    """Why a run has no result: expected answers, not errors."""

    LIVE = auto()
    PAUSED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: with the result of its output node, or with an error. Both are JSON; without an output the result is null, and the results
    of its last nodes are to be read instead.
    """

    status: WorkflowStatus
    made: Made
    result: str
    error: str | None
    has_output: bool = True


RunAnswer: TypeAlias = RunEnd | NoEnd


def wait_until_run_ends(broker: "PostgresBroker", workflow_id: str, deadline: float | None) -> RunAnswer:
    """Returns when the run has ended or is paused, or at the deadline. An unknown one is waited for: its start may commit later."""
    desk, ticket = broker.desk(RUN_ENDS), Ticket[RunAnswer]([workflow_id])
    with desk.entered(ticket):
        broker.wait(desk, ticket, deadline)
    return ticket.answers[workflow_id]


async def wait_until_run_ends_async(broker: "PostgresBroker", workflow_id: str, deadline: float | None) -> RunAnswer:
    desk, ticket = broker.desk(RUN_ENDS), Ticket[RunAnswer]([workflow_id])
    with desk.entered(ticket):
        await broker.wait_async(desk, ticket, deadline)
    return ticket.answers[workflow_id]


def read_run_ends(workflow_ids: list[str]) -> Op[Mapping[str, Found[RunAnswer]]]:
    found = yield from rows(SQL["get_run_results"](ids=workflow_ids))
    known = {row[0]: _judged(*row[1:]) for row in found}
    unknown: Found[RunAnswer] = Found(NoEnd.UNKNOWN)
    return {workflow_id: known.get(workflow_id, unknown) for workflow_id in workflow_ids}


RUN_ENDS: Subject[RunAnswer] = Subject(Channel.DONE, read_run_ends)


def _judged(status: str, error: str | None, *output_and_rest: Any) -> Found[RunAnswer]:
    *output, ends_s = output_and_rest
    match WorkflowStatus(status):
        case WorkflowStatus.PENDING | WorkflowStatus.RUNNING:
            return Found(NoEnd.LIVE, look_again_s=ends_s)
        case WorkflowStatus.PAUSED:
            return Found(NoEnd.PAUSED, is_final=True)
        case WorkflowStatus.COMPLETED:
            return Found(_completed(*output), is_final=True)
        case WorkflowStatus.FAILED | WorkflowStatus.CANCELLED as known:
            end = RunEnd(known, Made(None), "null", error or encode_error(OVERDUE))
            return Found(end, is_final=True)


def _completed(
    node_id: str | None,
    status: str | None,
    made_by: str | None,
    makes_list: bool | None,  # noqa: FBT001 - a column
    result: str | None,
    error: str | None,
) -> RunEnd:
    """A success policy may be content although the output node is not."""
    if node_id is None or status is None:
        return RunEnd(WorkflowStatus.COMPLETED, Made(None), "null", None, has_output=False)
    made = Made(made_by, is_list=bool(makes_list))
    failure = failure_of(node_id, NodeStatus(status), error)
    return RunEnd(WorkflowStatus.COMPLETED, made, result or "null", failure)
