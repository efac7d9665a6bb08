"""`WorkflowDefinition`: a workflow written as a class."""

import builtins
import inspect
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, ClassVar, Final, Generic, TypeVar, cast, get_args, get_origin

from horsies.model.errors import TaskDefinitionError, WorkflowDefinitionError
from horsies.model.signature import signature_of
from horsies.tasks.nodes import Reference, WorkflowNode
from horsies.workflows.bind_arguments import flow_from, flows_in
from horsies.workflows.nodes import NodeName, SubgraphNode, SuccessCase, SuccessPolicy, TaskRegistry, WorkflowDraft
from horsies.workflows.spec import WorkflowSpec, specify
from horsies.workflows.validate import MAX_DEPTH, TOO_DEEP

# --------
# The body of a class whose inner `Meta` can name the nodes of its own class.
#
# In `class Meta: output = report` Python looks for `report` in the body of Meta, then in the functions around it, then in the module, then
# among the builtins; never in the class around it. So while the body of the class runs, its nodes are lent to the module, under the names
# that are free there, and taken back when the class is made. Where a name is not free (the task is often called what its node is called)
# Meta finds the other object; what that is, is written down, so that it can be known afterwards which node was meant.
#
# A body that raises leaves what it has lent behind, in a module that has usually failed to load by that; another class of the same body
# is not misled by it, because what a name stands for outside is written down then, too.


class ClassBody(dict[str, Any]):
    """The namespace of a class body. `frame` is where the class is written."""

    def __init__(self, frame: FrameType, inherited: Mapping[str, WorkflowNode[Any]]) -> None:
        super().__init__()
        around = frame.f_locals if frame.f_code.co_flags & inspect.CO_OPTIMIZED else {}  # a function, not a class
        self._module = frame.f_globals
        self._outside: dict[str, Any] = {**vars(builtins), **self._module, **around}
        self._nodes: dict[str, WorkflowNode[Any]] = {}
        for name, node in inherited.items():
            self._lend(name, node)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if isinstance(value, WorkflowNode):
            self._lend(name, cast("WorkflowNode[Any]", value))

    def _lend(self, name: str, node: WorkflowNode[Any]) -> None:
        self._nodes[name] = node
        if name not in self._outside:
            self._module[name] = node

    def take_back(self) -> dict[str, Any]:
        """What the names of the nodes stand for outside, where they stand for something."""
        for name, node in self._nodes.items():
            if name not in self._outside and self._module.get(name) is node:
                del self._module[name]
        return {name: self._outside[name] for name in self._nodes if name in self._outside}


def nodes_of(definition: type) -> dict[str, WorkflowNode[Any]]:
    """By their names, those of its base classes first."""
    found: dict[str, Any] = {}
    for cls in reversed(definition.__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, WorkflowNode) or name in found:
                found[name] = value
    return {name: node for name, node in found.items() if isinstance(node, WorkflowNode)}


def unique_nodes(nodes: dict[str, WorkflowNode[Any]]) -> dict[str, WorkflowNode[Any]]:
    """Each node by its first name."""
    first = {id(node): name for name, node in reversed(nodes.items())}
    return {name: node for name, node in nodes.items() if first[id(node)] == name}


Out_co = TypeVar("Out_co", covariant=True)

OPTIONS: Final = ("output", "on_error", "success_policy", "time_limit")
_MEANT_OUTSIDE: Final = "_meant_outside"


class DefinitionType(type):
    """Makes the classes of workflows."""

    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **options: Any) -> ClassBody:
        here = cast("FrameType", inspect.currentframe())
        inherited = {name: node for base in reversed(bases) for name, node in nodes_of(base).items()}
        return ClassBody(cast("FrameType", here.f_back), inherited)

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **options: Any
    ) -> "DefinitionType":
        if isinstance(namespace, ClassBody):  # not so when a class is made from another, as dataclasses do
            namespace = {**namespace, _MEANT_OUTSIDE: namespace.take_back()}
        made = super().__new__(cls, name, bases, namespace, **options)
        for attribute, node in unique_nodes(nodes_of(made)).items():
            node.built_as(
                node.node_id or attribute
            )  # also where nobody builds the workflow: a worker that only runs its tasks
        return made


class WorkflowDefinition(Generic[Out_co], metaclass=DefinitionType):
    """A workflow as a class: its nodes are class attributes, which give them their ids, and an inner `Meta` has the options.

    `output` and the nodes of a `success_policy` may be named there as nodes, or by their names as texts.
    """

    name: ClassVar[str]
    definition_key: ClassVar[str | None] = None

    @classmethod
    def build(cls, app: TaskRegistry) -> WorkflowSpec[Out_co]:
        """Check it. Raises with everything that is wrong with it."""
        return specify(app, _draft(cls))

    @classmethod
    def build_with(cls, app: Any, *args: Any, **params: Any) -> WorkflowSpec[Out_co]:
        """For a workflow with parameters: override it, make the nodes there, and return `app.workflow(...)`."""
        if args or params:
            raise WorkflowDefinitionError(
                cls.__name__, [f"it takes no parameters; override build_with() in {cls.__name__} to give it some"]
            )
        return cls.build(app)


def _draft(definition: type[WorkflowDefinition[Any]]) -> WorkflowDraft:
    nodes = unique_nodes(nodes_of(definition))
    meta = getattr(definition, "Meta", None)
    given = {option: getattr(meta, option) for option in OPTIONS if hasattr(meta, option)}
    if "output" in given:
        given["output"] = _meant(definition, nodes, given["output"])
    if isinstance(policy := given.get("success_policy"), SuccessPolicy):
        given["success_policy"] = _policy_meant(definition, nodes, policy)
    return WorkflowDraft(
        name=getattr(definition, "name", definition.__name__),
        nodes=tuple(nodes.values()),
        names=tuple(nodes),
        definition_key=definition.definition_key,
        value_type=_value_type(definition),
        problems=tuple(_problems(definition, meta)),
        **given,
    )


def _problems(definition: type, meta: Any) -> Iterator[str]:
    if not hasattr(definition, "name"):
        yield f'it has no name; write name = "..." in {definition.__name__}'
    for option in vars(meta) if isinstance(meta, type) else ():
        if not option.startswith("_") and option not in OPTIONS:
            yield f"Meta has {option!r}, which is no option; there are {', '.join(OPTIONS)}"


def _meant(definition: type, nodes: dict[str, WorkflowNode[Any]], value: Any) -> NodeName:
    """The node that Meta names, where the same name stands for something else outside of the class."""
    if any(value is node for node in nodes.values()):
        return value
    outside = getattr(definition, _MEANT_OUTSIDE)
    names = [name for name in nodes if name in outside and outside[name] is value]
    return nodes[names[0]] if len(names) == 1 else value


def _policy_meant(definition: type, nodes: dict[str, WorkflowNode[Any]], policy: SuccessPolicy) -> SuccessPolicy:
    def meant(names: object) -> Any:
        return [_meant(definition, nodes, name) for name in cast("Any", names)] if isinstance(names, tuple) else names

    def case_meant(case: object) -> Any:
        return SuccessCase(meant(case.required)) if isinstance(case, SuccessCase) else case

    cases = policy.cases
    return SuccessPolicy(
        cases=[case_meant(case) for case in cases] if isinstance(cases, tuple) else cases,
        optional=meant(policy.optional),
    )


def _value_type(definition: type) -> Any:
    """The `Out` of `WorkflowDefinition[Out]`."""
    for cls in definition.__mro__:
        for base in vars(cls).get("__orig_bases__", ()):
            if get_origin(base) is WorkflowDefinition:
                return get_args(base)[0]
    return Any


# --------
# `SubWorkflowNode`: a workflow as a node of another.

_depth: ContextVar[int] = ContextVar("depth", default=0)


@dataclass(frozen=True, eq=False)
class SubWorkflowNode(SubgraphNode[Out_co]):
    """Runs a workflow inside another: a `WorkflowDefinition`, or what `app.workflow(...)` has made. Its value is that workflow's.

    `kwargs` are for the definition's `build_with`; other nodes' values may be among them, by `from_node` or in `args_from`.
    """

    workflow_def: type[WorkflowDefinition[Out_co]] | WorkflowSpec[Out_co]

    @property
    def title(self) -> str:
        """What pictures and messages call it."""
        return str(getattr(self.workflow_def, "name", "workflow"))

    def flows(self) -> dict[str, Reference]:
        """From which nodes its arguments come, and whether as values or as whole results."""
        return {name: flow_from(node, node, self.parameter_type(name)) for name, node in self.args_from.items()}

    def draft(self, registry: TaskRegistry) -> WorkflowDraft:
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

    def _drafted(self, registry: TaskRegistry) -> WorkflowDraft:
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
        case Reference():
            return replace(value, from_outside=True)
        case Mapping():
            return {key: _outside(item) for key, item in cast("Mapping[object, object]", value).items()}
        case _:
            return [_outside(item) for item in cast("list[object]", value)]
