"""Workflows that can be started (`WorkflowSpec`), as classes (`WorkflowDefinition`), and as nodes of others (`SubWorkflowNode`)."""

import inspect
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Concatenate, Final, Generic, NoReturn, ParamSpec, TypeVar, cast, get_args, get_origin
from uuid import UUID

from horsies.events import WorkflowStarted, WorkflowStartSpan, emit, subscribers
from horsies.model.errors import NodeNotFoundError, TaskDefinitionError, WorkflowDefinitionError
from horsies.model.graph import Graph, Join, Node
from horsies.model.signature import signature_of
from horsies.tasks.handle import JOIN_OPEN, caller_connection, warn_in_event_loop
from horsies.tasks.ids import to_workflow_id
from horsies.tasks.nodes import JoinWord, NodeKey, NodeName, Reference, WorkflowDraft, WorkflowNode
from horsies.tasks.sender import sends_are_suppressed, trace_send
from horsies.workflows.bind_arguments import find_references, reference_by_annotation
from horsies.workflows.compile import compile_graph
from horsies.workflows.handle import InertWorkflowHandle, WorkflowHandle
from horsies.workflows.render import render_mermaid, render_text
from horsies.workflows.start import StartPlan, plan_start, start, start_in_transaction
from horsies.workflows.validate import MAX_DEPTH, TOO_DEEP, Scope, SubgraphNode, TaskRegistry

META_OPTIONS: Final = ("output", "on_error", "success_policy", "time_limit")

Out_co = TypeVar("Out_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


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
        self, workflow_id: str | UUID | None = None, *, connection: object | None = JOIN_OPEN
    ) -> WorkflowHandle[Out_co]:
        """Start a run. Return when it is committed, with the tasks of its first nodes.

        Starting the same `workflow_id` again changes nothing and returns the same run. With `connection`, the start is part of the caller's transaction.
        """
        plan = self._plan(workflow_id)
        if sends_are_suppressed() or self.registry.suppresses_sends:
            return InertWorkflowHandle(plan.root, self.registry)
        connection = caller_connection(self.registry, connection)
        if connection is None:
            warn_in_event_loop("await spec.start_async()", stacklevel=2)
        return self._start_on(connection, plan)

    def _start_on(self, connection: object | None, planned: StartPlan) -> WorkflowHandle[Out_co]:
        broker = self.registry.broker
        with self._instrumented(planned) as plan:
            if connection is None:
                broker.run(partial(start, plan), again=partial(start, plan))
            else:
                broker.run_on(connection, partial(start_in_transaction, plan))
        return self.handle(plan.root)

    async def start_async(
        self, workflow_id: str | UUID | None = None, *, connection: object | None = JOIN_OPEN
    ) -> WorkflowHandle[Out_co]:
        """The same for asyncio code."""
        plan = self._plan(workflow_id)
        if sends_are_suppressed() or self.registry.suppresses_sends:
            return InertWorkflowHandle(plan.root, self.registry)
        transactions = self.registry.transactions
        if connection is JOIN_OPEN and transactions is not None:
            joined = await transactions.call(partial(self._start_if_open, plan))
            if joined is not None:
                return joined
        broker = self.registry.broker
        with self._instrumented(plan) as plan:
            if connection is None or connection is JOIN_OPEN:
                await broker.run_async(partial(start, plan), again=partial(start, plan))
            else:
                await broker.run_on_async(connection, partial(start_in_transaction, plan))
        return self.handle(plan.root)

    def _start_if_open(self, plan: StartPlan) -> WorkflowHandle[Out_co] | None:
        connection = caller_connection(self.registry, JOIN_OPEN)
        return None if connection is None else self._start_on(connection, plan)

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


def nodes_of(definition: type) -> dict[str, WorkflowNode[Any]]:
    """Return the nodes of a class by name, those of its base classes first."""
    found: dict[str, Any] = {}
    for cls in reversed(definition.__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, WorkflowNode) or name in found:
                found[name] = value
    return {name: node for name, node in found.items() if isinstance(node, WorkflowNode)}


def _unique_nodes_of(definition: type) -> dict[str, WorkflowNode[Any]]:
    """Return each node once, by its first name."""
    nodes = nodes_of(definition)
    first = {id(node): name for name, node in reversed(nodes.items())}
    return {name: node for name, node in nodes.items() if first[id(node)] == name}


class WorkflowDefinition(Generic[Out_co]):
    """A workflow as a class: nodes are class attributes, whose names are their ids, and an inner class `Meta` has the options.

    In `Meta`, write `output` and the nodes of a `success_policy` as strings with their ids: Python does not look up names of the outer class there.
    """

    name: ClassVar[str]
    definition_key: ClassVar[str | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A worker may run the tasks of a workflow without building it, and they may ask for a result by node.
        for attribute, node in _unique_nodes_of(cls).items():
            node.add_assigned_id(node.node_id or attribute)

    @classmethod
    def build(cls, app: TaskRegistry) -> WorkflowSpec[Out_co]:
        """Check the workflow. Raise WorkflowDefinitionError with all problems."""
        return build_spec(app, _to_draft(cls))

    @classmethod
    def build_with(cls, app: Any, *args: Any, **params: Any) -> WorkflowSpec[Out_co]:
        """Override this for a workflow with parameters: create the nodes, and return `app.workflow(...)`."""
        if args or params:
            raise WorkflowDefinitionError(
                cls.__name__, [f"it takes no parameters; override build_with() in {cls.__name__} to add some"]
            )
        return cls.build(app)


def _to_draft(definition: type[WorkflowDefinition[Any]]) -> WorkflowDraft:
    nodes = _unique_nodes_of(definition)
    meta = getattr(definition, "Meta", None)
    options = {option: getattr(meta, option) for option in META_OPTIONS if hasattr(meta, option)}
    problems: list[str] = []
    if not hasattr(definition, "name"):
        problems.append(f'it has no name; write name = "..." in {definition.__name__}')
    problems.extend(
        f"Meta has the unknown option {option!r}; use {', '.join(META_OPTIONS)}"
        for option in (vars(meta) if isinstance(meta, type) else ())
        if not option.startswith("_") and option not in META_OPTIONS
    )
    return WorkflowDraft(
        name=getattr(definition, "name", definition.__name__),
        nodes=tuple(nodes.values()),
        names=tuple(nodes),
        definition_key=definition.definition_key,
        value_type=_value_type(definition),
        problems=tuple(problems),
        **options,
    )


def _value_type(definition: type) -> Any:
    """Return the `Out` of `WorkflowDefinition[Out]`."""
    for cls in definition.__mro__:
        for base in vars(cls).get("__orig_bases__", ()):
            if get_origin(base) is WorkflowDefinition:
                return get_args(base)[0]
    return Any


_depth: ContextVar[int] = ContextVar("depth", default=0)  # of the sub-workflow whose build_with() runs now


@dataclass(frozen=True, eq=False)
class SubWorkflowNode(SubgraphNode[Out_co]):
    """Run a workflow as a node of another: a `WorkflowDefinition`, or the return value of `app.workflow(...)`. It has the workflow's value.

    `kwargs` are the arguments of the definition's `build_with`. They may contain values of other nodes, by `from_node` or in `args_from`.
    """

    workflow_def: type[WorkflowDefinition[Out_co]] | WorkflowSpec[Out_co]

    @staticmethod
    def of(
        build_with: Callable[Concatenate[Any, P], WorkflowSpec[T]],
        *,
        node_id: str | None = None,
        waits_for: Sequence[NodeName] = (),
        join: Join | JoinWord = "all",
        min_success: int | None = None,
        allow_failed_deps: bool = False,
    ) -> "Callable[P, SubWorkflowNode[T]]":
        """Return a maker of nodes, to be called with the arguments of `build_with`: `SubWorkflowNode.of(CountLinks.build_with)(page=from_node(fetch))`.

        A type checker compares the arguments with the parameters, as for `task.node(...)(...)`.
        """
        options = {name: value for name, value in locals().items() if name != "build_with"}
        definition = getattr(build_with, "__self__", None)
        if not _is_definition(definition):
            raise TypeError(f"build_with is {build_with!r}; give the method of a class, such as CountLinks.build_with")

        def make(*args: P.args, **kwargs: P.kwargs) -> "SubWorkflowNode[T]":
            given: dict[str, Any] = dict(kwargs)
            if args:
                bound = inspect.signature(build_with).bind_partial(None, *args)
                given = dict(list(bound.arguments.items())[1:]) | given
            return SubWorkflowNode(cast("Any", definition), kwargs=given, **options)

        return make

    @property
    def default_id(self) -> str:
        """The name of the workflow."""
        return str(getattr(self.workflow_def, "name", "workflow"))

    def references(self) -> dict[str, Reference]:
        """Return the entries of `args_from` as references, by parameter."""
        return {
            name: reference_by_annotation(node, node, self.parameter_type(name))
            for name, node in self.args_from.items()
        }

    def parameter_type(self, name: str) -> Any:
        """Return the annotation of a parameter of `build_with`, or Any if it is not known."""
        if not _is_definition(self.workflow_def):
            return Any
        try:
            parameters = signature_of(cast("type[WorkflowDefinition[Any]]", self.workflow_def).build_with).parameters
        except TaskDefinitionError:  # an annotation may be for type checkers only, and not importable
            return Any
        catch_all = [parameter for parameter in parameters.values() if parameter.kind is parameter.VAR_KEYWORD]
        parameter = parameters[name] if name in parameters else next(iter(catch_all), None)
        return Any if parameter is None or parameter.annotation is parameter.empty else parameter.annotation

    def to_draft(self, registry: TaskRegistry) -> WorkflowDraft:
        """Return the inner workflow. It is built once, by user code, although it is compiled alone and again as a part of each outer workflow."""
        drafts = self.__dict__.setdefault("_drafts", {})
        if id(registry) not in drafts:
            if (depth := _depth.get()) >= MAX_DEPTH:
                self._reject(TOO_DEEP)
            token = _depth.set(depth + 1)
            try:
                drafts[id(registry)] = self._build_draft(registry)
            finally:
                _depth.reset(token)
        return drafts[id(registry)]

    def _build_draft(self, registry: TaskRegistry) -> WorkflowDraft:
        params = {name: _to_outer(value) for name, value in {**self.kwargs, **self.references()}.items()}
        if isinstance(self.workflow_def, WorkflowSpec):
            if params:
                self._reject("kwargs and args_from are for a WorkflowDefinition with build_with(), not for a spec")
            return self.workflow_def.draft
        if not _is_definition(self.workflow_def):
            self._reject(
                f"it runs {self.workflow_def!r:.80}; pass a WorkflowDefinition, or the return value of app.workflow(...)"
            )
        try:
            inspect.signature(self.workflow_def.build_with).bind(registry, **params)
        except TypeError as error:
            self._reject(f"{self.workflow_def.__name__}.build_with(): {error}")
        return self.workflow_def.build_with(registry, **params).draft

    def _reject(self, problem: str) -> NoReturn:
        raise WorkflowDefinitionError(self.default_id, [problem])

    def __repr__(self) -> str:
        return f"<node {self.node_id or 'of workflow'} {self.default_id!r}>"


def _is_definition(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, WorkflowDefinition)


def _to_outer(value: object) -> Any:
    """Mark the references in a parameter: seen from the inner workflow, they refer to nodes of an outer one."""
    if not any(find_references(value)):
        return value
    match value:
        case Reference():
            return replace(value, from_outside=True)
        case Mapping():
            return {key: _to_outer(item) for key, item in cast("Mapping[object, object]", value).items()}
        case _:
            return [_to_outer(item) for item in cast("list[object]", value)]
