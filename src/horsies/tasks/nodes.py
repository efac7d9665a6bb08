"""Workflows as users write them: nodes, the references that pass values between nodes, and the draft that lists them.

Nodes are compared by identity and never change, so one node can be part of several workflows. Nothing is validated here: the
workflow that a node is compiled into reports all problems of its nodes together. The classes are in `tasks/` because
`task.node()` creates nodes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, overload

from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import Join, NodeKind, OnError, RefMode
from horsies.model.result import Result, TaskError, TaskResult
from horsies.tasks.sender import Sender

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

JoinWord: TypeAlias = Literal["all", "any", "quorum"]

_EMPTY: Mapping[str, Any] = MappingProxyType({})


# No slots in a class that users subscribe and call, as in NodeKey[Page]("fetch"): Python 3.11 cannot make such a frozen instance.


@dataclass(frozen=True)
class NodeKey(Generic[T_co]):
    """Name a node by its id where the node object is not available: `NodeKey[Page]("fetch")`. It has the node's static type."""

    node_id: str


class WorkflowNode(Generic[T_co]):
    """A node of a workflow whose value has the type T."""

    node_id: str | None

    def key(self) -> NodeKey[T_co]:
        """Return the key of the node, with the `node_id` that it was given or the one that its workflow assigned."""
        ids = [self.node_id] if self.node_id is not None else sorted(self.__dict__.get("_assigned_ids", ()))
        if len(ids) == 1:
            return NodeKey(ids[0])
        raise NodeNotFoundError(
            f"{self!r} has the ids {' and '.join(map(repr, ids))} in different workflows; give it a node_id, or use NodeKey"
            if ids
            else f"{self!r} is not in a workflow yet, so it has no id; give it a node_id"
        )

    def add_assigned_id(self, node_id: str) -> None:
        """Record the id that a workflow uses for this node."""
        self.__dict__.setdefault("_assigned_ids", set()).add(node_id)


AnyNode: TypeAlias = WorkflowNode[T] | NodeKey[T]
NodeName: TypeAlias = AnyNode[Any] | str


@dataclass(frozen=True, eq=False)
class TaskNode(WorkflowNode[T_co]):
    """A node that runs a task. `task.node(...)(...)` creates one whose arguments a type checker has checked.

    With `args_from`, a parameter that is annotated as a TaskResult takes the other node's result; any other takes its value.
    """

    fn: Sender[..., T_co]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    waits_for: Sequence[NodeName] = ()
    args_from: Mapping[str, AnyNode[Any]] = field(default_factory=dict[str, AnyNode[Any]])
    workflow_ctx_from: Sequence[NodeName] | None = None
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
        freeze_fields(self, dicts=("kwargs", "args_from"), lists=("waits_for", "workflow_ctx_from"))

    @property
    def has_failure_limits(self) -> bool:
        """Whether it is a map that may succeed although items have failed, so that its list may have gaps."""
        return self.max_failures is not None or self.min_item_success is not None

    def __repr__(self) -> str:
        return f"<node {self.node_id or 'of task'} {getattr(self.fn, 'name', self.fn)!r}>"


class NodeMaker(Generic[P, T]):
    """The return value of `task.node(...)`: call it with the task's own arguments, which may be references to other nodes."""

    def __init__(self, make: Callable[..., TaskNode[T]]) -> None:
        self._make = make

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T]:
        return self._make(args=args, kwargs=kwargs)


@dataclass(frozen=True, slots=True)
class Reference:
    """Stands in an argument for a value of another node. `from_outside`: of a node of an enclosing workflow.

    The source of `each([...])` is not a node but the list itself.
    """

    source: AnyNode[Any]
    mode: RefMode
    from_outside: bool = False

    @property
    def is_literal(self) -> bool:
        return self.mode is RefMode.EACH and not isinstance(cast("object", self.source), WorkflowNode | NodeKey)

    def __repr__(self) -> str:
        return f"{_FUNCTIONS[self.mode]}({self.source!r:.80})"


_FUNCTIONS: Mapping[RefMode, str] = {
    RefMode.VALUE: "from_node",
    RefMode.RESULT: "result_from",
    RefMode.RESULTS: "results_from",
    RefMode.EACH: "each",
}


def from_node(node: AnyNode[T]) -> T:
    """Pass the value of another node as an argument, also inside lists and dicts. The node waits for the other one."""
    return cast("T", Reference(node, RefMode.VALUE))


def result_from(node: AnyNode[T]) -> Result[T]:
    """Pass the TaskResult of another node, a value or an error, as an argument, also inside lists and dicts. The node waits for the other one."""
    return cast("Result[T]", Reference(node, RefMode.RESULT))


def results_from(node: AnyNode[list[T]]) -> list[TaskResult[T, TaskError]]:
    """Pass the TaskResults of all items of a `map_node`, in order, as an argument, also inside lists and dicts. The node waits for the map."""
    return cast("list[TaskResult[T, TaskError]]", Reference(node, RefMode.RESULTS))


@overload
def each(items: AnyNode[Sequence[T]]) -> T: ...
@overload
def each(items: Sequence[T]) -> T: ...
def each(items: Any) -> Any:
    """Pass one item of a list as an argument of a `map_node`, which runs its task once for each item. The list is given, or returned by another node."""
    # A copy: the caller may change the list before the workflow is built.
    source: Any = tuple(cast("list[Any]", items)) if isinstance(items, list) else items
    return Reference(source, RefMode.EACH)


@dataclass(frozen=True, slots=True)
class SuccessCase:
    """One way for a workflow to succeed: all of these nodes succeed."""

    required: Sequence[NodeName]

    def __post_init__(self) -> None:
        freeze_fields(self, lists=("required",))


@dataclass(frozen=True, slots=True)
class SuccessPolicy:
    """A workflow is COMPLETED if any of the cases is satisfied, whatever else fails; without cases, if only `optional` nodes fail."""

    cases: Sequence[SuccessCase] = ()
    optional: Sequence[NodeName] = ()

    def __post_init__(self) -> None:
        freeze_fields(self, lists=("cases", "optional"))


@dataclass(frozen=True, slots=True)
class WorkflowDraft:
    """A workflow as it was written, not validated. `names` has a default id for each node; `value_type` is the annotated type of its value."""

    name: str
    nodes: Sequence[WorkflowNode[Any]]
    output: NodeName | None = None
    on_error: OnError | str = OnError.FAIL
    success_policy: SuccessPolicy | None = None
    time_limit: float | timedelta | None = None
    definition_key: str | None = None
    names: Sequence[str | None] = ()
    value_type: Any = Any
    problems: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        freeze_fields(self, lists=("nodes",))


def freeze_fields(instance: object, *, dicts: Sequence[str] = (), lists: Sequence[str] = ()) -> None:
    """Replace fields of a frozen instance by read-only copies, so that a caller's later changes have no effect.

    A value that is not a list stays as it is, to be reported when the graph is compiled.
    """
    for name in dicts:
        value = getattr(instance, name)
        if not isinstance(value, dict | Mapping):  # `dict` first: the check of an abstract class is slow
            raise TypeError(f"{name} must be a dict by parameter name, not {value!r:.80}")
        copy = MappingProxyType(dict(cast("Mapping[str, Any]", value))) if value else _EMPTY
        object.__setattr__(instance, name, copy)
    for name in lists:
        value = getattr(instance, name)
        if not isinstance(value, tuple | str) and isinstance(value, Iterable):
            object.__setattr__(instance, name, tuple(cast("Iterable[Any]", value)))
