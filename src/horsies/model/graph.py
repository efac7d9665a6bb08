"""Workflows as values: the graph that a specification is compiled to, and the states it goes through.

A graph is a list of nodes in topological order; nodes name each other by their position in it. Nothing here refers to a Python
function or to an object of the user's, so a graph can be stored, drawn, and reasoned about by anybody.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from horsies.model.signature import InjectedParameter
from horsies.model.task import TaskOptions

Step: TypeAlias = str | int


class WorkflowStatus(StrEnum):
    """Where a workflow is."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """It ends here unless somebody calls `retry()`."""
        return self in {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}


class NodeStatus(StrEnum):
    """Where a node of a workflow is. READY: all it waits for is there, but it is held back, by a pause for instance."""

    PENDING = "PENDING"
    READY = "READY"
    ENQUEUED = "ENQUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"

    @property
    def is_final(self) -> bool:
        """It ends here unless somebody calls `retry()`."""
        return self in {NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED}


class Join(StrEnum):
    """How many of the nodes that a node waits for must succeed before it runs: all, one, or `min_success` of them."""

    ALL = "all"
    ANY = "any"
    QUORUM = "quorum"


class OnError(StrEnum):
    """What the failure of a node does to its workflow.

    FAIL: everything that can still run does, then the workflow is FAILED with the error of the first node that failed.
    PAUSE: no further node starts until `resume()` or `cancel()`.
    """

    FAIL = "fail"
    PAUSE = "pause"


class NodeKind(StrEnum):
    """What a node does: run a task, run one for each item of a list, or run a workflow."""

    TASK = "task"
    MAP = "map"
    WORKFLOW = "workflow"


class RefMode(StrEnum):
    """What of another node stands in an argument."""

    VALUE = "value"  # its good value
    RESULT = "result"  # `{"ok": value}` or `{"err": error}`, as a TaskResult is written
    RESULTS = "results"  # a list of those, one for each item of a map
    EACH = "each"  # one item of its list; in a map only, and only once


@dataclass(frozen=True, slots=True)
class Ref:
    """At `path` inside the arguments, as in `("pages", 0)`, stands what comes from another node.

    `up` is 0 for a node of the same graph, 1 for one of the graph that this one is a sub-workflow of, and so on.
    """

    path: tuple[Step, ...]
    node: int
    mode: RefMode
    up: int = 0


@dataclass(frozen=True, slots=True)
class BuiltTask:
    """What kind of value a node makes: that of a task, or a list of them. A sub-workflow without an output makes none."""

    task_name: str | None
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `waits_for` includes every node of its own graph that its references name, or those inside its sub-workflow.

    `awaits` are those of `waits_for` that must have ended before it runs, whatever the join says. `uncounted` are those of `awaits` that do not
    count in the join.

    A TASK or a MAP has `terms` and `args`: a JSON object with null wherever a reference stands. A WORKFLOW has a `child`. A MAP goes through the
    list of another node (`each`) or through `items`, a JSON array. It fails if more than `max_failures` of its items do, or if fewer than
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
        return (
            tuple(index for index in self.waits_for if index not in self.uncounted)
            if self.uncounted
            else self.waits_for
        )

    @property
    def needed(self) -> int:
        """So many of the nodes that count must succeed.

        It runs as soon as they have, and what it awaits has ended, without regard to the rest. It is skipped when so many no longer
        can; with `allow_failed_deps` it then runs nevertheless, once every one of them has ended.
        """
        match self.join:
            case Join.ALL:
                return len(self.counted)
            case Join.ANY:
                return min(1, len(self.counted))
            case Join.QUORUM:
                return self.min_success or 0

    def is_ready(self, succeeded: int, unresolved: int, awaited: int = 0) -> bool:
        """`unresolved` are those that count and have not ended; `awaited` those that it awaits and that have not."""
        return awaited == 0 and (succeeded >= self.needed or (self.allow_failed_deps and unresolved == 0))

    @property
    def made(self) -> BuiltTask:
        """Whose value it has: this says how its result is read, also by somebody who has never seen the specification."""
        if self.child is not None:
            return BuiltTask(None) if self.child.output is None else self.child.nodes[self.child.output].made
        return BuiltTask(self.terms.task_name if self.terms else None, is_list=self.kind is NodeKind.MAP)

    @property
    def each(self) -> Ref | None:
        """Of a map: the list that it goes over, and where its items stand."""
        return next((ref for ref in self.refs if ref.mode is RefMode.EACH), None)


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole workflow.

    Its value is that of its `output` node; without one it is null, for the node that stands for it in another workflow. It succeeds if all nodes of one of the `success_cases` do, or,
    when there are none, if no node but `optional` ones fails. The failure of an optional node does not pause it, and is not its
    error while there is another's.
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
        """For each node those in whose join it counts."""
        return self._inverted(lambda node: node.counted)

    def awaited_by(self) -> tuple[tuple[int, ...], ...]:
        """For each node those that await it."""
        return self._inverted(lambda node: node.awaits)

    def _inverted(self, named_by: Callable[[Node], tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        waiting: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for other in named_by(node):
                waiting[other].append(node.index)
        return tuple(tuple(indexes) for indexes in waiting)
