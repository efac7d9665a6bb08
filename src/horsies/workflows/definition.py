"""Workflows as classes (`WorkflowDefinition`), and workflows as nodes of other workflows (`SubWorkflowNode`).

**How `Meta` names nodes.** In `class Meta: output = report` Python looks up `report` in the body of Meta, in enclosing functions, in the
module and among the builtins, but never in the enclosing class. Therefore, while the body of a definition runs, its nodes are added to
the module under names that are free there, and removed when the class is created. If a name is not free (a task often has the same
name as its node), Meta gets the other object. The objects that such names refer to outside the class are stored, so that the
intended node can be found afterwards.

If a class body raises, its names stay in the module, whose import has usually failed then. They do not affect another class with the
same body: what its names refer to outside is stored as well.
"""

import builtins
import inspect
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, ClassVar, Final, Generic, NoReturn, TypeVar, cast, get_args, get_origin

from horsies.model.errors import TaskDefinitionError, WorkflowDefinitionError
from horsies.model.signature import signature_of
from horsies.tasks.nodes import (
    NodeName,
    Reference,
    SuccessCase,
    SuccessPolicy,
    WorkflowDraft,
    WorkflowNode,
)
from horsies.workflows.bind_arguments import find_references, reference_by_annotation
from horsies.workflows.spec import WorkflowSpec, build_spec
from horsies.workflows.validate import MAX_DEPTH, TOO_DEEP, SubgraphNode, TaskRegistry

META_OPTIONS: Final = ("output", "on_error", "success_policy", "time_limit")
_OUTER_OBJECTS: Final = "_outer_objects"

Out_co = TypeVar("Out_co", covariant=True)


class ClassBody(dict[str, Any]):
    """The namespace of a class body. `frame` is the frame that contains the class statement."""

    def __init__(self, frame: FrameType, inherited: Mapping[str, WorkflowNode[Any]]) -> None:
        super().__init__()
        # The locals of a function are visible in Meta, those of an enclosing class are not.
        enclosing = frame.f_locals if frame.f_code.co_flags & inspect.CO_OPTIMIZED else {}
        self._module = frame.f_globals
        self._outer: dict[str, Any] = {**vars(builtins), **self._module, **enclosing}
        self._nodes: dict[str, WorkflowNode[Any]] = {}
        for name, node in inherited.items():
            self._add_to_module(name, node)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if isinstance(value, WorkflowNode):
            self._add_to_module(name, cast("WorkflowNode[Any]", value))

    def _add_to_module(self, name: str, node: WorkflowNode[Any]) -> None:
        self._nodes[name] = node
        if name not in self._outer:
            self._module[name] = node

    def remove_from_module(self) -> dict[str, Any]:
        """Return the objects that names of nodes refer to outside the class."""
        for name, node in self._nodes.items():
            if name not in self._outer and self._module.get(name) is node:
                del self._module[name]
        return {name: self._outer[name] for name in self._nodes if name in self._outer}


def nodes_of(definition: type) -> dict[str, WorkflowNode[Any]]:
    """Return the nodes of a class by name, those of its base classes first."""
    found: dict[str, Any] = {}
    for cls in reversed(definition.__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, WorkflowNode) or name in found:
                found[name] = value
    return {name: node for name, node in found.items() if isinstance(node, WorkflowNode)}


def _unique_nodes_of(definition: type) -> dict[str, WorkflowNode[Any]]:
    """Return each node once, by its first name."""
    nodes = nodes_of(definition)
    first = {id(node): name for name, node in reversed(nodes.items())}
    return {name: node for name, node in nodes.items() if first[id(node)] == name}


class DefinitionType(type):
    """The metaclass of workflow definitions."""

    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **options: Any) -> ClassBody:
        here = cast("FrameType", inspect.currentframe())
        inherited = {name: node for base in reversed(bases) for name, node in nodes_of(base).items()}
        return ClassBody(cast("FrameType", here.f_back), inherited)

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **options: Any
    ) -> "DefinitionType":
        if isinstance(namespace, ClassBody):  # false if a class is created from another, as dataclasses do
            namespace = {**namespace, _OUTER_OBJECTS: namespace.remove_from_module()}
        definition = super().__new__(cls, name, bases, namespace, **options)
        # A worker may run the tasks of a workflow without building it, and they may ask for a result by node.
        for attribute, node in _unique_nodes_of(definition).items():
            node.add_assigned_id(node.node_id or attribute)
        return definition


class WorkflowDefinition(Generic[Out_co], metaclass=DefinitionType):
    """A workflow as a class: nodes are class attributes, whose names are their ids, and an inner class `Meta` has the options.

    In `Meta`, write `output` and the nodes of a `success_policy` as nodes, or as strings with their names.
    """

    name: ClassVar[str]
    definition_key: ClassVar[str | None] = None

    @classmethod
    def build(cls, app: TaskRegistry) -> WorkflowSpec[Out_co]:
        """Check the workflow. Raise WorkflowDefinitionError with all problems."""
        return build_spec(app, _to_draft(cls))

    @classmethod
    def build_with(cls, app: Any, *args: Any, **params: Any) -> WorkflowSpec[Out_co]:
        """Override this for a workflow with parameters: create the nodes, and return `app.workflow(...)`."""
        if args or params:
            raise WorkflowDefinitionError(
                cls.__name__, [f"it takes no parameters; override build_with() in {cls.__name__} to add some"]
            )
        return cls.build(app)


def _to_draft(definition: type[WorkflowDefinition[Any]]) -> WorkflowDraft:
    nodes = _unique_nodes_of(definition)
    meta = getattr(definition, "Meta", None)
    options = {option: getattr(meta, option) for option in META_OPTIONS if hasattr(meta, option)}
    outer = getattr(definition, _OUTER_OBJECTS)
    if "output" in options:
        options["output"] = _intended_node(options["output"], nodes, outer)
    if isinstance(policy := options.get("success_policy"), SuccessPolicy):
        options["success_policy"] = _intended_policy(policy, nodes, outer)
    problems: list[str] = []
    if not hasattr(definition, "name"):
        problems.append(f'it has no name; write name = "..." in {definition.__name__}')
    problems.extend(
        f"Meta has the unknown option {option!r}; use {', '.join(META_OPTIONS)}"
        for option in (vars(meta) if isinstance(meta, type) else ())
        if not option.startswith("_") and option not in META_OPTIONS
    )
    return WorkflowDraft(
        name=getattr(definition, "name", definition.__name__),
        nodes=tuple(nodes.values()),
        names=tuple(nodes),
        definition_key=definition.definition_key,
        value_type=_value_type(definition),
        problems=tuple(problems),
        **options,
    )


def _intended_node(value: Any, nodes: Mapping[str, WorkflowNode[Any]], outer: Mapping[str, Any]) -> NodeName:
    """Return the node that Meta names if it got another object of the same name from outside the class."""
    if any(value is node for node in nodes.values()):
        return value
    names = [name for name in nodes if name in outer and outer[name] is value]
    return nodes[names[0]] if len(names) == 1 else value


def _intended_policy(
    policy: SuccessPolicy, nodes: Mapping[str, WorkflowNode[Any]], outer: Mapping[str, Any]
) -> SuccessPolicy:
    def intended(names: Any) -> Any:
        if not isinstance(names, tuple):
            return names
        return [_intended_node(name, nodes, outer) for name in cast("tuple[Any, ...]", names)]

    cases: Any = policy.cases
    if isinstance(cases, tuple):
        cases = [
            SuccessCase(intended(case.required)) if isinstance(case, SuccessCase) else case
            for case in cast("tuple[Any, ...]", cases)
        ]
    return SuccessPolicy(cases=cases, optional=intended(policy.optional))


def _value_type(definition: type) -> Any:
    """Return the `Out` of `WorkflowDefinition[Out]`."""
    for cls in definition.__mro__:
        for base in vars(cls).get("__orig_bases__", ()):
            if get_origin(base) is WorkflowDefinition:
                return get_args(base)[0]
    return Any


_depth: ContextVar[int] = ContextVar("depth", default=0)  # of the sub-workflow whose build_with() runs now


@dataclass(frozen=True, eq=False)
class SubWorkflowNode(SubgraphNode[Out_co]):
    """Run a workflow as a node of another: a `WorkflowDefinition`, or the return value of `app.workflow(...)`. It has the workflow's value.

    `kwargs` are the arguments of the definition's `build_with`. They may contain values of other nodes, by `from_node` or in `args_from`.
    """

    workflow_def: type[WorkflowDefinition[Out_co]] | WorkflowSpec[Out_co]

    @property
    def default_id(self) -> str:
        """The name of the workflow."""
        return str(getattr(self.workflow_def, "name", "workflow"))

    def references(self) -> dict[str, Reference]:
        """Return the entries of `args_from` as references, by parameter."""
        return {
            name: reference_by_annotation(node, node, self.parameter_type(name))
            for name, node in self.args_from.items()
        }

    def parameter_type(self, name: str) -> Any:
        """Return the annotation of a parameter of `build_with`, or Any if it is not known."""
        if not _is_definition(self.workflow_def):
            return Any
        try:
            parameters = signature_of(cast("type[WorkflowDefinition[Any]]", self.workflow_def).build_with).parameters
        except TaskDefinitionError:  # an annotation may be for type checkers only, and not importable
            return Any
        catch_all = [parameter for parameter in parameters.values() if parameter.kind is parameter.VAR_KEYWORD]
        parameter = parameters[name] if name in parameters else next(iter(catch_all), None)
        return Any if parameter is None or parameter.annotation is parameter.empty else parameter.annotation

    def to_draft(self, registry: TaskRegistry) -> WorkflowDraft:
        """Return the inner workflow. It is built once, by user code, although it is compiled alone and again as a part of each outer workflow."""
        drafts = self.__dict__.setdefault("_drafts", {})
        if id(registry) not in drafts:
            if (depth := _depth.get()) >= MAX_DEPTH:
                self._reject(TOO_DEEP)
            token = _depth.set(depth + 1)
            try:
                drafts[id(registry)] = self._build_draft(registry)
            finally:
                _depth.reset(token)
        return drafts[id(registry)]

    def _build_draft(self, registry: TaskRegistry) -> WorkflowDraft:
        params = {name: _to_outer(value) for name, value in {**self.kwargs, **self.references()}.items()}
        if isinstance(self.workflow_def, WorkflowSpec):
            if params:
                self._reject("kwargs and args_from are for a WorkflowDefinition with build_with(), not for a spec")
            return self.workflow_def.draft
        if not _is_definition(self.workflow_def):
            self._reject(
                f"it runs {self.workflow_def!r:.80}; pass a WorkflowDefinition, or the return value of app.workflow(...)"
            )
        try:
            inspect.signature(self.workflow_def.build_with).bind(registry, **params)
        except TypeError as error:
            self._reject(f"{self.workflow_def.__name__}.build_with(): {error}")
        return self.workflow_def.build_with(registry, **params).draft

    def _reject(self, problem: str) -> NoReturn:
        raise WorkflowDefinitionError(self.default_id, [problem])

    def __repr__(self) -> str:
        return f"<node {self.node_id or 'of workflow'} {self.default_id!r}>"


def _is_definition(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, WorkflowDefinition)


def _to_outer(value: object) -> Any:
    """Mark the references in a parameter: seen from the inner workflow, they refer to nodes of an outer one."""
    if not any(find_references(value)):
        return value
    match value:
        case Reference():
            return replace(value, from_outside=True)
        case Mapping():
            return {key: _to_outer(item) for key, item in cast("Mapping[object, object]", value).items()}
        case _:
            return [_to_outer(item) for item in cast("list[object]", value)]
