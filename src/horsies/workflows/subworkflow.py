"""`SubWorkflowNode`: a workflow as a node of another."""

import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from horsies.model.errors import TaskDefinitionError, WorkflowDefinitionError
from horsies.model.signatures import signature_of
from horsies.tasks.node import Flow
from horsies.workflows.arguments import flow_from, flows_in
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
        return {name: flow_from(node, node, self.parameter_type(name)) for name, node in self.args_from.items()}

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

    def parameter_type(self, name: str) -> Any:
        """What `build_with` has annotated for it."""
        if not _is_definition(self.workflow_def):
            return Any
        try:
            parameters = signature_of(cast("type[WorkflowDefinition[Any]]", self.workflow_def).build_with).parameters
        except TaskDefinitionError:  # the annotations are for the user's type checker, and may not even be imported
            return Any
        others = [parameter for parameter in parameters.values() if parameter.kind is parameter.VAR_KEYWORD]
        found = parameters[name] if name in parameters else next(iter(others), None)
        return Any if found is None or found.annotation is found.empty else found.annotation

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
