"""Who is in a workflow: its nodes by object, by id and by place, and what flows between them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, cast

from horsies.model.fits import item_of, result_of
from horsies.model.graph import Ref, RefMode, Step
from horsies.tasks.node import Flow, NodeKey, NodeMaker, TaskNode, WorkflowNode
from horsies.tasks.task import Sendable
from horsies.workflows.draft import Draft, NodeName, PartNode
from horsies.workflows.drafts import Drafts
from horsies.workflows.limits import name_problems
from horsies.workflows.order import unique_names

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

    def __init__(self, drafts: Drafts, draft: Draft, outer: "Scope | None" = None) -> None:
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

    def type_of(self, flow: Flow) -> Any:
        tp = self.type_at_source(flow)
        match flow.mode:
            case RefMode.VALUE:
                return tp
            case RefMode.RESULT:
                return result_of(tp)
            case RefMode.RESULTS:
                return list[result_of((item_of(tp) or (Any,))[0])]
            case RefMode.EACH:
                return (item_of(tp) or (Any,))[0]

    def type_at_source(self, flow: Flow) -> Any:
        found = self._source(flow)
        return self.drafts.type_of(found.scope.nodes[found.position] if found else flow.source)

    def ref(self, path: tuple[Step, ...], flow: Flow) -> Ref:
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

    def source_of(self, flow: Flow) -> object:
        """The node that something flows from; None if it is not known here."""
        found = self._source(flow)
        return found.scope.nodes[found.position] if found else None

    def name_of(self, flow: Flow) -> str:
        found = self._source(flow)
        return f"node {found.scope.ids[found.position]!r}" if found else repr(flow.source)

    def _source(self, flow: Flow) -> Source | None:
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
        case Sendable():
            return f"the task {item.name!r}, not a node of it; write task.node()(...)"
        case type():
            return f"the class {item.__name__}, not a node; write SubWorkflowNode({item.__name__}) for a workflow"
        case _:
            return f"{item!r:.80}, which is no node"


def _title(node: WorkflowNode[Any]) -> str:
    match node:
        case TaskNode(fn=Sendable() as task):
            return task.name
        case PartNode():
            return node.title
        case _:
            return "node"


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:MOST_SHOWN])) + (", ..." if len(names) > MOST_SHOWN else "")
