"""Where older documents import them from."""

from horsies.model.result import TaskError, TaskResult
from horsies.model.retry_policy import RetryPolicy
from horsies.model.status import TaskStatus
from horsies.tasks.handle import TaskHandle
from horsies.tasks.inspect import TaskInfo

__all__ = ["RetryPolicy", "TaskError", "TaskHandle", "TaskInfo", "TaskResult", "TaskStatus"]
