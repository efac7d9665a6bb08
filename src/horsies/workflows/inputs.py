"""Read the results of nodes, and pass them to the task of another node, in the process that runs the task.

A node stores references. When its task is claimed, the results that they refer to are sent along as text, and are spliced into the
arguments as text. A value that is only passed on is never decoded, and a large value is stored once, however many nodes take it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

from pydantic_core import from_json, to_json

from horsies.model.codec import ResultCodec, decode_error, encode_error
from horsies.model.error_codes import OutcomeCode, RetrievalCode
from horsies.model.errors import NodeNotFoundError
from horsies.model.graph import BuiltTask, NodeStatus, RefMode, Step
from horsies.model.result import Err, Ok, Result, TaskError
from horsies.model.signature import InjectedParameter
from horsies.tasks.nodes import AnyNode, NodeKey, NodeName
from horsies.tasks.task import BaseTask

T = TypeVar("T")
Tasks: TypeAlias = Mapping[str, BaseTask[..., Any]]
Holes: TypeAlias = "dict[Step, str | Holes]"


@dataclass(frozen=True, slots=True)
class WorkflowMeta:
    """The run and the node that a task belongs to. `root_id` is the outermost run, if the run is a sub-workflow or a map."""

    workflow_id: str
    workflow_name: str
    node_id: str
    root_id: str


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The status of a node with the result or error that is stored in its row, as JSON."""

    node_id: str
    status: NodeStatus
    made: BuiltTask
    result: str | None
    error: str | None

    def missing_error(self) -> str | None:
        """Return the error because of which the node has no value, as JSON, or None if it has one."""
        match self.status:
            case NodeStatus.COMPLETED:
                return None
            case NodeStatus.FAILED if self.error is not None:
                return self.error
            case NodeStatus.SKIPPED:
                code = OutcomeCode.UPSTREAM_SKIPPED
                message = "was skipped: nodes that it waits for did not succeed, or its workflow was stopped"
            case status:
                code, message = RetrievalCode.RESULT_NOT_READY, f"is {status}: it has no result yet"
        return encode_error(TaskError(error_code=code, message=f"node {self.node_id!r} {message}"))

    def decode(self, tasks: Tasks) -> Result[Any]:
        """Decode by the annotation of the task that made the value, or as plain JSON if this process does not know the task."""
        if (error := self.missing_error()) is not None:
            return Err(decode_error(error))
        task = tasks.get(self.made.task_name) if self.made.task_name is not None else None
        if task is None:
            codec = ResultCodec[Any](None if self.made.task_name is None else Any)
        else:
            codec = ResultCodec[Any](list[task.value_type]) if self.made.is_list else task.result
        return Ok(codec.decode(self.result or "null"))


class WorkflowContext:
    """The results of other nodes of the workflow, for a task that takes `workflow_ctx`."""

    def __init__(self, meta: WorkflowMeta, results: Mapping[str, NodeResult], tasks: Tasks) -> None:
        self.meta = meta
        self._results = results
        self._tasks = tasks

    @property
    def workflow_id(self) -> str:
        """The run that this task belongs to."""
        return self.meta.workflow_id

    def has_result(self, node: NodeName) -> bool:
        """Return whether `result_for` accepts the node: it is in `workflow_ctx_from` or, without that option, among those that this node waits for."""
        return node_id_of(node) in self._results

    def result_for(self, node: AnyNode[T]) -> Result[T]:
        """Return the result of another node. For a node that was skipped it is `err(UPSTREAM_SKIPPED)`."""
        node_id = node_id_of(node)
        if node_id not in self._results:
            raise NodeNotFoundError(
                f"node {self.meta.node_id!r} does not get the result of {node_id!r}; "
                "name that node in its workflow_ctx_from=[...] or in waits_for=[...]"
            )
        return self._results[node_id].decode(self._tasks)

    def to_arguments(self, wants: frozenset[InjectedParameter]) -> dict[str, Any]:
        """Return the arguments that the workflow fills in."""
        available = {InjectedParameter.CONTEXT: self, InjectedParameter.META: self.meta}
        return {wanted.value: available[wanted] for wanted in wants}

    def __repr__(self) -> str:
        return f"<context of node {self.meta.node_id!r} with {', '.join(map(repr, self._results)) or 'no results'}>"


def node_id_of(node: NodeName) -> str:
    return node if isinstance(node, str) else node.node_id if isinstance(node, NodeKey) else node.key().node_id


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a task takes from its workflow: the results of other nodes as they were when the task was claimed.

    A reference is a path in the arguments, a place in `inputs` (None for the item of a map), and a mode. `context` has places in `inputs` too. `meta` is None unless the task takes `workflow_ctx` or `workflow_meta`.
    """

    inputs: Sequence[NodeResult]
    refs: Sequence[tuple[tuple[Step, ...], int | None, RefMode]]
    context: Sequence[int]
    item: str | None
    meta: WorkflowMeta | None

    def context_arguments(self, wants: frozenset[InjectedParameter], tasks: Tasks) -> dict[str, Any]:
        """Return the arguments that the workflow fills in."""
        if self.meta is None:
            return {}
        results = {self.inputs[place].node_id: self.inputs[place] for place in self.context}
        return WorkflowContext(self.meta, results, tasks).to_arguments(wants)

    def insert_into(self, args: str) -> str | TaskError:
        """Return the arguments with the values that they refer to, or the error if one of these does not exist."""
        pieces: list[tuple[tuple[Step, ...], str]] = []
        for path, place, mode in self.refs:
            if place is None:
                pieces.append((path, self.item or "null"))
                continue
            source = self.inputs[place]
            if mode is RefMode.RESULT:
                pieces.append((path, result_text(source.result, source.missing_error())))
            elif source.status is NodeStatus.COMPLETED:
                pieces.append((path, source.result or "null"))
            else:
                return TaskError(
                    error_code=OutcomeCode.UPSTREAM_SKIPPED,
                    message=f"node {source.node_id!r} has no value, because it is {source.status}; "
                    "use result_from(...) if a node may run without it",
                )
        return splice_results(args, pieces)


def inputs_from_json(text: str) -> Inputs:
    fields: dict[str, Any] = json.loads(text)
    refs, meta = fields["refs"], fields["meta"]
    return Inputs(
        item=fields["item"],
        meta=WorkflowMeta(**meta) if meta else None,
        inputs=[_to_node_result(**source) for source in fields["inputs"] or ()],
        refs=[(tuple(path), place, RefMode(mode)) for path, place, mode in refs["refs"]],
        context=refs["context"],
    )


def _to_node_result(status: str, made_by: str | None, *, makes_list: bool, **fields: Any) -> NodeResult:
    return NodeResult(status=NodeStatus(status), made=BuiltTask(made_by, is_list=makes_list), **fields)


# -- splicing


def splice_results(args: str | bytes, pieces: Iterable[tuple[tuple[Step, ...], str]]) -> str:
    """Return the JSON text `args` with each piece of JSON text at its path, in place of the null there."""
    holes: Holes = {}
    for path, piece in pieces:
        level = holes
        for step in path[:-1]:
            level = cast("Holes", level.setdefault(step, {}))
        level[path[-1]] = piece
    return _write(from_json(args), holes) if holes else args if isinstance(args, str) else args.decode()


def result_text(ok: str | None, err: str | None) -> str:
    """Return a TaskResult as JSON, from the JSON of its value or its error. Without either, the value is null."""
    return f'{{"err":{err}}}' if err is not None else f'{{"ok":{"null" if ok is None else ok}}}'


def _write(value: object, holes: "str | Holes | None") -> str:
    match value, holes:
        case _, str():
            return holes
        case dict(), dict():
            members = cast("Mapping[str, object]", value).items()
            return f"{{{','.join(f'{_to_text(key)}:{_write(item, holes.get(key))}' for key, item in members)}}}"
        case list(), dict():
            items = enumerate(cast("list[object]", value))
            return f"[{','.join(_write(item, holes.get(position)) for position, item in items)}]"
        case _:
            return _to_text(value)


def _to_text(value: object) -> str:
    return to_json(value).decode()
