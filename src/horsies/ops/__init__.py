"""`app.ops`: everything that an operator can see and do, for programs, the command line and the dashboard."""

from horsies.model.attempt_log import LogLine
from horsies.ops.api import Ops, TaskView
from horsies.ops.audit import AuditEntry
from horsies.ops.bulk import BulkAction, BulkProgress
from horsies.ops.events import Event
from horsies.ops.statistics import EndedTotals, ErrorGroup, MinutePoint, TotalsOrder
from horsies.tasks.attempts import Attempt, AttemptLog, AttemptOutcome
from horsies.tasks.inspect import TaskCount, TaskFilter, TaskPage, TaskSummary
from horsies.tasks.queues import QueueSummary
from horsies.tasks.workers import ChildState, ChildStatus, ChildTask, DeadWorker

__all__ = [
    "Attempt",
    "AttemptLog",
    "AttemptOutcome",
    "AuditEntry",
    "BulkAction",
    "BulkProgress",
    "ChildState",
    "ChildStatus",
    "ChildTask",
    "DeadWorker",
    "EndedTotals",
    "ErrorGroup",
    "Event",
    "LogLine",
    "MinutePoint",
    "Ops",
    "QueueSummary",
    "TaskCount",
    "TaskFilter",
    "TaskPage",
    "TaskSummary",
    "TaskView",
    "TotalsOrder",
]
