"""Where older documents import them from."""

from horsies.model.graph import NodeStatus, OnError, WorkflowStatus
from horsies.tasks.node import NodeKey, TaskNode
from horsies.workflows.context import WorkflowContext, WorkflowMeta
from horsies.workflows.define import WorkflowDefinition
from horsies.workflows.draft import SuccessCase, SuccessPolicy
from horsies.workflows.handle import WorkflowHandle
from horsies.workflows.spec import WorkflowSpec
from horsies.workflows.subworkflow import SubWorkflowNode

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
