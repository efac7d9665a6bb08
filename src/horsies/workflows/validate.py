"""Find the nodes of a workflow by name, and report what is wrong with them.

A `Scope` is one workflow while it is compiled. It resolves the names of nodes and the sources of references, and collects all problems.
The scope of a sub-workflow knows the one around it, because values can come from there. The functions below it check options.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from horsies.model.config import AppConfig
from horsies.model.errors import QueueError, WorkflowDefinitionError
from horsies.model.graph import Join, NodeKind, Ref, RefMode, Step
from horsies.model.payload_errors import short_repr
from horsies.model.send_options import SendOptions
from horsies.model.type_compat import list_item_type, result_of
from horsies.model.validation import name_problems, number_problems
from horsies.tasks.handle import AppContext
from horsies.tasks.nodes import (
    AnyNode,
    JoinWord,
    NodeKey,
    NodeMaker,
    NodeName,
    Reference,
    TaskNode,
    WorkflowDraft,
    WorkflowNode,
    freeze_fields,
)
from horsies.tasks.task import BaseTask

MAX_PARALLEL: Final = 10_000
MAX_DEPTH: Final = 32
TOO_DEEP: Final = f"sub-workflows are nested more than {MAX_DEPTH} deep; does one contain itself?"
MAX_QUORUM: Final = 1_000_000
MAX_LISTED: Final = 10  # ids in an error message
NO_INDEX: Final = -1  # of a node that does not exist, or is outside a workflow that is compiled alone

T_co = TypeVar("T_co", covariant=True)
Member = TypeVar("Member", bound=Enum)


class TaskRegistry(AppContext, Protocol):
    """The app whose tasks a workflow consists of."""

    @property
    def tasks(self) -> Mapping[str, BaseTask[..., Any]]: ...


@dataclass(frozen=True, eq=False)
class SubgraphNode(WorkflowNode[T_co]):
    """A node that runs a workflow: the part of `SubWorkflowNode` that the compiler uses. That class itself depends on the compiler."""

    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True)
    args_from: Mapping[str, AnyNode[Any]] = field(default_factory=dict[str, AnyNode[Any]], kw_only=True)
    waits_for: Sequence[NodeName] = field(default=(), kw_only=True)
    join: Join | JoinWord = field(default=Join.ALL, kw_only=True)
    min_success: int | None = field(default=None, kw_only=True)
    allow_failed_deps: bool = field(default=False, kw_only=True)
    node_id: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        freeze_fields(self, dicts=("kwargs", "args_from"), lists=("waits_for",))

    @property
    @abstractmethod
    def default_id(self) -> str:
        """The id of the node if it is not given one."""

    @abstractmethod
    def references(self) -> dict[str, Reference]:
        """Return the entries of `args_from` as references, by parameter."""

    @abstractmethod
    def parameter_type(self, name: str) -> Any:
        """Return the annotation of a parameter of the inner workflow, or Any if it is not known."""

    @abstractmethod
    def to_draft(self, registry: TaskRegistry) -> WorkflowDraft:
        """Return the inner workflow."""


KnownNode: TypeAlias = TaskNode[Any] | SubgraphNode[Any]


class Source(NamedTuple):
    """The node that a reference refers to: the scope that contains it, its position there, and how many workflows up that scope is."""

    scope: "Scope"
    position: int
    up: int

    @property
    def node(self) -> WorkflowNode[Any]:
        return self.scope.nodes[self.position]


class Scope:
    """The nodes of one draft. A *position* is a place in the list of the draft, an *index* a place in the graph, in topological order."""

    def __init__(self, registry: TaskRegistry, draft: WorkflowDraft, outer: "Scope | None" = None) -> None:
        self.problems = list(draft.problems)
        self.takes_outer_values = False  # from a workflow around it that is not known here
        self.registry = registry
        self.draft = draft
        self.outer = outer
        self.depth: int = 1 if outer is None else outer.depth + 1
        self.nodes = self._unique_nodes()
        self.node_ids = self._assign_ids()
        self.index_at: Mapping[int, int] = {}  # by position; known once the nodes are in order
        self._position_by_node = {id(node): position for position, node in enumerate(self.nodes)}
        self._position_by_id = {node_id: position for position, node_id in reversed([*enumerate(self.node_ids)])}

    def _unique_nodes(self) -> list[WorkflowNode[Any]]:
        nodes: dict[int, WorkflowNode[Any]] = {}
        for position, item in enumerate(self.require_list("tasks", self.draft.nodes)):
            if not isinstance(item, WorkflowNode):
                self.problems.append(f"tasks[{position}] is {_describe_non_node(item)}")
            elif id(cast("object", item)) in nodes:
                self.problems.append(f"tasks[{position}] is {item!r} again; create one node for each run of a task")
            else:
                nodes[id(cast("object", item))] = cast("WorkflowNode[Any]", item)
        if not nodes and not self.problems:
            self.problems.append("it has no nodes; list them in tasks=[...]")
        return [*nodes.values()]

    def _assign_ids(self) -> list[str]:
        """Return the id that each node was given, or its default. A default that is taken becomes `name_2`, `name_3` and so on."""
        given: list[str | None] = []
        for node in self.nodes:
            problems = [] if node.node_id is None else list(name_problems("a node_id", node.node_id))
            self.problems.extend(problems)
            given.append(None if problems else node.node_id)
        taken = Counter(node_id for node_id in given if node_id is not None)
        for node_id, count in taken.items():
            if count > 1:
                self.problems.append(f"{count} nodes have the id {node_id!r}; give each node an id of its own")
        node_ids: list[str] = []
        last_number: dict[str, int] = {}
        for node, name, node_id in zip(self.nodes, self.draft.names or [None] * len(given), given, strict=False):
            default = name or _default_id(node)
            chosen = default if node_id is None else node_id
            while node_id is None and chosen in taken:
                last_number[default] = last_number.get(default, 1) + 1
                chosen = f"{default}_{last_number[default]}"
            taken[chosen] += 1
            node_ids.append(chosen)
        return node_ids

    def require_list(self, what: str, value: object) -> tuple[object, ...]:
        if not isinstance(value, tuple):  # nodes and drafts have converted every list
            self.problems.append(f"{what} must be a list, not {value!r:.80}")
            return ()
        return cast("tuple[object, ...]", value)

    def report(self, position: int, *problems: str) -> None:
        self.problems.extend(f"node {self.node_ids[position]!r}: {problem}" for problem in problems)

    # -- nodes

    def position_of(self, name: NodeName) -> int | None:
        match name:
            case NodeKey(node_id=str() as node_id) | (str() as node_id):
                return self._position_by_id.get(node_id)
            case _:
                return self._position_by_node.get(id(name))

    def to_positions(self, names: Iterable[NodeName]) -> set[int]:
        """Return the positions of those that exist."""
        return {position for position in map(self.position_of, names) if position is not None}

    def to_indexes(self, positions: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({self.index_at[position] for position in positions}))

    def unknown_node_problem(self, name: object) -> str:
        match name:
            case NodeKey(node_id=str() as node_id) | (str() as node_id):
                close = get_close_matches(node_id, self.node_ids, n=1)
                listed = ", ".join(map(repr, self.node_ids[:MAX_LISTED]))
                more = ", ..." if len(self.node_ids) > MAX_LISTED else ""
                advice = f"did you mean {close[0]!r}?" if close else f"there are {listed}{more}"
                return f"it names node {node_id!r}, which does not exist; {advice}"
            case WorkflowNode():
                return f"it names {name!r}, which is not in this workflow; add it to tasks=[...]"
            case BaseTask():
                return f"it names the task {name.name!r}, not a node of it; write the node, or its id as a string"
            case _:
                return f"it names {_describe_non_node(name)}"

    # -- references

    def find_source(self, reference: Reference) -> Source | None:
        """Return the node that a reference refers to, or None if it is not known here."""
        if reference.is_literal:
            return None
        scope, up = (self.outer, 1) if reference.from_outside else (self, 0)
        while scope is not None:
            position = scope.position_of(reference.source)
            if position is not None:
                return Source(scope, position, up)
            scope, up = (scope.outer, up + 1) if reference.from_outside else (None, up)
        return None

    def source_name(self, reference: Reference) -> str:
        source = self.find_source(reference)
        return f"node {source.scope.node_ids[source.position]!r}" if source else repr(reference.source)

    def source_type(self, reference: Reference) -> Any:
        source = self.find_source(reference)
        return value_type_of(source.node if source else reference.source, self.registry)

    def type_of(self, reference: Reference) -> Any:
        """Return the type of what the reference stands for, or Any if it is not known."""
        source_type = self.source_type(reference)
        match reference.mode:
            case RefMode.VALUE:
                return source_type
            case RefMode.RESULT:
                return result_of(source_type)
            case RefMode.RESULTS:
                return list[result_of((list_item_type(source_type) or (Any,))[0])]
            case RefMode.EACH:
                return (list_item_type(source_type) or (Any,))[0]

    def to_ref(self, path: tuple[Step, ...], reference: Reference) -> Ref:
        if source := self.find_source(reference):
            return Ref(path, source.scope.index_at[source.position], reference.mode, source.up)
        self.takes_outer_values = self.takes_outer_values or reference.from_outside
        return Ref(path, NO_INDEX, reference.mode, up=int(reference.from_outside))


def value_type_of(node: object, registry: TaskRegistry) -> Any:
    """Return the type of a node's value, or Any if it is not known."""
    match node:
        case TaskNode(fn=BaseTask(value_type=tp), kind=kind):
            return list[tp] if kind is NodeKind.MAP else tp
        case SubgraphNode():
            try:
                draft = cast("SubgraphNode[Any]", node).to_draft(registry)
            except WorkflowDefinitionError:
                return Any  # reported when the node itself is compiled
            return None if draft.output is None else value_type_of(_find_node(draft, draft.output), registry)
        case _:
            return Any


def _find_node(draft: WorkflowDraft, name: NodeName) -> object:
    if isinstance(name, WorkflowNode):
        return cast("object", name)
    wanted = name.node_id if isinstance(name, NodeKey) else name
    named = zip(draft.nodes, draft.names or [None] * len(draft.nodes), strict=False)
    return next((node for node, default in named if wanted in (getattr(node, "node_id", None), default)), None)


def _default_id(node: WorkflowNode[Any]) -> str:
    match node:
        case TaskNode(fn=BaseTask() as task):
            return task.name
        case SubgraphNode():
            return node.default_id
        case _:
            return "node"


def _describe_non_node(item: object) -> str:
    match item:
        case NodeMaker():
            return "a node without its arguments; call it once more: task.node(...)(...)"
        case BaseTask():
            return f"the task {item.name!r}, not a node of it; write task.node()(...)"
        case type():
            return f"the class {item.__name__}, not a node; write SubWorkflowNode({item.__name__}) for a workflow"
        case _:
            return f"{item!r:.80}, which is not a node"


# -- options


def to_member(kind: type[Member], value: object) -> Member | None:
    """Return a member of an enum, given as such or as its value; None if the enum has no such member."""
    try:
        return kind(value)
    except ValueError:
        return None


def member_problem(option: str, kind: type[Enum], value: object) -> str:
    return f"{option} must be one of {', '.join(repr(member.value) for member in kind)}, not {short_repr(value)}"


def join_problems(node: KnownNode, dependencies: int) -> Iterator[str]:
    join = to_member(Join, node.join)
    if join is None:
        yield member_problem("join", Join, node.join)
    elif join is Join.QUORUM:
        yield from _quorum_problems(node.min_success, dependencies)
    elif node.min_success is not None:
        yield f'min_success={node.min_success!r} has no effect with join="{join}"; write join="quorum", or leave it out'
    if join is Join.ANY and dependencies == 0:
        yield 'join="any" can never be met, because it waits for nothing; give it waits_for=[...]'
    if not isinstance(node.allow_failed_deps, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
        yield f"allow_failed_deps must be True or False, not {short_repr(node.allow_failed_deps)}"


def _quorum_problems(min_success: int | None, dependencies: int) -> Iterator[str]:
    if min_success is None:
        yield 'join="quorum" needs min_success: how many of the nodes it waits for must succeed'
    elif problems := list(number_problems("min_success", min_success, 1, MAX_QUORUM)):
        yield from problems
    elif min_success > dependencies:
        yield f"min_success={min_success} can never be met, because it waits for {dependencies}"


def option_problems(node: TaskNode[Any], config: AppConfig) -> Iterator[str]:
    if node.good_until is not None or node.priority is not None:
        yield from SendOptions(good_until=node.good_until, priority=node.priority).problems()
    if node.queue is not None:
        try:
            config.queue_named(node.queue)
        except QueueError as error:
            yield f"queue: {error}"
    for option, value, least, most in (
        ("max_parallel", node.max_parallel, 1, MAX_PARALLEL),
        ("max_failures", node.max_failures, 0, MAX_QUORUM),
        ("min_success", node.min_item_success, 0, MAX_QUORUM),
    ):
        if value is not None:
            yield from number_problems(option, value, least, most)
    if node.has_failure_limits and node.kind is not NodeKind.MAP:
        yield "max_failures and min_item_success are for the items of a map; write task.map_node(...)"
