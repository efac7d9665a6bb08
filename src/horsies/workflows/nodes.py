"""A workflow as it was written, before anybody has looked whether it can work."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, TypeVar

from horsies.model.graph import Join, OnError
from horsies.tasks.nodes import AnyNode, JoinWord, Reference, WorkflowNode, by_name, listed_nodes
from horsies.tasks.sender import AppContext
from horsies.tasks.task import BaseTask

T_co = TypeVar("T_co", covariant=True)

NodeName: TypeAlias = AnyNode[Any] | str


class TaskRegistry(AppContext, Protocol):
    """Whose tasks a workflow is made of: the app."""

    @property
    def tasks(self) -> Mapping[str, BaseTask[..., Any]]: ...


@dataclass(frozen=True, slots=True)
class SuccessCase:
    """One way to succeed: all of these nodes do."""

    required: Sequence[NodeName]

    def __post_init__(self) -> None:
        object.__setattr__(self, "required", listed_nodes(self.required))


@dataclass(frozen=True, slots=True)
class SuccessPolicy:
    """A workflow is COMPLETED if any of the cases is satisfied, whatever else fails; without cases, if nothing fails but `optional` nodes."""

    cases: Sequence[SuccessCase] = ()
    optional: Sequence[NodeName] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cases", listed_nodes(self.cases))
        object.__setattr__(self, "optional", listed_nodes(self.optional))


@dataclass(frozen=True, slots=True)
class WorkflowDraft:
    """`names` has an id for each node that brings none of its own; `value_type` is what the output is annotated as."""

    name: str
    nodes: Sequence[WorkflowNode[Any]]
    output: NodeName | None = None
    on_error: OnError | str = OnError.FAIL
    success_policy: SuccessPolicy | None = None
    time_limit: float | timedelta | None = None
    definition_key: str | None = None
    names: Sequence[str | None] = ()
    value_type: Any = Any
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class SubgraphNode(WorkflowNode[T_co]):
    """A node that runs a workflow of its own."""

    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True)
    args_from: Mapping[str, AnyNode[Any]] = field(default_factory=dict[str, AnyNode[Any]], kw_only=True)
    waits_for: Sequence[NodeName] = field(default=(), kw_only=True)
    join: Join | JoinWord = field(default=Join.ALL, kw_only=True)
    min_success: int | None = field(default=None, kw_only=True)
    allow_failed_deps: bool = field(default=False, kw_only=True)
    node_id: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("kwargs", "args_from"):
            object.__setattr__(self, name, by_name(name, getattr(self, name)))
        object.__setattr__(self, "waits_for", listed_nodes(self.waits_for))

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is called if nobody gives it an id."""

    @abstractmethod
    def flows(self) -> dict[str, Reference]:
        """What `args_from` says, as if it had been written into `kwargs`."""

    @abstractmethod
    def parameter_type(self, name: str) -> Any:
        """What a parameter of the workflow inside is annotated as; Any if that is not known."""

    @abstractmethod
    def draft(self, registry: TaskRegistry) -> WorkflowDraft:
        """The workflow inside, as it was written."""
