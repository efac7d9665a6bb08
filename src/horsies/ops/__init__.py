"""`app.ops`: everything that an operator can see and do, for programs, the command line and the dashboard."""

from horsies.ops.api import Ops, TaskView
from horsies.ops.audit import AuditEntry
from horsies.ops.bulk import BulkAction, BulkProgress
from horsies.ops.statistics import ErrorGroup, MinutePoint
from horsies.tasks.inspect import TaskFilter, TaskPage, TaskSummary
from horsies.tasks.queues import QueueSummary
from horsies.tasks.workers import ChildState, ChildStatus, ChildTask, DeadWorker

__all__ = [
    "AuditEntry",
    "BulkAction",
    "BulkProgress",
    "ChildState",
    "ChildStatus",
    "ChildTask",
    "DeadWorker",
    "ErrorGroup",
    "MinutePoint",
    "Ops",
    "QueueSummary",
    "TaskFilter",
    "TaskPage",
    "TaskSummary",
    "TaskView",
]
