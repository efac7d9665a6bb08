"""Inputs: what the task of a node is handed beside its arguments, put together in the process that runs it.

A node stores references. When its task is claimed, the results that they name come along, as text, and are put into the arguments as text:
whoever only passes a value on never decodes it, and a large one is stored once, however many nodes take it.
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
from horsies.model.result import TaskError, TaskResult
from horsies.model.signature import InjectedParameter
from horsies.tasks.nodes import AnyNode, NodeKey
from horsies.tasks.task import BaseTask

# --------
# What a task learns of the workflow that it is a node of, and how the results of nodes are read.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkflowMeta:
    """Which run of which workflow a task belongs to, and as which node. `root_id` is the outermost run, if this one is a part of others."""

    workflow_id: str
    workflow_name: str
    node_id: str
    root_id: str


@dataclass(frozen=True, slots=True)
class KnownResults:
    """A node that has ended: the JSON of its value, or of why it has none."""

    made: BuiltTask
    result: str | None
    failure: str | None


class WorkflowContext:
    """The results of other nodes of the workflow, for a task that takes `workflow_ctx`."""

    def __init__(
        self, meta: WorkflowMeta, known: Mapping[str, KnownResults], tasks: Mapping[str, BaseTask[..., Any]]
    ) -> None:
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


def inject_context(wants: frozenset[InjectedParameter], context: WorkflowContext) -> dict[str, Any]:
    """The arguments that nobody passes."""
    everything = {InjectedParameter.CONTEXT: context, InjectedParameter.META: context.meta}
    return {wanted.value: everything[wanted] for wanted in wants}


def result_of(known: KnownResults, tasks: Mapping[str, BaseTask[..., Any]]) -> TaskResult[Any, TaskError]:
    if known.failure is not None:
        return TaskResult(err=decode_error(known.failure))
    return TaskResult(ok=codec_of(known.made, tasks).decode(known.result or "null"))


def codec_of(made: BuiltTask, tasks: Mapping[str, BaseTask[..., Any]]) -> ResultCodec[Any]:
    """How the value of a node is read: by its task's annotation, or as plain JSON if this process does not know the task."""
    if made.task_name is None:
        return ResultCodec.for_type(None)
    task = tasks.get(made.task_name)
    if task is None:
        return ResultCodec.for_type(Any)
    return ResultCodec.for_type(list[task.value_type]) if made.is_list else task.result


def node_id_of(node: AnyNode[Any] | str) -> str:
    return node if isinstance(node, str) else node.node_id if isinstance(node, NodeKey) else node.key().node_id


# --------
# Results put into the arguments that refer to them, as text: what is in a result is never decoded on the way.

Holes: TypeAlias = "dict[Step, str | Holes]"


def splice_results(args: str | bytes, pieces: Iterable[tuple[tuple[Step, ...], str]]) -> str:
    """The JSON text `args` with each piece of JSON text at its path, where a null was held for it."""
    holes: Holes = {}
    for path, piece in pieces:
        _dig(holes, path, piece)
    return _written(from_json(args), holes) if holes else args if isinstance(args, str) else args.decode()


def result_text(ok: str | None, err: str | None) -> str:
    """A TaskResult as JSON, from the texts of its value or its error: a value that is null is the text `null`."""
    return f'{{"err":{err}}}' if err is not None else f'{{"ok":{"null" if ok is None else ok}}}'


def _dig(holes: Holes, path: tuple[Step, ...], piece: str) -> None:
    for step in path[:-1]:
        holes = cast("Holes", holes.setdefault(step, {}))
    holes[path[-1]] = piece


def _written(value: object, holes: "str | Holes | None") -> str:
    match value, holes:
        case _, str():
            return holes
        case dict(), dict():
            members = cast("Mapping[str, object]", value).items()
            return f"{{{','.join(f'{_text(key)}:{_written(item, holes.get(key))}' for key, item in members)}}}"
        case list(), dict():
            items = enumerate(cast("list[object]", value))
            return f"[{','.join(_written(item, holes.get(position)) for position, item in items)}]"
        case _:
            return _text(value)


def _text(value: object) -> str:
    return to_json(value).decode()


@dataclass(frozen=True, slots=True)
class Input:
    """Another node, as it was when the task was claimed. `result` and `error` are JSON."""

    node_id: str
    status: NodeStatus
    made: BuiltTask
    result: str | None
    error: str | None

    @property
    def as_known(self) -> KnownResults:
        return KnownResults(self.made, self.result, failure_of(self.node_id, self.status, self.error))

    @property
    def as_result(self) -> str:
        """A TaskResult as JSON, whatever became of the node."""
        return result_text(self.result, self.as_known.failure)


@dataclass(frozen=True, slots=True)
class Inputs:
    """`refs` are a path in the arguments, a place in `inputs`, and what of it stands there; `context` are places, too."""

    inputs: Sequence[Input]
    refs: Sequence[tuple[tuple[Step, ...], int | None, RefMode]]
    context: Sequence[int]
    item: str | None
    meta: WorkflowMeta | None
    """Only for a task that asks for its workflow."""

    def filled_in(self, wants: frozenset[InjectedParameter], tasks: Mapping[str, BaseTask[..., Any]]) -> dict[str, Any]:
        """What the task learns of its workflow, if it asks."""
        if self.meta is None:
            return {}
        known = {found.node_id: found.as_known for found in (self.inputs[place] for place in self.context)}
        return inject_context(wants, WorkflowContext(self.meta, known, tasks))

    def put_into(self, args: str) -> str | TaskError:
        """The arguments with what they refer to, or why it is not there."""
        pieces: list[tuple[tuple[Step, ...], str]] = []
        for path, place, mode in self.refs:
            if place is None:
                pieces.append((path, self.item or "null"))
                continue
            found = self.inputs[place]
            if mode is RefMode.RESULT:
                pieces.append((path, found.as_result))
            elif found.status is NodeStatus.COMPLETED:
                pieces.append((path, found.result or "null"))
            else:
                return _without_value(found)
        return splice_results(args, pieces)


def read(text: str) -> Inputs:
    found: dict[str, Any] = json.loads(text)
    refs, inputs, meta = found["refs"], found["inputs"] or (), found["meta"]
    return Inputs(
        item=found["item"],
        meta=WorkflowMeta(**meta) if meta else None,
        inputs=[_input(**other) for other in inputs],
        refs=[(tuple(path), place, RefMode(mode)) for path, place, mode in refs["refs"]],
        context=refs["context"],
    )


def _input(status: str, made_by: str | None, *, makes_list: bool, **known: Any) -> Input:
    return Input(status=NodeStatus(status), made=BuiltTask(made_by, is_list=makes_list), **known)


def failure_of(node_id: str, status: NodeStatus, error: str | None) -> str | None:
    """Why a node has no value, as JSON; None if it has one."""
    match status:
        case NodeStatus.COMPLETED:
            return None
        case NodeStatus.FAILED if error is not None:
            return error
        case NodeStatus.SKIPPED:
            words = f"node {node_id!r} was skipped: what it waits for did not succeed, or its workflow was stopped"
            return encode_error(TaskError(error_code=OutcomeCode.UPSTREAM_SKIPPED, message=words))
        case _:
            words = f"node {node_id!r} is {status}: it has no result yet"
            return encode_error(TaskError(error_code=RetrievalCode.RESULT_NOT_READY, message=words))


def _without_value(found: Input) -> TaskError:
    return TaskError(
        error_code=OutcomeCode.UPSTREAM_SKIPPED,
        message=f"node {found.node_id!r} has no value, because it is {found.status}; "
        "take result_from(...) where a node may run without it",
    )
