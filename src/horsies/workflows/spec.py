"""`WorkflowSpec`: a workflow that has been checked, and can be started any number of times."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar
from uuid import UUID

from horsies.model.errors import NodeNotFoundError, WorkflowDefinitionError
from horsies.model.graph import Graph, Node
from horsies.subscribers import emit, subscribers
from horsies.tasks.handle import warn_in_event_loop
from horsies.tasks.ids import to_workflow_id
from horsies.tasks.import_guard import sends_are_suppressed
from horsies.tasks.nodes import AnyNode, NodeKey, WorkflowNode
from horsies.workflows.compile import compile_graph
from horsies.workflows.handle import InertWorkflowHandle, WorkflowHandle
from horsies.workflows.nodes import TaskRegistry, WorkflowDraft
from horsies.workflows.render import mermaid, text_tree
from horsies.workflows.start import StartedNode, plan, start, start_within
from horsies.workflows.validate import Drafts, Scope

Out_co = TypeVar("Out_co", covariant=True)


@dataclass(frozen=True, eq=False)  # no slots: see NodeKey
class WorkflowSpec(Generic[Out_co]):
    """A workflow that has been checked; frozen. Its value is that of its output, and has its type.

    One that is only a part, because values flow into it from outside, is started by the workflow around it.
    """

    graph: Graph
    registry: TaskRegistry
    draft: WorkflowDraft
    is_part: bool
    _indexes: Mapping[int, int] = field(repr=False)

    @property
    def name(self) -> str:
        """What runs of it are called."""
        return self.graph.name

    @property
    def definition_key(self) -> str | None:
        """What tells this definition from another of the same name; None if it has none."""
        return self.graph.definition_key

    def node(self, node: AnyNode[Any] | str) -> Node:
        """A node as it is stored, by the object that it was written as, by its key, or by its id."""
        if isinstance(node, WorkflowNode):
            index = self._indexes.get(id(node))
            found = None if index is None else self.graph.nodes[index]
        else:
            found = self.graph.node_named(node.node_id if isinstance(node, NodeKey) else node)
        if found is None:
            raise NodeNotFoundError(f"workflow {self.name!r} has no node {node!r}")
        return found

    def startable(self) -> Graph:
        """The graph, if it can be started by itself."""
        if self.is_part:
            raise WorkflowDefinitionError(
                self.name, ["values flow into it from the workflow that it is a part of; start that one"]
            )
        return self.graph

    def start(
        self, workflow_id: str | UUID | None = None, *, connection: object | None = None
    ) -> WorkflowHandle[Out_co]:
        """Start a run. Returns when it is committed, with the tasks of its first nodes.

        Starting the same `workflow_id` again is a no-op that returns the same run. With `connection` it is part of the caller's own transaction.
        """
        beginning = self._beginning(workflow_id)
        if sends_are_suppressed() or self.registry.suppresses_sends:
            return InertWorkflowHandle(beginning.root, self.registry)
        broker = self.registry.broker
        if connection is None:
            warn_in_event_loop("await spec.start_async()")
        with self._watched(beginning) as beginning:
            if connection is None:
                broker.run(partial(start, beginning), again=partial(start, beginning))
            else:
                broker.run_on(connection, partial(start_within, beginning))
        return self.handle(beginning.root)

    async def start_async(
        self, workflow_id: str | UUID | None = None, *, connection: object | None = None
    ) -> WorkflowHandle[Out_co]:
        """The same for asyncio code."""
        beginning = self._beginning(workflow_id)
        if sends_are_suppressed() or self.registry.suppresses_sends:
            return InertWorkflowHandle(beginning.root, self.registry)
        broker = self.registry.broker
        with self._watched(beginning) as beginning:
            if connection is None:
                await broker.run_async(partial(start, beginning), again=partial(start, beginning))
            else:
                await broker.run_on_async(connection, partial(start_within, beginning))
        return self.handle(beginning.root)

    def _beginning(self, workflow_id: str | UUID | None) -> StartedNode:
        return plan(self.startable(), None if workflow_id is None else to_workflow_id(workflow_id))

    @contextmanager
    def _watched(self, beginning: StartedNode) -> Generator[StartedNode]:
        """Its tasks carry the trace of the start, and subscribers hear of it."""
        if not subscribers and self.registry.tracer is None:
            yield beginning
            return
        from horsies.events import WorkflowStarted, WorkflowStartSpan  # noqa: PLC0415 - for nobody else
        from horsies.tasks.instrument import trace_send  # noqa: PLC0415 - the same

        began = time.perf_counter()
        with trace_send(self.registry.tracer, WorkflowStartSpan(self.name, beginning.root)) as trace:
            yield replace(beginning, trace=trace)
        if subscribers:
            emit(WorkflowStarted(self.name, beginning.root, time.perf_counter() - began))

    def handle(self, workflow_id: str | UUID) -> WorkflowHandle[Out_co]:
        """A handle from a stored id; nothing is looked up."""
        return WorkflowHandle(to_workflow_id(workflow_id), self.registry, lambda node: self.node(node).node_id)

    def to_mermaid(self) -> str:
        """A picture for Mermaid, as Markdown pages show it."""
        return mermaid(self.graph)

    def to_text(self) -> str:
        """A picture for a terminal."""
        return text_tree(self.graph)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} of {len(self.graph.nodes)} nodes>"


def specify(registry: TaskRegistry, draft: WorkflowDraft) -> WorkflowSpec[Any]:
    """Check a draft. Raises with everything that is wrong with it."""
    scope = Scope(Drafts(registry), draft)
    graph = compile_graph(scope)
    if scope.problems:
        raise WorkflowDefinitionError(str(draft.name), scope.problems)
    for node, node_id in zip(scope.nodes, scope.ids, strict=True):
        node.built_as(node_id)
    indexes = {id(node): scope.index[position] for position, node in enumerate(scope.nodes)}
    return WorkflowSpec(graph, registry, draft, scope.is_part, indexes)
