"""What a task learns of the workflow that it is a node of, and how the results of nodes are read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from horsies.model.codec import ResultCodec, decode_error
from horsies.model.errors import NodeNotFoundError
from horsies.model.functions import Wanted
from horsies.model.graph import Made
from horsies.model.result import TaskError, TaskResult
from horsies.tasks.node import AnyNode, NodeKey
from horsies.tasks.task import Sendable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkflowMeta:
    """Which run of which workflow a task belongs to, and as which node. `root_id` is the outermost run, if this one is a part of others."""

    workflow_id: str
    workflow_name: str
    node_id: str
    root_id: str


@dataclass(frozen=True, slots=True)
class Known:
    """A node that has ended: the JSON of its value, or of why it has none."""

    made: Made
    result: str | None
    failure: str | None


class WorkflowContext:
    """The results of other nodes of the workflow, for a task that takes `workflow_ctx`."""

    def __init__(self, meta: WorkflowMeta, known: Mapping[str, Known], tasks: Mapping[str, Sendable[..., Any]]) -> None:
        self.meta = meta
        self._known = known
        self._tasks = tasks

    @property
    def workflow_id(self) -> str:
        """The run that this task is a node of."""
        return self.meta.workflow_id

    def has_result(self, node: AnyNode[Any] | str) -> bool:
        """Whether `result_for` can answer: it is one of the nodes in `workflow_ctx_from`, or else of those that this one waits for."""
        return node_id_of(node) in self._known

    def result_for(self, node: AnyNode[T]) -> TaskResult[T, TaskError]:
        """The result of another node. One that was skipped is `err(UPSTREAM_SKIPPED)`."""
        node_id = node_id_of(node)
        if node_id not in self._known:
            raise NodeNotFoundError(
                f"node {self.meta.node_id!r} is not given the result of {node_id!r}; "
                "name that node in its workflow_ctx_from=[...] or in waits_for=[...]"
            )
        return result_of(self._known[node_id], self._tasks)

    def __repr__(self) -> str:
        return f"<context of node {self.meta.node_id!r} with {', '.join(map(repr, self._known)) or 'no results'}>"


def filled_in(wants: frozenset[Wanted], context: WorkflowContext) -> dict[str, Any]:
    """The arguments that nobody passes."""
    everything = {Wanted.CONTEXT: context, Wanted.META: context.meta}
    return {wanted.value: everything[wanted] for wanted in wants}


def result_of(known: Known, tasks: Mapping[str, Sendable[..., Any]]) -> TaskResult[Any, TaskError]:
    if known.failure is not None:
        return TaskResult(err=decode_error(known.failure))
    return TaskResult(ok=codec_of(known.made, tasks).decode(known.result or "null"))


def codec_of(made: Made, tasks: Mapping[str, Sendable[..., Any]]) -> ResultCodec[Any]:
    """How the value of a node is read: by its task's annotation, or as plain JSON if this process does not know the task."""
    if made.task_name is None:
        return ResultCodec.for_type(None)
    task = tasks.get(made.task_name)
    if task is None:
        return ResultCodec.for_type(Any)
    return ResultCodec.for_type(list[task.value_type]) if made.is_list else task.result


def node_id_of(node: AnyNode[Any] | str) -> str:
    return node if isinstance(node, str) else node.node_id if isinstance(node, NodeKey) else node.key().node_id
