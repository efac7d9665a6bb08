"""A task as a node of a workflow, and the values that flow between nodes.

Nodes are compared by identity and are never changed, so one may be part of several workflows. Everything that can be wrong with
one is reported by the workflow that it is built into, together with the rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, overload

from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import Join, NodeKind, RefMode
from horsies.model.result import TaskError, TaskResult
from horsies.tasks.sender import Sender

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

JoinWord: TypeAlias = Literal["all", "any", "quorum"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


# No slots in a class that users subscribe and call, as in NodeKey[Page]("fetch"): Python 3.11 cannot make such a frozen instance.


@dataclass(frozen=True)
class NodeKey(Generic[T_co]):
    """A node by its id, where the node itself is not at hand: `NodeKey[Page]("fetch")`. It has the node's static type."""

    node_id: str


class WorkflowNode(Generic[T_co]):
    """Something in a graph that will have a value of type T."""

    node_id: str | None

    def key(self) -> NodeKey[T_co]:
        """Its key: the id it was given, or the one that its workflow has given it."""
        return NodeKey(self._known_id())

    def built_as(self, node_id: str) -> None:
        """Remember what a workflow calls it."""
        self.__dict__.setdefault("_built_as", set()).add(node_id)

    def _known_id(self) -> str:
        if self.node_id is not None:
            return self.node_id
        names = sorted(self.__dict__.get("_built_as", ()))
        if len(names) == 1:
            return names[0]
        raise NodeNotFoundError(
            f"{self!r} is in no workflow yet, so it has no id; give it a node_id"
            if not names
            else f"{self!r} is called {' and '.join(map(repr, names))} in different workflows; give it a node_id, or use NodeKey"
        )


AnyNode: TypeAlias = WorkflowNode[T] | NodeKey[T]


@dataclass(frozen=True, eq=False)
class TaskNode(WorkflowNode[T_co]):
    """A task in a graph, written out. `task.node(...)(...)` makes one whose arguments a type checker has seen.

    With `args_from` a parameter takes another node's whole TaskResult if it is annotated so, and its bare value otherwise.
    """

    fn: Sender[..., T_co]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    waits_for: Sequence[AnyNode[Any] | str] = ()
    args_from: Mapping[str, AnyNode[Any]] = field(default_factory=dict[str, AnyNode[Any]])
    workflow_ctx_from: Sequence[AnyNode[Any] | str] | None = None
    queue: str | None = None
    priority: int | None = None
    allow_failed_deps: bool = False
    join: Join | JoinWord = Join.ALL
    min_success: int | None = None
    good_until: datetime | None = None
    node_id: str | None = None
    args: tuple[Any, ...] = ()
    kind: NodeKind = NodeKind.TASK
    max_parallel: int | None = None
    max_failures: int | None = None
    min_item_success: int | None = None

    def __post_init__(self) -> None:
        for name in ("kwargs", "args_from"):
            object.__setattr__(self, name, by_name(name, getattr(self, name)))
        for name in ("waits_for", "workflow_ctx_from"):
            object.__setattr__(self, name, listed_nodes(getattr(self, name)))

    @property
    def may_have_gaps(self) -> bool:
        """A map that may succeed although items have failed."""
        return self.max_failures is not None or self.min_item_success is not None

    def __repr__(self) -> str:
        return f"<node {self.node_id or 'of task'} {getattr(self.fn, 'name', self.fn)!r}>"


def by_name(what: str, given: object) -> Mapping[str, Any]:
    """A copy that nobody can change."""
    if not isinstance(given, dict | Mapping):  # a dict is found without asking
        raise TypeError(f"{what} must be a dict by the names of parameters, not {given!r:.80}")
    return MappingProxyType(dict(cast("Mapping[str, Any]", given))) if given else _NOTHING


def listed_nodes(given: Any) -> Any:
    """A list as a tuple, so that nobody changes it afterwards. What is no list stays, to be reported when the graph is built."""
    if given is None or isinstance(given, tuple | str):
        return cast("Any", given)
    return tuple(cast("Iterable[Any]", given)) if isinstance(given, Iterable) else given


class NodeMaker(Generic[P, T]):
    """`task.node(...)`: to be called with the task's own arguments, some of which may come from other nodes."""

    def __init__(self, make: Callable[..., TaskNode[T]]) -> None:
        self._make = make

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T]:
        return self._make(args=args, kwargs=kwargs)


@dataclass(frozen=True, slots=True)
class Reference:
    """Stands in an argument for what will come from another node. `from_outside`: from a workflow that this one is part of.

    The source of `each([...])` is not a node but the list itself.
    """

    source: AnyNode[Any]
    mode: RefMode
    from_outside: bool = False

    @property
    def is_literal(self) -> bool:
        return self.mode is RefMode.EACH and not isinstance(cast("object", self.source), WorkflowNode | NodeKey)

    def __repr__(self) -> str:
        return f"{_WORDS[self.mode]}({self.source!r:.80})"


_WORDS: Mapping[RefMode, str] = {
    RefMode.VALUE: "from_node",
    RefMode.RESULT: "result_from",
    RefMode.RESULTS: "results_from",
    RefMode.EACH: "each",
}


def from_node(node: AnyNode[T]) -> T:
    """The good value of another node, as an argument: this node waits for it. Also inside lists and dicts."""
    return cast("T", Reference(node, RefMode.VALUE))


def result_from(node: AnyNode[T]) -> TaskResult[T, TaskError]:
    """The whole TaskResult of another node, be it good or bad, as an argument: this node waits for it. Also inside lists and dicts."""
    return cast("TaskResult[T, TaskError]", Reference(node, RefMode.RESULT))


def results_from(node: AnyNode[list[T]]) -> list[TaskResult[T, TaskError]]:
    """The TaskResults of all items of a `map_node`, in the order of the items, as an argument: this node waits for the map. Also inside lists and dicts."""
    return cast("list[TaskResult[T, TaskError]]", Reference(node, RefMode.RESULTS))


@overload
def each(items: AnyNode[Sequence[T]]) -> T: ...
@overload
def each(items: Sequence[T]) -> T: ...
def each(items: Any) -> Any:
    """One item of the list that another node returns, or of a list that is given here, as an argument of a `map_node`: the task runs once for each."""
    source: Any = tuple(cast("list[Any]", items)) if isinstance(items, list) else items  # a copy, which nobody changes
    return Reference(source, RefMode.EACH)
