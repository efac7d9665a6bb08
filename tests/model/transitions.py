"""The transitions between statuses that are allowed, as an oracle for tests: of tasks, of workflows, and of nodes."""

from collections.abc import Mapping
from types import MappingProxyType

from horsies.model.graph import NodeStatus, WorkflowStatus
from horsies.model.status import TaskStatus

TASK_TRANSITIONS: Mapping[TaskStatus, frozenset[TaskStatus]] = MappingProxyType(
    {
        TaskStatus.PENDING: frozenset(
            {
                TaskStatus.CLAIMED,
                TaskStatus.RUNNING,  # claimed while a slot is free: it starts immediately
                TaskStatus.FAILED,  # no worker was able to run it within the time that it may wait
                TaskStatus.CANCELLED,
                TaskStatus.EXPIRED,
            }
        ),
        TaskStatus.CLAIMED: frozenset(
            {
                TaskStatus.RUNNING,
                TaskStatus.PENDING,  # released: it has not started, so nothing is lost
                TaskStatus.CANCELLED,
                TaskStatus.EXPIRED,
            }
        ),
        TaskStatus.RUNNING: frozenset(
            {
                TaskStatus.COMPLETED,
                TaskStatus.FAILED,
                TaskStatus.PENDING,  # a retry, or a release before it started
                TaskStatus.CANCELLED,
            }
        ),
        TaskStatus.COMPLETED: frozenset(),
        TaskStatus.FAILED: frozenset(),
        TaskStatus.CANCELLED: frozenset(),
        TaskStatus.EXPIRED: frozenset(),
    }
)


WORKFLOW_TRANSITIONS: Mapping[WorkflowStatus, frozenset[WorkflowStatus]] = MappingProxyType(
    {
        WorkflowStatus.PENDING: frozenset({WorkflowStatus.RUNNING, WorkflowStatus.CANCELLED}),  # a sub-workflow
        WorkflowStatus.RUNNING: frozenset(
            {WorkflowStatus.PAUSED, WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}
        ),
        WorkflowStatus.PAUSED: frozenset(
            {
                WorkflowStatus.RUNNING,
                WorkflowStatus.COMPLETED,  # the running nodes succeeded, and none was left
                WorkflowStatus.FAILED,  # its time limit has passed
                WorkflowStatus.CANCELLED,
            }
        ),
        WorkflowStatus.COMPLETED: frozenset(),
        # By retry(): a sub-workflow returns to PENDING until its node starts it.
        WorkflowStatus.FAILED: frozenset({WorkflowStatus.RUNNING, WorkflowStatus.PENDING}),
        WorkflowStatus.CANCELLED: frozenset({WorkflowStatus.RUNNING, WorkflowStatus.PENDING}),
    }
)

# As stored. Whether the task of an ENQUEUED node is running is read from the task.
NODE_TRANSITIONS: Mapping[NodeStatus, frozenset[NodeStatus]] = MappingProxyType(
    {
        NodeStatus.PENDING: frozenset({NodeStatus.READY, NodeStatus.SKIPPED}),
        NodeStatus.READY: frozenset(
            {
                NodeStatus.ENQUEUED,
                NodeStatus.RUNNING,  # a sub-workflow, or a map
                NodeStatus.FAILED,  # a map over a value that is not a list
                NodeStatus.SKIPPED,  # stopped
            }
        ),
        NodeStatus.ENQUEUED: frozenset(
            {
                NodeStatus.READY,  # returned by a pause: its task had not started
                NodeStatus.COMPLETED,
                NodeStatus.FAILED,
            }
        ),
        NodeStatus.RUNNING: frozenset({NodeStatus.COMPLETED, NodeStatus.FAILED}),
        NodeStatus.COMPLETED: frozenset(),
        NodeStatus.FAILED: frozenset({NodeStatus.PENDING}),  # retry()
        NodeStatus.SKIPPED: frozenset({NodeStatus.PENDING}),  # retry()
    }
)
