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
)
from horsies.model.recovery import RecoveryConfig, WorkerResilienceConfig
from horsies.model.result import TaskError, TaskResult, UnwrapError
from horsies.model.retry import RetryPolicy
from horsies.model.status import TaskStatus
from horsies.model.worker import WorkerConfig
from horsies.tasks.cancel import CancelOutcome
from horsies.tasks.current import CurrentTask, current_task
from horsies.tasks.handle import TaskHandle
from horsies.tasks.inspect import FailedAttempt, TaskInfo, WorkerState
from horsies.tasks.send import Call, Sender
from horsies.tasks.task import AsyncTask, Task

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
    "CurrentTask",
    "CustomQueueConfig",
    "FailedAttempt",
    "Horsies",
    "HorsiesError",
    "KeyConflictError",
    "LocateError",
    "OperationalErrorCode",
    "OutcomeCode",
    "OutsideTaskError",
    "PayloadError",
    "PostgresBroker",
    "PostgresConfig",
    "QueueError",
    "QueueMode",
    "RecoveryConfig",
    "RetrievalCode",
    "RetryPolicy",
    "SchemaError",
    "SendSuppressed",
    "Sender",
    "Task",
    "TaskCancelledError",
    "TaskDefinitionError",
    "TaskError",
    "TaskHandle",
    "TaskInfo",
    "TaskResult",
    "TaskStatus",
    "TaskTimeoutError",
    "UnsupportedConnectionError",
    "UnwrapError",
    "WaitTimeoutError",
    "WorkerConfig",
    "WorkerResilienceConfig",
    "WorkerState",
    "current_task",
]

if not typing.TYPE_CHECKING:  # to a type checker it would stand for any name, misspelt ones included

    def __getattr__(name: str) -> object:
        """The broker brings psycopg, which a process that only defines or runs tasks can do without."""
        if name == "PostgresBroker":
            from horsies.db.broker import PostgresBroker  # noqa: PLC0415 - see above

            return PostgresBroker
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
