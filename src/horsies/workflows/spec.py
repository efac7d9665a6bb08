"""`WorkflowSpec`: a workflow that has been checked and can be started any number of times."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar
from uuid import UUID

from horsies.events import WorkflowStarted, WorkflowStartSpan, emit, subscribers
from horsies.model.errors import NodeNotFoundError, WorkflowDefinitionError
from horsies.model.graph import Graph, Node
from horsies.tasks.handle import warn_in_event_loop
from horsies.tasks.ids import to_workflow_id
from horsies.tasks.nodes import NodeKey, NodeName, WorkflowDraft, WorkflowNode
from horsies.tasks.sender import sends_are_suppressed, trace_send
from horsies.workflows.compile import compile_graph
from horsies.workflows.handle import InertWorkflowHandle, WorkflowHandle
from horsies.workflows.render import render_mermaid, render_text
from horsies.workflows.start import StartPlan, plan_start, start, start_in_transaction
from horsies.workflows.validate import Scope, TaskRegistry

Out_co = TypeVar("Out_co", covariant=True)


@dataclass(frozen=True, eq=False)  # no slots: see NodeKey
class WorkflowSpec(Generic[Out_co]):
    """A checked, immutable workflow. It has the value and the type of its output.

    A workflow that takes values from an outer one (`takes_outer_values`) is started only as a part of that one.
    """

    graph: Graph
    registry: TaskRegistry
    draft: WorkflowDraft
    takes_outer_values: bool
    _index_by_node: Mapping[int, int] = field(repr=False)

    @property
    def name(self) -> str:
        """The name of its runs."""
        return self.graph.name

    @property
    def definition_key(self) -> str | None:
        """The user's key for this definition, or None."""
        return self.graph.definition_key

    def node(self, node: NodeName) -> Node:
        """Return a node as it is stored, by its node object, its key or its id."""
        if isinstance(node, WorkflowNode):
            index = self._index_by_node.get(id(node))
            found = None if index is None else self.graph.nodes[index]
        else:
            found = self.graph.node_named(node.node_id if isinstance(node, NodeKey) else node)
        if found is None:
            raise NodeNotFoundError(f"workflow {self.name!r} has no node {node!r}")
        return found

    def start(
        self, workflow_id: str | UUID | None = None, *, connection: object | None = None
    ) -> WorkflowHandle[Out_co]:
        """Start a run. Return when it is committed, with the tasks of its first nodes.

        Starting the same `workflow_id` again changes nothing and returns the same run. With `connection`, the start is part of the caller's transaction.
        """
        plan = self._plan(workflow_id)
        if sends_are_suppressed() or self.registry.suppresses_sends:
            return InertWorkflowHandle(plan.root, self.registry)
        broker = self.registry.broker
        if connection is None:
            warn_in_event_loop("await spec.start_async()")
        with self._instrumented(plan) as plan:
            if connection is None:
                broker.run(partial(start, plan), again=partial(start, plan))
            else:
                broker.run_on(connection, partial(start_in_transaction, plan))
        return self.handle(plan.root)

    async def start_async(
        self, workflow_id: str | UUID | None = None, *, connection: object | None = None
    ) -> WorkflowHandle[Out_co]:
        """The same for asyncio code."""
        plan = self._plan(workflow_id)
        if sends_are_suppressed() or self.registry.suppresses_sends:
            return InertWorkflowHandle(plan.root, self.registry)
        broker = self.registry.broker
        with self._instrumented(plan) as plan:
            if connection is None:
                await broker.run_async(partial(start, plan), again=partial(start, plan))
            else:
                await broker.run_on_async(connection, partial(start_in_transaction, plan))
        return self.handle(plan.root)

    def _plan(self, workflow_id: str | UUID | None) -> StartPlan:
        if self.takes_outer_values:
            raise WorkflowDefinitionError(
                self.name, ["it takes values from the workflow that contains it; start that one"]
            )
        return plan_start(self.graph, None if workflow_id is None else to_workflow_id(workflow_id))

    @contextmanager
    def _instrumented(self, plan: StartPlan) -> Generator[StartPlan]:
        """Trace the start, pass the trace to its tasks, and emit an event."""
        if not subscribers and self.registry.tracer is None:
            yield plan
            return
        began = time.perf_counter()
        with trace_send(self.registry.tracer, WorkflowStartSpan(self.name, plan.root)) as trace:
            yield replace(plan, trace=trace)
        if subscribers:
            emit(WorkflowStarted(self.name, plan.root, time.perf_counter() - began))

    def handle(self, workflow_id: str | UUID) -> WorkflowHandle[Out_co]:
        """Return a handle for a stored id, without a query."""
        return WorkflowHandle(to_workflow_id(workflow_id), self.registry, lambda node: self.node(node).node_id)

    def to_mermaid(self) -> str:
        """Render the graph for Mermaid, for example in a Markdown page."""
        return render_mermaid(self.graph)

    def to_text(self) -> str:
        """Render the graph for a terminal."""
        return render_text(self.graph)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} of {len(self.graph.nodes)} nodes>"


def build_spec(registry: TaskRegistry, draft: WorkflowDraft) -> WorkflowSpec[Any]:
    """Compile a draft. Raise WorkflowDefinitionError with all problems."""
    scope = Scope(registry, draft)
    graph = compile_graph(scope)
    if scope.problems:
        raise WorkflowDefinitionError(str(draft.name), scope.problems)
    for node, node_id in zip(scope.nodes, scope.node_ids, strict=True):
        node.add_assigned_id(node_id)
    index_by_node = {id(node): scope.index_at[position] for position, node in enumerate(scope.nodes)}
    return WorkflowSpec(graph, registry, draft, scope.takes_outer_values, index_by_node)
