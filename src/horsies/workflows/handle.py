"""`WorkflowHandle`: wait for one run of a workflow, inspect it and control it."""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Never, TypeAlias, TypeVar

from horsies.db.statement import Op, Row, load, rows
from horsies.db.waiter import ReadResult
from horsies.model.codec import encode_error
from horsies.model.error_codes import OutcomeCode, RetrievalCode
from horsies.model.errors import NodeNotFoundError, SendSuppressed
from horsies.model.graph import BuiltTask, NodeStatus, WorkflowStatus
from horsies.model.other_queues import GET_OPTIONS, HANDLE_NAMES, explain_missing, refuse_options
from horsies.model.result import Err, Ok, Result, TaskError
from horsies.tasks.handle import deadline_from_timeout, refuse_in_event_loop
from horsies.tasks.nodes import AnyNode, NodeName
from horsies.workflows import control
from horsies.workflows.control import OVERDUE
from horsies.workflows.inputs import NodeResult, node_id_of
from horsies.workflows.inspect import NodeInfo, StoredNode, get_graph_view, get_last_nodes, get_nodes, get_status
from horsies.workflows.render import render_mermaid, render_text

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker
    from horsies.workflows.validate import TaskRegistry

SQL = load(__file__)

Out_co = TypeVar("Out_co", covariant=True)
T = TypeVar("T")


class NoRunEnd(Enum):
    """Why a run has no result. These are expected answers, not errors."""

    LIVE = auto()
    PAUSED = auto()
    UNKNOWN = auto()
    NO_OUTPUT = auto()
    """It is COMPLETED, and the results of its last nodes are read instead."""


RunAnswer: TypeAlias = NodeResult | NoRunEnd
"""The error of a run that has ended, or the result of its output node."""


class WorkflowHandle(Generic[Out_co]):
    """Waits for one run of a workflow, inspects it and controls it. A handle is cheap, and any number may exist for the same run."""

    def __init__(
        self, workflow_id: str, registry: "TaskRegistry", to_node_id: Callable[[NodeName], str] = node_id_of
    ) -> None:
        self.workflow_id = workflow_id
        self._registry = registry
        self._to_node_id = to_node_id

    def __eq__(self, other: object) -> bool:
        """Handles of the same run are equal."""
        return self.workflow_id == other.workflow_id if isinstance(other, WorkflowHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.workflow_id)

    # -- how it ends

    def get(self, timeout_ms: int | None = None, **unknown: Never) -> Result[Out_co]:
        """Wait for the value of the output or, without an output, the results of the last nodes by id.

        If the run failed, return the error of the first node that did. If it is paused, return `err(WORKFLOW_PAUSED)`. If the wait times out,
        return `err(WAIT_TIMEOUT)`; the run continues.
        """
        if unknown:
            refuse_options("get()", unknown, GET_OPTIONS)
        refuse_in_event_loop("get()", "await handle.get_async()")
        futures = self.broker.wait(read_run_ends, [self.workflow_id], deadline_from_timeout(timeout_ms))
        answer = futures[self.workflow_id].result()
        if answer is NoRunEnd.NO_OUTPUT:
            return self._last_results(self._run(partial(get_last_nodes, self.workflow_id)))
        return self._to_result(answer, timeout_ms)

    async def get_async(self, timeout_ms: int | None = None, **unknown: Never) -> Result[Out_co]:
        """The same for asyncio code."""
        if unknown:
            refuse_options("get_async()", unknown, GET_OPTIONS)
        futures = await self.broker.wait_async(read_run_ends, [self.workflow_id], deadline_from_timeout(timeout_ms))
        answer = futures[self.workflow_id].result()
        if answer is NoRunEnd.NO_OUTPUT:
            return self._last_results(await self._run_async(partial(get_last_nodes, self.workflow_id)))
        return self._to_result(answer, timeout_ms)

    def status(self) -> WorkflowStatus | None:
        """Return the current status, or None if the run does not exist."""
        return self._run(partial(get_status, self.workflow_id))

    async def status_async(self) -> WorkflowStatus | None:
        """The same for asyncio code."""
        return await self._run_async(partial(get_status, self.workflow_id))

    # -- its nodes

    def result_for(self, node: AnyNode[T]) -> Result[T]:
        """Return the current result of a node: `err(RESULT_NOT_READY)` while there is none."""
        return self._result_for(self._run(self._node_query(node)), node)

    async def result_for_async(self, node: AnyNode[T]) -> Result[T]:
        """The same for asyncio code."""
        return self._result_for(await self._run_async(self._node_query(node)), node)

    def results(self) -> Mapping[str, Result[Any]]:
        """Return the results of all nodes that have ended, by node id."""
        return self._results(self._run(partial(get_nodes, self.workflow_id, with_results=True)))

    async def results_async(self) -> Mapping[str, Result[Any]]:
        """The same for asyncio code."""
        return self._results(await self._run_async(partial(get_nodes, self.workflow_id, with_results=True)))

    def tasks(self) -> list[NodeInfo]:
        """Return the state of each node, in the order of the graph."""
        return [node.info for node in self._run(partial(get_nodes, self.workflow_id))]

    async def tasks_async(self) -> list[NodeInfo]:
        """The same for asyncio code."""
        return [node.info for node in await self._run_async(partial(get_nodes, self.workflow_id))]

    def to_mermaid(self) -> str:
        """Render the graph with its current states for Mermaid."""
        return render_mermaid(*self._run(partial(get_graph_view, self.workflow_id)))

    async def to_mermaid_async(self) -> str:
        """The same for asyncio code."""
        return render_mermaid(*await self._run_async(partial(get_graph_view, self.workflow_id)))

    def to_text(self) -> str:
        """Render the graph with its current states for a terminal."""
        return render_text(*self._run(partial(get_graph_view, self.workflow_id)))

    async def to_text_async(self) -> str:
        """The same for asyncio code."""
        return render_text(*await self._run_async(partial(get_graph_view, self.workflow_id)))

    # -- control: each method returns whether it has changed anything

    def pause(self) -> bool:
        """Start no further node, also in sub-workflows. Running tasks continue; tasks that have not started are taken back from their queue."""
        return self._run(partial(control.pause, self.workflow_id))

    async def pause_async(self) -> bool:
        """The same for asyncio code."""
        return await self._run_async(partial(control.pause, self.workflow_id))

    def resume(self) -> bool:
        """Continue after a pause of any cause, also in sub-workflows."""
        return self._run(partial(control.resume, self.workflow_id))

    async def resume_async(self) -> bool:
        """The same for asyncio code."""
        return await self._run_async(partial(control.resume, self.workflow_id))

    def cancel(self) -> bool:
        """Set the run to CANCELLED immediately, with its sub-workflows. Running tasks are asked to stop, and killed after their grace period."""
        return self._run(partial(control.cancel, self.workflow_id))

    async def cancel_async(self) -> bool:
        """The same for asyncio code."""
        return await self._run_async(partial(control.cancel, self.workflow_id))

    def retry(self) -> bool:
        """Run again what failed or was skipped, also in sub-workflows, after FAILED, CANCELLED or PAUSED. Nodes that succeeded keep their results."""
        return self._run(partial(control.retry, self.workflow_id))

    async def retry_async(self) -> bool:
        """The same for asyncio code."""
        return await self._run_async(partial(control.retry, self.workflow_id))

    # -- inside

    @property
    def broker(self) -> "PostgresBroker":
        """The broker of the app that the run belongs to."""
        return self._registry.broker

    def _run(self, op: Callable[[], Op[T]]) -> T:
        return self.broker.run(op, again=op)

    async def _run_async(self, op: Callable[[], Op[T]]) -> T:
        return await self.broker.run_async(op, again=op)

    def _node_query(self, node: AnyNode[Any]) -> Callable[[], Op[list[StoredNode]]]:
        return partial(get_nodes, self.workflow_id, self._to_node_id(node), with_results=True)

    def _result_for(self, found: list[StoredNode], node: AnyNode[Any]) -> Result[Any]:
        if not found:
            raise NodeNotFoundError(
                f"workflow {self.workflow_id} has no node {self._to_node_id(node)!r}, or does not exist"
            )
        return found[0].result.decode(self._registry.tasks)

    def _results(self, found: list[StoredNode]) -> dict[str, Result[Any]]:
        ended = [node.result for node in found if node.info.status.is_final]
        return {result.node_id: result.decode(self._registry.tasks) for result in ended}

    def _last_results(self, found: list[StoredNode]) -> Result[Any]:
        # Every workflow has a last node. If there is none, retention has deleted the run since the wait ended.
        return Ok(self._results(found)) if found else self._to_result(NoRunEnd.UNKNOWN, None)

    def _to_result(self, answer: RunAnswer, timeout_ms: int | None) -> Result[Any]:
        match answer:
            case NodeResult():
                return answer.decode(self._registry.tasks)
            case NoRunEnd.NO_OUTPUT:
                return Ok(None)
            case NoRunEnd.LIVE:
                code, message = RetrievalCode.WAIT_TIMEOUT, f"has not ended within {timeout_ms} ms; it continues"
            case NoRunEnd.PAUSED:
                code, message = OutcomeCode.WORKFLOW_PAUSED, "is paused; resume(), retry() or cancel() it"
            case NoRunEnd.UNKNOWN:
                code = RetrievalCode.WORKFLOW_NOT_FOUND
                message = "does not exist: it was never started, is not committed yet, or was deleted by retention"
        return Err(TaskError(error_code=code, message=f"workflow {self.workflow_id} {message}"))

    if not TYPE_CHECKING:
        __getattr__ = explain_missing(HANDLE_NAMES)

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.workflow_id!r})"


class InertWorkflowHandle(WorkflowHandle[Out_co]):
    """The handle of a suppressed start, without a run."""

    @property
    def broker(self) -> "PostgresBroker":
        raise SendSuppressed(
            "this start was suppressed, so nothing was started. It happened while a worker was importing modules: move it out of the "
            "module's top level. Or sends of the app are suppressed, by app.suppress_sends(True) or $HORSIES_SUPPRESS_SENDS"
        )


def read_run_ends(workflow_ids: list[str]) -> Op[Mapping[str, ReadResult[RunAnswer]]]:
    """Read how each run ended. A paused run counts as ended; an unknown one is waited for: its start may commit later."""
    found = yield from rows(SQL["get_run_results"](ids=workflow_ids))
    known = {row[0]: _to_read_result(row) for row in found}
    unknown: ReadResult[RunAnswer] = ReadResult(NoRunEnd.UNKNOWN)
    return {workflow_id: known.get(workflow_id, unknown) for workflow_id in workflow_ids}


def _to_read_result(row: Row) -> ReadResult[RunAnswer]:
    _, run_status, run_error, node_id, node_status, made_by, makes_list, result, error, ends_s = row
    match WorkflowStatus(run_status):
        case WorkflowStatus.PENDING | WorkflowStatus.RUNNING:
            return ReadResult(NoRunEnd.LIVE, read_again_s=ends_s)
        case WorkflowStatus.PAUSED:
            return ReadResult(NoRunEnd.PAUSED, is_final=True)
        case WorkflowStatus.COMPLETED if node_status is None:
            return ReadResult(NoRunEnd.NO_OUTPUT, is_final=True)
        case WorkflowStatus.COMPLETED:
            # The output node may have failed: a success policy does not have to require it.
            made = BuiltTask(made_by, is_list=bool(makes_list))
            end = NodeResult(node_id, NodeStatus(node_status), made, result, error)
        case WorkflowStatus.FAILED | WorkflowStatus.CANCELLED:
            end = NodeResult("", NodeStatus.FAILED, BuiltTask(None), None, run_error or encode_error(OVERDUE))
    return ReadResult(end, is_final=True)
