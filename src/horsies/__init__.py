"""horsies: a PostgreSQL-backed distributed task queue and workflow engine.

A name is loaded when it is first asked for: a process that only defines or runs tasks needs few of them, and every child of a worker
pays for what it loads.
"""

import typing

if typing.TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.db.broker import PostgresBroker
    from horsies.model.check import AppCheck, CheckFinding
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
    from horsies.model.retention import RetentionConfig
    from horsies.model.retry import RetryPolicy
    from horsies.model.schedule import Overlap, ScheduleConfig, TaskSchedule
    from horsies.model.status import TaskStatus
    from horsies.model.worker import WorkerConfig
    from horsies.tasks.call import Call
    from horsies.tasks.cancel import CancelOutcome
    from horsies.tasks.current import CurrentTask, current_task
    from horsies.tasks.handle import TaskHandle
    from horsies.tasks.inspect import FailedAttempt, TaskInfo, WorkerState
    from horsies.tasks.node import NodeKey, TaskNode, WorkflowNode, each, from_node, result_from, results_from
    from horsies.tasks.retry import RetryOutcome
    from horsies.tasks.send import Sender
    from horsies.tasks.task import AsyncTask, Task
    from horsies.worker_thread import Worker
    from horsies.workflows.context import WorkflowContext, WorkflowMeta
    from horsies.workflows.define import WorkflowDefinition
    from horsies.workflows.draft import SuccessCase, SuccessPolicy
    from horsies.workflows.handle import NodeInfo, WorkflowHandle
    from horsies.workflows.spec import WorkflowSpec
    from horsies.workflows.subworkflow import SubWorkflowNode

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

_ROOMS = {
    "app": "Horsies",
    "db.broker": "PostgresBroker",
    "model.check": "AppCheck CheckFinding",
    "model.codes": "ContractCode OperationalErrorCode OutcomeCode RetrievalCode",
    "model.config": "AppConfig CustomQueueConfig PostgresConfig QueueMode",
    "model.errors": "BlockingCallError BrokerError ConfigError HorsiesError KeyConflictError LocateError NodeNotFoundError OutsideTaskError PayloadError QueueError SchemaError SendSuppressed TaskCancelledError TaskDefinitionError TaskTimeoutError UnsupportedConnectionError WaitTimeoutError WorkflowConflictError WorkflowDefinitionError",
    "model.graph": "Join NodeStatus OnError WorkflowStatus",
    "model.patterns": "CronSchedule DailySchedule HourlySchedule IntervalSchedule MonthlySchedule Weekday WeeklySchedule",
    "model.recovery": "RecoveryConfig WorkerResilienceConfig",
    "model.retention": "RetentionConfig",
    "model.result": "TaskError TaskResult UnwrapError",
    "model.retry": "RetryPolicy",
    "model.schedule": "Overlap ScheduleConfig TaskSchedule",
    "model.status": "TaskStatus",
    "model.worker": "WorkerConfig",
    "tasks.cancel": "CancelOutcome",
    "tasks.current": "CurrentTask current_task",
    "tasks.handle": "TaskHandle",
    "tasks.inspect": "FailedAttempt TaskInfo WorkerState",
    "tasks.node": "NodeKey TaskNode WorkflowNode each from_node result_from results_from",
    "tasks.call": "Call",
    "tasks.retry": "RetryOutcome",
    "tasks.send": "Sender",
    "tasks.task": "AsyncTask Task",
    "workflows.context": "WorkflowContext WorkflowMeta",
    "workflows.define": "WorkflowDefinition",
    "workflows.draft": "SuccessCase SuccessPolicy",
    "workflows.handle": "NodeInfo WorkflowHandle",
    "workflows.spec": "WorkflowSpec",
    "workflows.subworkflow": "SubWorkflowNode",
    "worker_thread": "Worker",
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}

if not typing.TYPE_CHECKING:  # to a type checker it would stand for any name, misspelt ones included

    def __getattr__(name: str) -> object:
        """A public name, from the room it lives in."""
        if name not in _ROOM_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 - no name of ours

        found = globals()[name] = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
