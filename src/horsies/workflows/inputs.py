"""Inputs: what the task of a node is handed beside its arguments, put together in the process that runs it.

A node stores references. When its task is claimed, the results that they name come along, as text, and are put into the arguments as text:
whoever only passes a value on never decodes it, and a large one is stored once, however many nodes take it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horsies.model.codec import encode_error
from horsies.model.codes import OutcomeCode, RetrievalCode
from horsies.model.functions import Wanted
from horsies.model.graph import Made, NodeStatus, RefMode, Step
from horsies.model.result import TaskError
from horsies.model.splice import result_text, spliced
from horsies.tasks.task import Sendable
from horsies.workflows.context import Known, WorkflowContext, WorkflowMeta, filled_in


@dataclass(frozen=True, slots=True)
class Input:
    """Another node, as it was when the task was claimed. `result` and `error` are JSON."""

    node_id: str
    status: NodeStatus
    made: Made
    result: str | None
    error: str | None

    @property
    def as_known(self) -> Known:
        return Known(self.made, self.result, failure_of(self.node_id, self.status, self.error))

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

    def filled_in(self, wants: frozenset[Wanted], tasks: Mapping[str, Sendable[..., Any]]) -> dict[str, Any]:
        """What the task learns of its workflow, if it asks."""
        if self.meta is None:
            return {}
        known = {found.node_id: found.as_known for found in (self.inputs[place] for place in self.context)}
        return filled_in(wants, WorkflowContext(self.meta, known, tasks))

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
        return spliced(args, pieces)


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
    return Input(status=NodeStatus(status), made=Made(made_by, is_list=makes_list), **known)


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
