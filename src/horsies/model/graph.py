"""Workflows as values: the graph that a specification is compiled to, and the statuses of workflows and nodes.

A graph is a list of nodes in topological order; nodes refer to each other by their position in it. Nothing here refers to a Python
function or to an object of the user, so a graph can be stored, rendered and checked without the user's code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from horsies.model.signature import InjectedParameter
from horsies.model.task import TaskOptions

Step: TypeAlias = str | int


class WorkflowStatus(StrEnum):
    """The status of a workflow."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether it has ended. Only `retry()` changes a final status."""
        return self in {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}


class NodeStatus(StrEnum):
    """The status of a node of a workflow. READY: everything that it waits for has ended, but it is held back, for example by a pause."""

    PENDING = "PENDING"
    READY = "READY"
    ENQUEUED = "ENQUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"

    @property
    def is_final(self) -> bool:
        """Whether it has ended. Only `retry()` changes a final status."""
        return self in {NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED}


class Join(StrEnum):
    """How many of the nodes that a node waits for must succeed before it runs: all, one, or `min_success`."""

    ALL = "all"
    ANY = "any"
    QUORUM = "quorum"


class OnError(StrEnum):
    """What the failure of a node does to its workflow.

    FAIL: all nodes that can still run do so, then the workflow is FAILED with the error of the first node that failed.
    PAUSE: no further node starts until `resume()` or `cancel()`.
    """

    FAIL = "fail"
    PAUSE = "pause"


class NodeKind(StrEnum):
    """What a node does: run a task, run a task for each item of a list, or run a workflow."""

    TASK = "task"
    MAP = "map"
    WORKFLOW = "workflow"


class RefMode(StrEnum):
    """What an argument receives from another node."""

    VALUE = "value"  # its value, if it succeeded
    RESULT = "result"  # `{"ok": value}` or `{"err": error}`, as a TaskResult is encoded
    RESULTS = "results"  # a list of those, one for each item of a map
    EACH = "each"  # one item of its list; only in a map, and only once


class Ref(NamedTuple):
    """A place inside the arguments, such as `("pages", 0)`, that receives something from another node.

    `up` is 0 for a node of the same graph, 1 for a node of the graph that contains this one as a sub-workflow, and so on.
    """

    path: tuple[Step, ...]
    node: int
    mode: RefMode
    up: int = 0


class BuiltTask(NamedTuple):
    """Which task produces the value of a node, or the items of a list. A sub-workflow without an output has no such task."""

    task_name: str | None
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `waits_for` includes every node of its own graph that its references name, or references inside its sub-workflow.

    `awaits` are those of `waits_for` that must have ended before it runs, whatever the join is. `uncounted` are those of `awaits` that do not
    count in the join.

    A TASK or a MAP has `terms` and `args`: a JSON object with null in the place of each reference. A WORKFLOW has a `child`. A MAP runs over the
    list of another node (`each`) or over `items`, a JSON array. It fails if more than `max_failures` of its items do, or if fewer than
    `min_item_success` succeed; if neither is given, if any fails.
    """

    index: int
    node_id: str
    kind: NodeKind
    terms: TaskOptions | None = None
    args: str = "{}"
    refs: tuple[Ref, ...] = ()
    waits_for: tuple[int, ...] = ()
    join: Join = Join.ALL
    min_success: int | None = None
    allow_failed_deps: bool = False
    max_parallel: int | None = None
    max_failures: int | None = None
    min_item_success: int | None = None
    items: str | None = None
    awaits: tuple[int, ...] = ()
    uncounted: frozenset[int] = frozenset()
    ctx_from: tuple[int, ...] = ()
    wants: frozenset[InjectedParameter] = frozenset()
    child: "Graph | None" = None

    @property
    def counted(self) -> tuple[int, ...]:
        """The nodes that count in its join."""
        return tuple(index for index in self.waits_for if index not in self.uncounted)

    @property
    def needed(self) -> int:
        """How many of the nodes that count must succeed.

        The node runs as soon as they have and the nodes that it awaits have ended; the others do not matter. It is skipped when this number
        cannot be reached any more. With `allow_failed_deps` it runs even then, once all of them have ended.
        """
        match self.join:
            case Join.ALL:
                return len(self.counted)
            case Join.ANY:
                return min(1, len(self.counted))
            case Join.QUORUM:
                return self.min_success or 0

    @property
    def made(self) -> BuiltTask:
        """The task that produces its value. It determines how the result is decoded, also without the specification."""
        if self.child is not None:
            return BuiltTask(None) if self.child.output is None else self.child.nodes[self.child.output].made
        return BuiltTask(self.terms.task_name if self.terms else None, is_list=self.kind is NodeKind.MAP)

    @property
    def each(self) -> Ref | None:
        """For a map: the list that it runs over, and the place of its items."""
        return next((ref for ref in self.refs if ref.mode is RefMode.EACH), None)


class Graph(NamedTuple):
    """A whole workflow.

    Its value is that of its `output` node. Without one, the node that stands for it in another workflow has the value null. It succeeds if all
    nodes of one of the `success_cases` succeed; if there are none, if no node fails except `optional` ones. The failure of an optional node does
    not pause it, and becomes its error only if no other node has failed.
    """

    name: str
    nodes: tuple[Node, ...]
    output: int | None = None
    on_error: OnError = OnError.FAIL
    success_cases: tuple[tuple[int, ...], ...] = ()
    optional: frozenset[int] = frozenset()
    time_limit_ms: int | None = None
    definition_key: str | None = None

    def node_named(self, node_id: str) -> Node | None:
        return next((node for node in self.nodes if node.node_id == node_id), None)

    def dependents(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each node, those in whose join it counts."""
        return _invert([node.counted for node in self.nodes])

    def awaited_by(self) -> tuple[tuple[int, ...], ...]:
        """Return, for each node, those that await it."""
        return _invert([node.awaits for node in self.nodes])


def _invert(targets: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    sources: list[list[int]] = [[] for _ in targets]
    for index, others in enumerate(targets):
        for other in others:
            sources[other].append(index)
    return tuple(map(tuple, sources))
