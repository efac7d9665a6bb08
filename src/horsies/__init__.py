"""horsies: a PostgreSQL-backed distributed task queue and workflow engine."""

from horsies.app import Horsies
from horsies.model.codes import ContractCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.model.config import AppConfig, CustomQueueConfig, PostgresConfig, QueueMode, WorkerResilienceConfig
from horsies.model.errors import (
    BlockingCallError,
    BrokerError,
    ConfigError,
    HorsiesError,
    LocateError,
    PayloadError,
    QueueError,
    SchemaError,
    SendSuppressed,
    TaskDefinitionError,
)
from horsies.model.result import TaskError, TaskResult, UnwrapError
from horsies.model.status import TaskStatus
from horsies.tasks.handle import TaskHandle
from horsies.tasks.task import AsyncTask, Task

__all__ = [
    "AppConfig",
    "AsyncTask",
    "BlockingCallError",
    "BrokerError",
    "ConfigError",
    "ContractCode",
    "CustomQueueConfig",
    "Horsies",
    "HorsiesError",
    "LocateError",
    "OperationalErrorCode",
    "OutcomeCode",
    "PayloadError",
    "PostgresConfig",
    "QueueError",
    "QueueMode",
    "RetrievalCode",
    "SchemaError",
    "SendSuppressed",
    "Task",
    "TaskDefinitionError",
    "TaskError",
    "TaskHandle",
    "TaskResult",
    "TaskStatus",
    "UnwrapError",
    "WorkerResilienceConfig",
]
