"""Where older documents import them from."""

from horsies.model.graph import NodeStatus, OnError, WorkflowStatus
from horsies.tasks.nodes import NodeKey, SuccessCase, SuccessPolicy, TaskNode
from horsies.workflows.definition import SubWorkflowNode, WorkflowDefinition
from horsies.workflows.handle import WorkflowHandle
from horsies.workflows.inputs import WorkflowContext, WorkflowMeta
from horsies.workflows.spec import WorkflowSpec

__all__ = [
    "NodeKey",
    "NodeStatus",
    "OnError",
    "SubWorkflowNode",
    "SuccessCase",
    "SuccessPolicy",
    "TaskNode",
    "WorkflowContext",
    "WorkflowDefinition",
    "WorkflowHandle",
    "WorkflowMeta",
    "WorkflowSpec",
    "WorkflowStatus",
]
