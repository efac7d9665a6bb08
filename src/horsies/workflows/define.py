"""`WorkflowDefinition`: a workflow written as a class."""

import inspect
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar, Final, Generic, TypeVar, cast, get_args, get_origin

from horsies.model.errors import WorkflowDefinitionError
from horsies.tasks.node import WorkflowNode
from horsies.workflows.classbody import ClassBody, nodes_of, once
from horsies.workflows.draft import Draft, NodeName, Registry, SuccessCase, SuccessPolicy
from horsies.workflows.spec import WorkflowSpec, specify

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
        for attribute, node in once(nodes_of(made)).items():
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
    def build(cls, app: Registry) -> WorkflowSpec[Out_co]:
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


def _draft(definition: type[WorkflowDefinition[Any]]) -> Draft:
    nodes = once(nodes_of(definition))
    meta = getattr(definition, "Meta", None)
    given = {option: getattr(meta, option) for option in OPTIONS if hasattr(meta, option)}
    if "output" in given:
        given["output"] = _meant(definition, nodes, given["output"])
    if isinstance(policy := given.get("success_policy"), SuccessPolicy):
        given["success_policy"] = _policy_meant(definition, nodes, policy)
    return Draft(
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
