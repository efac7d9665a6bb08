"""`WorkflowHandle`: a ticket for one run of a workflow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from horsies.db.channels import Channel
from horsies.db.statement import Op, load, rows
from horsies.db.waiter import ReadResult, Waiter, WaitSource
from horsies.model.codec import decode_error, encode_error
from horsies.model.error_codes import OutcomeCode, RetrievalCode
from horsies.model.errors import NodeNotFoundError, SendSuppressed
from horsies.model.graph import BuiltTask, NodeKind, NodeStatus, WorkflowStatus
from horsies.model.result import TaskError, TaskResult
from horsies.model.task import TaskId
from horsies.tasks.handle import refuse_in_event_loop
from horsies.tasks.nodes import AnyNode
from horsies.tasks.wait import deadline_from_timeout
from horsies.workflows import control
from horsies.workflows.control import OVERDUE
from horsies.workflows.inputs import KnownResults, failure_of, node_id_of, result_of
from horsies.workflows.inspect import StoredNode, get_graph_view, get_last_nodes, get_nodes, get_status
from horsies.workflows.nodes import TaskRegistry
from horsies.workflows.render import mermaid, text_tree

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

# --------
# Wait: sleep until runs have ended, and read how. Who sleeps and who reads is the desk's business (`db/waiter.py`).

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
    made: BuiltTask
    result: str
    error: str | None
    has_output: bool = True


RunAnswer: TypeAlias = RunEnd | NoEnd


def wait_until_run_ends(broker: "PostgresBroker", workflow_id: str, deadline: float | None) -> RunAnswer:
    """Returns when the run has ended or is paused, or at the deadline. An unknown one is waited for: its start may commit later."""
    hub, waiter = broker.hub(RUN_ENDS), Waiter[RunAnswer]([workflow_id])
    with hub.register(waiter):
        broker.wait(hub, waiter, deadline)
    return waiter.answers[workflow_id]


async def wait_until_run_ends_async(broker: "PostgresBroker", workflow_id: str, deadline: float | None) -> RunAnswer:
    hub, waiter = broker.hub(RUN_ENDS), Waiter[RunAnswer]([workflow_id])
    with hub.register(waiter):
        await broker.wait_async(hub, waiter, deadline)
    return waiter.answers[workflow_id]


def read_run_ends(workflow_ids: list[str]) -> Op[Mapping[str, ReadResult[RunAnswer]]]:
    found = yield from rows(SQL["get_run_results"](ids=workflow_ids))
    known = {row[0]: _judged(*row[1:]) for row in found}
    unknown: ReadResult[RunAnswer] = ReadResult(NoEnd.UNKNOWN)
    return {workflow_id: known.get(workflow_id, unknown) for workflow_id in workflow_ids}


RUN_ENDS: WaitSource[RunAnswer] = WaitSource(Channel.DONE, read_run_ends)


def _judged(status: str, error: str | None, *output_and_rest: Any) -> ReadResult[RunAnswer]:
    *output, ends_s = output_and_rest
    match WorkflowStatus(status):
        case WorkflowStatus.PENDING | WorkflowStatus.RUNNING:
            return ReadResult(NoEnd.LIVE, read_again_s=ends_s)
        case WorkflowStatus.PAUSED:
            return ReadResult(NoEnd.PAUSED, is_final=True)
        case WorkflowStatus.COMPLETED:
            return ReadResult(_completed(*output), is_final=True)
        case WorkflowStatus.FAILED | WorkflowStatus.CANCELLED as known:
            end = RunEnd(known, BuiltTask(None), "null", error or encode_error(OVERDUE))
            return ReadResult(end, is_final=True)


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
        return RunEnd(WorkflowStatus.COMPLETED, BuiltTask(None), "null", None, has_output=False)
    made = BuiltTask(made_by, is_list=bool(makes_list))
    failure = failure_of(node_id, NodeStatus(status), error)
    return RunEnd(WorkflowStatus.COMPLETED, made, result or "null", failure)


Out_co = TypeVar("Out_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Where one node of a run is. `task_id` is the task that runs it, once it is enqueued; `workflow_id` the run that it stands for, if it is a
    sub-workflow or a map that has begun.
    """

    node_id: str
    kind: NodeKind
    status: NodeStatus
    task_name: str | None
    task_id: TaskId | None
    workflow_id: str | None
    finished_at: datetime | None
    error: TaskError | None


class WorkflowHandle(Generic[Out_co]):
    """Waits for one run of a workflow, looks into it, and controls it. Cheap; any number may exist for the same run."""

    def __init__(
        self, workflow_id: str, registry: TaskRegistry, named: Callable[[AnyNode[Any] | str], str] = node_id_of
    ) -> None:
        self.workflow_id = workflow_id
        self._registry = registry
        self._named = named

    # -- how it ends

    def get(self, timeout_ms: int | None = None) -> TaskResult[Out_co, TaskError]:
        """Wait for its value: that of its output, or, if it has none, the results of its last nodes by their ids. A run that failed is the error of
        its first node that did; one that is paused is `err(WORKFLOW_PAUSED)`, and a wait that runs out `err(WAIT_TIMEOUT)`: it goes on.
        """
        refuse_in_event_loop("get()", "await handle.get_async()")
        found = wait_until_run_ends(self.broker, self.workflow_id, deadline_from_timeout(timeout_ms))
        if isinstance(found, RunEnd) and not found.has_output:
            return self._last_results(self._run(partial(get_last_nodes, self.workflow_id)))
        return self._receive(found, timeout_ms)

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[Out_co, TaskError]:
        """The same for asyncio code."""
        found = await wait_until_run_ends_async(self.broker, self.workflow_id, deadline_from_timeout(timeout_ms))
        if isinstance(found, RunEnd) and not found.has_output:
            return self._last_results(await self._run_async(partial(get_last_nodes, self.workflow_id)))
        return self._receive(found, timeout_ms)

    def status(self) -> WorkflowStatus | None:
        """Where it is now; None when no such run is known."""
        return self._run(partial(get_status, self.workflow_id))

    async def status_async(self) -> WorkflowStatus | None:
        """The same for asyncio code."""
        return await self._run_async(partial(get_status, self.workflow_id))

    # -- what is in it

    def result_for(self, node: AnyNode[T]) -> TaskResult[T, TaskError]:
        """The result of one of its nodes, as it is now: `err(RESULT_NOT_READY)` while there is none."""
        return self._result_for(self._run(self._node_verb(node)), node)

    async def result_for_async(self, node: AnyNode[T]) -> TaskResult[T, TaskError]:
        """The same for asyncio code."""
        return self._result_for(await self._run_async(self._node_verb(node)), node)

    def results(self) -> Mapping[str, TaskResult[Any, TaskError]]:
        """The results of all nodes that have ended, by node id."""
        return self._results(self._run(partial(get_nodes, self.workflow_id, with_results=True)))

    async def results_async(self) -> Mapping[str, TaskResult[Any, TaskError]]:
        """The same for asyncio code."""
        return self._results(await self._run_async(partial(get_nodes, self.workflow_id, with_results=True)))

    def tasks(self) -> list[NodeInfo]:
        """Its nodes, in the order of the graph."""
        return [_info(node) for node in self._run(partial(get_nodes, self.workflow_id))]

    async def tasks_async(self) -> list[NodeInfo]:
        """The same for asyncio code."""
        return [_info(node) for node in await self._run_async(partial(get_nodes, self.workflow_id))]

    def to_mermaid(self) -> str:
        """A picture for Mermaid, with the states of now."""
        return mermaid(*self._run(partial(get_graph_view, self.workflow_id)))

    async def to_mermaid_async(self) -> str:
        """The same for asyncio code."""
        return mermaid(*await self._run_async(partial(get_graph_view, self.workflow_id)))

    def to_text(self) -> str:
        """A picture for a terminal, with the states of now."""
        return text_tree(*self._run(partial(get_graph_view, self.workflow_id)))

    async def to_text_async(self) -> str:
        """The same for asyncio code."""
        return text_tree(*await self._run_async(partial(get_graph_view, self.workflow_id)))

    # -- what becomes of it: each says whether it has changed anything

    def pause(self) -> bool:
        """Begin no further node, here and in sub-workflows. What runs goes on; what only waits in a queue is taken back."""
        return self._run(partial(control.pause, self.workflow_id))

    async def pause_async(self) -> bool:
        """The same for asyncio code."""
        return await self._run_async(partial(control.pause, self.workflow_id))

    def resume(self) -> bool:
        """Go on after a pause, whoever or whatever has paused it, here and in sub-workflows."""
        return self._run(partial(control.resume, self.workflow_id))

    async def resume_async(self) -> bool:
        """The same for asyncio code."""
        return await self._run_async(partial(control.resume, self.workflow_id))

    def cancel(self) -> bool:
        """It is CANCELLED at once, sub-workflows included. What has not begun never will; what runs is asked to stop, and killed after a grace."""
        return self._run(partial(control.cancel, self.workflow_id))

    async def cancel_async(self) -> bool:
        """The same for asyncio code."""
        return await self._run_async(partial(control.cancel, self.workflow_id))

    def retry(self) -> bool:
        """Run again what failed or was skipped, sub-workflows included, after it FAILED, was CANCELLED or PAUSED. What has succeeded is kept."""
        return self._run(partial(control.retry, self.workflow_id))

    async def retry_async(self) -> bool:
        """The same for asyncio code."""
        return await self._run_async(partial(control.retry, self.workflow_id))

    # -- inside

    @property
    def broker(self) -> "PostgresBroker":
        """Where the run is."""
        return self._registry.broker

    def _run(self, verb: Callable[[], Op[T]]) -> T:
        return self.broker.run(verb, again=verb)

    async def _run_async(self, verb: Callable[[], Op[T]]) -> T:
        return await self.broker.run_async(verb, again=verb)

    def _node_verb(self, node: AnyNode[Any]) -> Callable[[], Op[list[StoredNode]]]:
        return partial(get_nodes, self.workflow_id, self._named(node), with_results=True)

    def _result_for(self, found: list[StoredNode], node: AnyNode[Any]) -> TaskResult[Any, TaskError]:
        if not found:
            raise NodeNotFoundError(f"workflow {self.workflow_id} has no node {self._named(node)!r}, or is not known")
        return self._result(found[0])

    def _results(self, found: list[StoredNode]) -> dict[str, TaskResult[Any, TaskError]]:
        return {node.node_id: self._result(node) for node in found if node.status.is_final}

    def _result(self, node: StoredNode) -> TaskResult[Any, TaskError]:
        failure = failure_of(node.node_id, node.status, node.error)
        return result_of(KnownResults(node.made, node.result, failure), self._registry.tasks)

    def _last_results(self, found: list[StoredNode]) -> TaskResult[Any, TaskError]:
        """Every workflow has a last node, so there is none where retention has removed the run in the meantime."""
        return TaskResult(ok=self._results(found)) if found else self._receive(NoEnd.UNKNOWN, None)

    def _receive(self, found: RunAnswer, timeout_ms: int | None) -> TaskResult[Any, TaskError]:
        match found:
            case RunEnd(made=made, result=result, error=error):
                return result_of(KnownResults(made, result, error), self._registry.tasks)
            case NoEnd.LIVE:
                words = f"workflow {self.workflow_id} has not ended within {timeout_ms} ms; it goes on"
                return TaskResult(err=TaskError(error_code=RetrievalCode.WAIT_TIMEOUT, message=words))
            case NoEnd.PAUSED:
                words = f"workflow {self.workflow_id} is paused; resume(), retry() or cancel() it"
                return TaskResult(err=TaskError(error_code=OutcomeCode.WORKFLOW_PAUSED, message=words))
            case NoEnd.UNKNOWN:
                words = (
                    f"no workflow {self.workflow_id} is known: never started, not committed yet, or past its retention"
                )
                return TaskResult(err=TaskError(error_code=RetrievalCode.WORKFLOW_NOT_FOUND, message=words))

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.workflow_id!r})"


class InertWorkflowHandle(WorkflowHandle[Out_co]):
    """What a suppressed start returns: there is no run behind it."""

    @property
    def broker(self) -> "PostgresBroker":
        raise SendSuppressed(
            "this start was suppressed, so nothing was started. It happened while a worker was importing modules: move it out of the "
            "module's top level. Or sends of the app are suppressed, by app.suppress_sends(True) or $HORSIES_SUPPRESS_SENDS"
        )


def _info(node: StoredNode) -> NodeInfo:
    return NodeInfo(
        node_id=node.node_id,
        kind=node.kind,
        status=node.status,
        task_name=node.task_name,
        task_id=node.task_id,
        workflow_id=node.child_id,
        finished_at=node.finished_at,
        error=decode_error(node.error) if node.error else None,
    )
