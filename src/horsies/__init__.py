"""horsies: a PostgreSQL-backed distributed task queue and workflow engine.

A name is imported at first use: a process that only defines or runs tasks needs few of them, and every child of a worker
spends time on what it imports.
"""

import typing

if typing.TYPE_CHECKING:
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
    from horsies.model.result import TaskError, TaskResult, UnwrapError
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
    from horsies.workflows.definition import SubWorkflowNode, WorkflowDefinition
    from horsies.workflows.handle import WorkflowHandle
    from horsies.workflows.inputs import WorkflowContext, WorkflowMeta
    from horsies.workflows.inspect import NodeInfo
    from horsies.workflows.spec import WorkflowSpec

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
    "result_from",
    "results_from",
]

_MODULES = {
    "app": "Horsies",
    "db.broker": "PostgresBroker",
    "model.app_check": "AppCheck CheckFinding",
    "model.config": "AppConfig CustomQueueConfig PostgresConfig QueueMode RecoveryConfig RetentionConfig WorkerResilienceConfig",
    "model.error_codes": "ContractCode OperationalErrorCode OutcomeCode RetrievalCode",
    "model.errors": "BlockingCallError BrokerError ConfigError HorsiesError KeyConflictError LocateError NodeNotFoundError OutsideTaskError PayloadError QueueError SchemaError SendSuppressed TaskCancelledError TaskDefinitionError TaskTimeoutError UnsupportedConnectionError WaitTimeoutError WorkflowConflictError WorkflowDefinitionError",
    "model.graph": "Join NodeStatus OnError WorkflowStatus",
    "model.result": "TaskError TaskResult UnwrapError",
    "model.retry_policy": "RetryPolicy",
    "model.schedule": "CronSchedule DailySchedule HourlySchedule IntervalSchedule MonthlySchedule Overlap ScheduleConfig TaskSchedule Weekday WeeklySchedule",
    "model.status": "TaskStatus",
    "model.worker_config": "WorkerConfig",
    "tasks.control": "CancelOutcome RetryOutcome",
    "tasks.current_task": "CurrentTask current_task",
    "tasks.handle": "TaskHandle",
    "tasks.inspect": "FailedAttempt TaskInfo WorkerState",
    "tasks.nodes": "NodeKey SuccessCase SuccessPolicy TaskNode WorkflowNode each from_node result_from results_from",
    "tasks.sender": "Call Sender",
    "tasks.task": "AsyncTask Task",
    "worker_thread": "Worker",
    "workflows.definition": "SubWorkflowNode WorkflowDefinition",
    "workflows.handle": "WorkflowHandle",
    "workflows.inputs": "WorkflowContext WorkflowMeta",
    "workflows.inspect": "NodeInfo",
    "workflows.spec": "WorkflowSpec",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

if not typing.TYPE_CHECKING:  # else a type checker would accept any name, even a misspelt one

    def __getattr__(name: str) -> object:
        """Import a public name from its module."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 - it must not become a public name

        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
