"""What is inside sub-workflows, and which types the values of nodes have."""

from typing import Any, cast

from horsies.model.errors import WorkflowDefinitionError
from horsies.model.graph import NodeKind
from horsies.tasks.node import NodeKey, TaskNode, WorkflowNode
from horsies.tasks.task import Sendable
from horsies.workflows.draft import Draft, NodeName, PartNode, Registry


class Drafts:
    """Looks into sub-workflows."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def of(self, node: PartNode[Any]) -> Draft | WorkflowDefinitionError:
        try:
            return node.draft(self.registry)
        except WorkflowDefinitionError as error:
            return error

    def type_of(self, node: object) -> Any:
        """The type of a node's value; Any if it cannot be told."""
        match node:
            case TaskNode(fn=Sendable(value_type=tp), kind=kind):
                return list[tp] if kind is NodeKind.MAP else tp
            case PartNode():
                draft = self.of(cast("PartNode[Any]", node))
                return self._output_type(draft) if isinstance(draft, Draft) else Any
            case _:
                return Any

    def _output_type(self, draft: Draft) -> Any:
        return None if draft.output is None else self.type_of(_node_of(draft, draft.output))


def _node_of(draft: Draft, name: NodeName) -> object:
    if isinstance(name, WorkflowNode):
        return cast("object", name)
    wanted = name.node_id if isinstance(name, NodeKey) else name
    named = zip(draft.nodes, draft.names or [None] * len(draft.nodes), strict=False)
    return next((node for node, own in named if wanted in (getattr(node, "node_id", None), own)), None)
