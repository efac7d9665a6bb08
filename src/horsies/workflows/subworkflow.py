"""`SubWorkflowNode`: a workflow as a node of another."""

import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from horsies.model.errors import TaskDefinitionError, WorkflowDefinitionError
from horsies.model.fits import takes_result
from horsies.model.graph import RefMode
from horsies.model.signatures import signature_of
from horsies.tasks.node import Flow
from horsies.workflows.arguments import flows_in
from horsies.workflows.define import WorkflowDefinition
from horsies.workflows.draft import Draft, PartNode, Registry
from horsies.workflows.limits import MAX_DEPTH, TOO_DEEP
from horsies.workflows.spec import WorkflowSpec

Out_co = TypeVar("Out_co", covariant=True)

_depth: ContextVar[int] = ContextVar("depth", default=0)


@dataclass(frozen=True, eq=False)
class SubWorkflowNode(PartNode[Out_co]):
    """Runs a workflow inside another: a `WorkflowDefinition`, or what `app.workflow(...)` has made. Its value is that workflow's.

    `kwargs` are for the definition's `build_with`; other nodes' values may be among them, by `from_node` or in `args_from`.
    """

    workflow_def: type[WorkflowDefinition[Out_co]] | WorkflowSpec[Out_co]

    @property
    def title(self) -> str:
        """What pictures and messages call it."""
        return str(getattr(self.workflow_def, "name", "workflow"))

    def flows(self) -> dict[str, Flow]:
        """From which nodes its arguments come, and whether as values or as whole results."""
        whole = {name for name in self.args_from if takes_result(self._annotation(name))}
        return {
            name: Flow(source, RefMode.RESULT if name in whole else RefMode.VALUE)
            for name, source in self.args_from.items()
        }

    def draft(self, registry: Registry) -> Draft:
        """Made once: the workflow inside is looked at by itself and as a part of every one around it, and the user's code makes it."""
        made = self.__dict__.setdefault("_drafts", {})
        if id(registry) not in made:
            if (depth := _depth.get()) >= MAX_DEPTH:
                self._refuse(TOO_DEEP)
            token = _depth.set(depth + 1)
            try:
                made[id(registry)] = self._drafted(registry)
            finally:
                _depth.reset(token)
        return made[id(registry)]

    def _drafted(self, registry: Registry) -> Draft:
        params = {name: _outside(value) for name, value in {**self.kwargs, **self.flows()}.items()}
        if isinstance(self.workflow_def, WorkflowSpec):
            if params:
                self._refuse(
                    "kwargs and args_from are for a WorkflowDefinition with a build_with(), not for a finished one"
                )
            return self.workflow_def.draft
        if not _is_definition(self.workflow_def):
            self._refuse(
                f"it runs {self.workflow_def!r:.80}; give a WorkflowDefinition, or what app.workflow(...) returns"
            )
        try:
            inspect.signature(self.workflow_def.build_with).bind(registry, **params)
        except TypeError as error:
            self._refuse(f"{self.workflow_def.__name__}.build_with(): {error}")
        return self.workflow_def.build_with(registry, **params).draft

    def _annotation(self, name: str) -> Any:
        if not _is_definition(self.workflow_def):
            return Any
        try:
            parameters = signature_of(cast("type[WorkflowDefinition[Any]]", self.workflow_def).build_with).parameters
        except TaskDefinitionError:  # the annotations are for the user's type checker, and may not even be imported
            return Any
        return parameters[name].annotation if name in parameters else Any

    def _refuse(self, problem: str) -> None:
        raise WorkflowDefinitionError(self.title, [problem])

    def __repr__(self) -> str:
        return f"<node {self.node_id or 'of workflow'} {self.title!r}>"


def _is_definition(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, WorkflowDefinition)


def _outside(value: object) -> Any:
    """The same for the workflow inside, where every node of this one is outside."""
    if not any(flows_in(value)):
        return value
    match value:
        case Flow():
            return replace(value, from_outside=True)
        case Mapping():
            return {key: _outside(item) for key, item in cast("Mapping[object, object]", value).items()}
        case _:
            return [_outside(item) for item in cast("list[object]", value)]
