"""horsies: a PostgreSQL-backed distributed task queue and workflow engine."""

import typing as _typing

from horsies.app import Horsies
from horsies.db.broker import PostgresBroker
from horsies.model.app_check import AppCheck, CheckFinding
from horsies.model.config import (
    AppConfig,
    CustomQueueConfig,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    RetentionConfig,
    WorkerResilienceConfig,
)
from horsies.model.error_codes import ContractCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.errors import (
    BlockingCallError,
    BrokerError,
    ConfigError,
    HorsiesError,
    KeyConflictError,
    LocateError,
    NodeNotFoundError,
    NotPermittedError,
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
from horsies.model.other_queues import explain_import as _explain_import
from horsies.model.result import Err, Ok, Result, TaskError, TaskFailure, TaskResult, UnwrapError, is_err, is_ok
from horsies.model.retry_policy import RetryPolicy
from horsies.model.schedule import (
    CronSchedule,
    DailySchedule,
    HourlySchedule,
    IntervalSchedule,
    MonthlySchedule,
    Overlap,
    ScheduleConfig,
    TaskSchedule,
    Weekday,
    WeeklySchedule,
)
from horsies.model.status import TaskStatus
from horsies.model.worker_config import WorkerConfig
from horsies.tasks.control import CancelOutcome, RetryOutcome
from horsies.tasks.current_task import CurrentTask, current_task
from horsies.tasks.handle import TaskHandle
from horsies.tasks.inspect import FailedAttempt, TaskInfo, WorkerState
from horsies.tasks.nodes import (
    NodeKey,
    SuccessCase,
    SuccessPolicy,
    TaskNode,
    WorkflowNode,
    each,
    from_node,
    result_from,
    results_from,
)
from horsies.tasks.sender import Call, Sender
from horsies.tasks.task import AsyncTask, Task
from horsies.worker_thread import Worker
from horsies.workflows.definition import SubWorkflowNode, WorkflowDefinition, WorkflowSpec
from horsies.workflows.handle import WorkflowHandle
from horsies.workflows.inputs import WorkflowContext, WorkflowMeta
from horsies.workflows.inspect import NodeInfo

__all__ = [
    "AppCheck",
    "AppConfig",
    "AsyncTask",
    "BlockingCallError",
    "BrokerError",
    "Call",
    "CancelOutcome",
    "CheckFinding",
    "ConfigError",
    "ContractCode",
    "CronSchedule",
    "CurrentTask",
    "CustomQueueConfig",
    "DailySchedule",
    "Err",
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
    "NotPermittedError",
    "Ok",
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
    "Result",
    "RetentionConfig",
    "RetrievalCode",
    "RetryOutcome",
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
    "TaskFailure",
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
    "Worker",
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
    "is_err",
    "is_ok",
    "result_from",
    "results_from",
]

if not _typing.TYPE_CHECKING:  # or every name would exist for type checkers
    __getattr__ = _explain_import
