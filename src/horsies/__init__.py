"""horsies: a PostgreSQL-backed distributed task queue and workflow engine."""

import typing

from horsies.app import Horsies
from horsies.model.codes import ContractCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.config import AppConfig, CustomQueueConfig, PostgresConfig, QueueMode
from horsies.model.errors import (
    BlockingCallError,
    BrokerError,
    ConfigError,
    HorsiesError,
    KeyConflictError,
    LocateError,
    NodeNotFoundError,
    OutsideTaskError,
    PayloadError,
    QueueError,
    SchemaError,
    SendSuppressed,
    TaskCancelledError,
    TaskDefinitionError,
    TaskTimeoutError,
    UnsupportedConnectionError,
    WaitTimeoutError,
    WorkflowConflictError,
    WorkflowDefinitionError,
)
from horsies.model.graph import Join, NodeStatus, OnError, WorkflowStatus
from horsies.model.patterns import (
    CronSchedule,
    DailySchedule,
    HourlySchedule,
    IntervalSchedule,
    MonthlySchedule,
    Weekday,
    WeeklySchedule,
)
from horsies.model.recovery import RecoveryConfig, WorkerResilienceConfig
from horsies.model.result import TaskError, TaskResult, UnwrapError
from horsies.model.retry import RetryPolicy
from horsies.model.schedule import Overlap, ScheduleConfig, TaskSchedule
from horsies.model.status import TaskStatus
from horsies.model.worker import WorkerConfig
from horsies.tasks.cancel import CancelOutcome
from horsies.tasks.current import CurrentTask, current_task
from horsies.tasks.handle import TaskHandle
from horsies.tasks.inspect import FailedAttempt, TaskInfo, WorkerState
from horsies.tasks.node import NodeKey, TaskNode, WorkflowNode, each, from_node, result_from
from horsies.tasks.send import Call, Sender
from horsies.tasks.task import AsyncTask, Task
from horsies.workflows.context import WorkflowContext, WorkflowMeta
from horsies.workflows.define import WorkflowDefinition
from horsies.workflows.draft import SuccessCase, SuccessPolicy
from horsies.workflows.handle import NodeInfo, WorkflowHandle
from horsies.workflows.spec import WorkflowSpec
from horsies.workflows.subworkflow import SubWorkflowNode

if typing.TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

__all__ = [
    "AppConfig",
    "AsyncTask",
    "BlockingCallError",
    "BrokerError",
    "Call",
    "CancelOutcome",
    "ConfigError",
    "ContractCode",
    "CronSchedule",
    "CurrentTask",
    "CustomQueueConfig",
    "DailySchedule",
    "FailedAttempt",
    "Horsies",
    "HorsiesError",
    "HourlySchedule",
    "IntervalSchedule",
    "Join",
    "KeyConflictError",
    "LocateError",
    "MonthlySchedule",
    "NodeInfo",
    "NodeKey",
    "NodeNotFoundError",
    "NodeStatus",
    "OnError",
    "OperationalErrorCode",
    "OutcomeCode",
    "OutsideTaskError",
    "Overlap",
    "PayloadError",
    "PostgresBroker",
    "PostgresConfig",
    "QueueError",
    "QueueMode",
    "RecoveryConfig",
    "RetrievalCode",
    "RetryPolicy",
    "ScheduleConfig",
    "SchemaError",
    "SendSuppressed",
    "Sender",
    "SubWorkflowNode",
    "SuccessCase",
    "SuccessPolicy",
    "Task",
    "TaskCancelledError",
    "TaskDefinitionError",
    "TaskError",
    "TaskHandle",
    "TaskInfo",
    "TaskNode",
    "TaskResult",
    "TaskSchedule",
    "TaskStatus",
    "TaskTimeoutError",
    "UnsupportedConnectionError",
    "UnwrapError",
    "WaitTimeoutError",
    "Weekday",
    "WeeklySchedule",
    "WorkerConfig",
    "WorkerResilienceConfig",
    "WorkerState",
    "WorkflowConflictError",
    "WorkflowContext",
    "WorkflowDefinition",
    "WorkflowDefinitionError",
    "WorkflowHandle",
    "WorkflowMeta",
    "WorkflowNode",
    "WorkflowSpec",
    "WorkflowStatus",
    "current_task",
    "each",
    "from_node",
    "result_from",
]

if not typing.TYPE_CHECKING:  # to a type checker it would stand for any name, misspelt ones included

    def __getattr__(name: str) -> object:
        """The broker brings psycopg, which a process that only defines or runs tasks can do without."""
        if name == "PostgresBroker":
            from horsies.db.broker import PostgresBroker  # noqa: PLC0415 - see above

            return PostgresBroker
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
