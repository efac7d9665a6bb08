"""The options of nodes and workflows: which of them cannot be met."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple, TypeVar, cast

from horsies.model.config import AppConfig
from horsies.model.errors import QueueError, WorkflowDefinitionError
from horsies.model.graph import Join, NodeKind, Ref, RefMode, Step
from horsies.model.send_options import SendOptions, span_problems, to_timedelta
from horsies.model.type_compat import list_item_type, result_of
from horsies.model.validation import number_problems
from horsies.tasks.nodes import NodeKey, NodeMaker, Reference, TaskNode, WorkflowNode
from horsies.tasks.task import BaseTask
from horsies.workflows.nodes import NodeName, SubgraphNode, TaskRegistry, WorkflowDraft

MAX_NAME: Final = 200
MAX_PARALLEL: Final = 10_000
MAX_DEPTH: Final = 32
TOO_DEEP: Final = f"sub-workflows are nested more than {MAX_DEPTH} deep; does one contain itself?"
MAX_QUORUM: Final = 1_000_000
SHORTEST: Final = timedelta(milliseconds=1)

Word = TypeVar("Word", bound=Enum)


def name_problems(what: str, name: object) -> Iterator[str]:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        yield f"{what} must be 1 to {MAX_NAME} printable characters, not {_short(name)}"


def word(kind: type[Word], value: object) -> Word | None:
    """A member of an enum, given as such or as its text."""
    try:
        return kind(value)
    except ValueError:
        return None


def word_problem(name: str, kind: type[Enum], value: object) -> str:
    return f"{name} must be one of {', '.join(repr(member.value) for member in kind)}, not {_short(value)}"


def join_problems(node: TaskNode[Any] | SubgraphNode[Any], dependencies: int) -> Iterator[str]:
    join = word(Join, node.join)
    if join is None:
        yield word_problem("join", Join, node.join)
    elif join is Join.QUORUM:
        yield from _quorum_problems(node.min_success, dependencies)
    elif node.min_success is not None:
        yield f'min_success={node.min_success!r} says nothing with join="{join}"; write join="quorum", or leave it out'
    if join is Join.ANY and dependencies == 0:
        yield 'join="any" can never be met, because it waits for nothing; give it waits_for=[...]'
    if not isinstance(node.allow_failed_deps, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody has a type checker
        yield f"allow_failed_deps must be True or False, not {_short(node.allow_failed_deps)}"


def _quorum_problems(least: int | None, dependencies: int) -> Iterator[str]:
    if least is None:
        yield 'join="quorum" needs min_success: how many of the nodes it waits for must succeed'
    elif found := list(number_problems("min_success", least, 1, MAX_QUORUM)):
        yield from found
    elif least > dependencies:
        yield f"min_success={least} can never be met, because it waits for {dependencies}"


def term_problems(node: TaskNode[Any], config: AppConfig) -> Iterator[str]:
    if node.good_until is not None or node.priority is not None:
        yield from SendOptions(good_until=node.good_until, priority=node.priority).problems()
    if node.queue is not None:
        try:
            config.queue_named(node.queue)
        except QueueError as error:
            yield f"queue: {error}"
    if node.max_parallel is not None:
        yield from number_problems("max_parallel", node.max_parallel, 1, MAX_PARALLEL)
    if node.max_failures is not None:
        yield from number_problems("max_failures", node.max_failures, 0, MAX_QUORUM)
    if node.min_item_success is not None:
        yield from number_problems("min_success", node.min_item_success, 0, MAX_QUORUM)
    if node.may_have_gaps and node.kind is not NodeKind.MAP:
        yield "max_failures and min_item_success are for the items of a map; write task.map_node(...)"


def time_limit_problems(limit: float | timedelta | None) -> Iterator[str]:
    if limit is None:
        return
    found = list(span_problems("time_limit", limit))
    yield from found
    if not found and to_timedelta(limit) < SHORTEST:
        yield f"time_limit is {limit}, which leaves it no time; choose more, or leave it out"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_NAME else f"{text[:40]}..."


# --------
# What is inside sub-workflows, and which types the values of nodes have.


class Drafts:
    """Looks into sub-workflows."""

    def __init__(self, registry: TaskRegistry) -> None:
        self.registry = registry

    def of(self, node: SubgraphNode[Any]) -> WorkflowDraft | WorkflowDefinitionError:
        try:
            return node.draft(self.registry)
        except WorkflowDefinitionError as error:
            return error

    def type_of(self, node: object) -> Any:
        """The type of a node's value; Any if it cannot be told."""
        match node:
            case TaskNode(fn=BaseTask(value_type=tp), kind=kind):
                return list[tp] if kind is NodeKind.MAP else tp
            case SubgraphNode():
                draft = self.of(cast("SubgraphNode[Any]", node))
                return self._output_type(draft) if isinstance(draft, WorkflowDraft) else Any
            case _:
                return Any

    def _output_type(self, draft: WorkflowDraft) -> Any:
        return None if draft.output is None else self.type_of(_node_of(draft, draft.output))


def _node_of(draft: WorkflowDraft, name: NodeName) -> object:
    if isinstance(name, WorkflowNode):
        return cast("object", name)
    wanted = name.node_id if isinstance(name, NodeKey) else name
    named = zip(draft.nodes, draft.names or [None] * len(draft.nodes), strict=False)
    return next((node for node, own in named if wanted in (getattr(node, "node_id", None), own)), None)


# --------
# The order of nodes, and their names.


def topological(waits_for: Sequence[Sequence[int]]) -> list[int]:
    """The positions, each after those that it waits for, otherwise as they were listed. Those of a cycle are left out, and all behind it."""
    left = [len(set(dependencies)) for dependencies in waits_for]
    dependents: list[list[int]] = [[] for _ in waits_for]
    for position, dependencies in enumerate(waits_for):
        for dependency in set(dependencies):
            dependents[dependency].append(position)
    free = [position for position, count in enumerate(left) if count == 0]
    heapify(free)
    order: list[int] = []
    while free:
        order.append(heappop(free))
        for dependent in dependents[order[-1]]:
            left[dependent] -= 1
            if left[dependent] == 0:
                heappush(free, dependent)
    return order


def cycle(waits_for: Sequence[Sequence[int]], order: Sequence[int]) -> list[int]:
    """One of the cycles that keep positions out of the order: each waits for the next, and the last is the first again."""
    done = set(order)
    position = next(position for position in range(len(waits_for)) if position not in done)
    path: dict[int, int] = {}  # in the order in which they were met
    while position not in path:
        path[position] = len(path)
        position = next(dependency for dependency in waits_for[position] if dependency not in done)
    return [*list(path)[path[position] :], position]


def inverse(order: Sequence[int]) -> list[int]:
    """Of each position its place in the order."""
    places = [0] * len(order)
    for place, position in enumerate(order):
        places[position] = place
    return places


def unique_names(given: Sequence[str | None], defaults: Sequence[str]) -> list[str]:
    """The name that each was given, or its default; a default that is taken becomes `name_2`, `name_3` and so on."""
    taken = {name for name in given if name is not None}
    names: list[str] = []
    last: dict[str, int] = {}
    for name, default in zip(given, defaults, strict=True):
        chosen = name if name is not None else default
        while name is None and chosen in taken:
            last[default] = last.get(default, 1) + 1
            chosen = f"{default}_{last[default]}"
        taken.add(chosen)
        names.append(chosen)
    return names


# --------
# Who is in a workflow: its nodes by object, by id and by place, and what flows between them.

NOWHERE: Final = (
    -1
)  # the index of a node that is not there: of a problem, or outside of what is only a part of a workflow
MOST_SHOWN: Final = 10


class Source(NamedTuple):
    """Which scope has a node, at which position, and how many workflows up that is."""

    scope: "Scope"
    position: int
    up: int


class Scope:
    """The nodes of one draft, in the order in which they are listed: a position is one in that list, an index is one in the graph.

    `problems` collects what is wrong with it, also for those who look further.
    """

    def __init__(self, drafts: Drafts, draft: WorkflowDraft, outer: "Scope | None" = None) -> None:
        self.problems = list(draft.problems)
        self.is_part = False  # a value flows in from a workflow that is not known here
        self.drafts = drafts
        self.draft = draft
        self.outer = outer
        self.depth: int = 1 if outer is None else outer.depth + 1
        self.nodes = self._listed_nodes()
        self.ids = self._node_ids()
        self.index: Sequence[int] = ()  # of each position, once they are in order
        self._at = {id(node): position for position, node in enumerate(self.nodes)}
        self._named = {node_id: position for position, node_id in reversed([*enumerate(self.ids)])}

    def _listed_nodes(self) -> list[WorkflowNode[Any]]:
        nodes: list[WorkflowNode[Any]] = []
        seen: set[int] = set()
        for position, item in enumerate(self.listed("tasks", self.draft.nodes)):
            if not isinstance(item, WorkflowNode):
                self.problems.append(f"tasks[{position}] is {no_node(item)}")
            elif id(cast("object", item)) in seen:
                self.problems.append(
                    f"tasks[{position}] is {item!r} a second time; make one node for each run of a task"
                )
            else:
                seen.add(id(cast("object", item)))
                nodes.append(cast("WorkflowNode[Any]", item))
        if not nodes and not self.problems:
            self.problems.append("it has no nodes; list them in tasks=[...]")
        return nodes

    def _node_ids(self) -> list[str]:
        given: list[str | None] = []
        for node in self.nodes:
            found = [] if node.node_id is None else list(name_problems("a node_id", node.node_id))
            self.problems.extend(found)
            given.append(None if found else node.node_id)
        for node_id, count in Counter(node_id for node_id in given if node_id is not None).items():
            if count > 1:
                words = "two nodes have" if count == 2 else f"{count} nodes have"  # noqa: PLR2004 - as it is said
                advice = "rename one of them" if count == 2 else "rename all but one of them"  # noqa: PLR2004 - the same
                self.problems.append(f"{words} the id {node_id!r}; {advice}")
        names = self.draft.names or [None] * len(self.nodes)
        return unique_names(given, [own or _title(node) for own, node in zip(names, self.nodes, strict=False)])

    def listed(self, what: str, given: object) -> tuple[object, ...]:
        if not isinstance(given, tuple):  # whoever has made the draft has made a tuple of every list
            self.problems.append(f"{what} must be a list, not {given!r:.80}")
            return ()
        return cast("tuple[object, ...]", given)

    def position(self, name: NodeName) -> int | None:
        match name:
            case NodeKey(node_id=str() as node_id) | (str() as node_id):
                return self._named.get(node_id)
            case _:
                return self._at.get(id(name))

    def indexes(self, positions: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({self.index[position] for position in positions}))

    def report(self, position: int, *problems: str) -> None:
        self.problems.extend(f"node {self.ids[position]!r}: {problem}" for problem in problems)

    def not_here(self, name: object) -> str:
        """What to say of a node that this workflow does not have."""
        match name:
            case NodeKey(node_id=str() as node_id) | (str() as node_id):
                close = get_close_matches(node_id, self.ids, n=1)
                return f"it names node {node_id!r}, which does not exist; " + (
                    f"did you mean {close[0]!r}?" if close else f"there are {_some(self.ids)}"
                )
            case WorkflowNode():
                return f"it names {name!r}, which is not in this workflow; add it to tasks=[...]"
            case _:
                return f"it names {no_node(name)}"

    # -- what flows (see Edges)

    def type_of(self, flow: Reference) -> Any:
        tp = self.type_at_source(flow)
        match flow.mode:
            case RefMode.VALUE:
                return tp
            case RefMode.RESULT:
                return result_of(tp)
            case RefMode.RESULTS:
                return list[result_of((list_item_type(tp) or (Any,))[0])]
            case RefMode.EACH:
                return (list_item_type(tp) or (Any,))[0]

    def type_at_source(self, flow: Reference) -> Any:
        found = self._source(flow)
        return self.drafts.type_of(found.scope.nodes[found.position] if found else flow.source)

    def ref(self, path: tuple[Step, ...], flow: Reference) -> Ref:
        if flow.is_literal:
            return Ref(path, NOWHERE, flow.mode)
        found = self._source(flow)
        if found is None:
            self.is_part = self.is_part or flow.from_outside
            return Ref(path, NOWHERE, flow.mode, up=int(flow.from_outside))
        return Ref(path, found.scope.index[found.position], flow.mode, found.up)

    def node_named(self, name: NodeName) -> object:
        """None if it is not here."""
        position = self.position(name)
        return None if position is None else self.nodes[position]

    def source_of(self, flow: Reference) -> object:
        """The node that something flows from; None if it is not known here."""
        found = self._source(flow)
        return found.scope.nodes[found.position] if found else None

    def name_of(self, flow: Reference) -> str:
        found = self._source(flow)
        return f"node {found.scope.ids[found.position]!r}" if found else repr(flow.source)

    def _source(self, flow: Reference) -> Source | None:
        if flow.is_literal:
            return None
        scope, up = (self.outer, 1) if flow.from_outside else (self, 0)
        while scope is not None:
            position = scope.position(flow.source)
            if position is not None:
                return Source(scope, position, up)
            scope, up = (scope.outer, up + 1) if flow.from_outside else (None, up)
        return None


def no_node(item: object) -> str:
    match item:
        case NodeMaker():
            return "a node without its arguments; call it once more: task.node(...)(...)"
        case BaseTask():
            return f"the task {item.name!r}, not a node of it; write task.node()(...)"
        case type():
            return f"the class {item.__name__}, not a node; write SubWorkflowNode({item.__name__}) for a workflow"
        case _:
            return f"{item!r:.80}, which is no node"


def _title(node: WorkflowNode[Any]) -> str:
    match node:
        case TaskNode(fn=BaseTask() as task):
            return task.name
        case SubgraphNode():
            return node.title
        case _:
            return "node"


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:MOST_SHOWN])) + (", ..." if len(names) > MOST_SHOWN else "")
