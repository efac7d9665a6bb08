"""The exceptions of the library. Failures of the infrastructure are raised; a task's own errors are returned as values."""

from collections.abc import Sequence

from horsies.model.text import plural


class HorsiesError(Exception):
    """The base class of all exceptions of this library."""


class ConfigError(HorsiesError, ValueError):
    """A configuration is invalid. `problems` has every problem that was found, not only the first."""

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(_problem_list(what, self.problems))


class TaskDefinitionError(HorsiesError, TypeError):
    """A function cannot be a task because of its name, its signature or its return annotation."""


class WorkflowDefinitionError(HorsiesError, ValueError):
    """A workflow is invalid. `problems` has every problem that was found in its graph, not only the first."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(_problem_list(f"workflow {name!r}", self.problems))


class NodeNotFoundError(HorsiesError, LookupError):
    """The workflow does not have this node, or cannot give its result."""


class LocateError(HorsiesError):
    """The app, or a module with tasks, cannot be found or imported."""


class QueueError(HorsiesError, ValueError):
    """The app does not have this queue."""


class KeyConflictError(HorsiesError):
    """Another task holds the idempotency key; `task_id` is that task."""

    def __init__(self, message: str, *, key: str, task_id: str) -> None:
        super().__init__(message)
        self.key = key
        self.task_id = task_id


class WorkflowConflictError(HorsiesError):
    """The workflow_id belongs to a run of another workflow."""


class PayloadError(HorsiesError, ValueError):
    """Arguments or a result do not fit their annotations, or cannot be encoded."""


class ResultTypeError(PayloadError):
    """A task returned a value that does not have the annotated type."""


class SendSuppressed(HorsiesError):  # noqa: N818 - a public name; it reports a rule, not a fault
    """The send happened while a worker imported modules, so nothing was enqueued."""


class BrokerError(HorsiesError):
    """An operation of PostgreSQL failed. `retryable` says whether trying again may help."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class SchemaError(BrokerError):
    """The schema in the database is missing, too new, or cannot be created by this user."""


class NotPermittedError(BrokerError):
    """The database role of this process may not do this. The message names the table."""


class UnsupportedConnectionError(HorsiesError, TypeError):
    """A send cannot use the object that was passed as `connection=`."""


class BlockingCallError(HorsiesError, RuntimeError):
    """A blocking call was made inside a running event loop."""


class OutsideTaskError(HorsiesError, RuntimeError):
    """`current_task()` was called outside a task."""


class TaskTimeoutError(HorsiesError, TimeoutError):
    """Raised inside a task that has exceeded its `timeout_ms`: clean up and re-raise it."""


class TaskCancelledError(HorsiesError):
    """Raised inside a task that was cancelled: clean up and re-raise it."""


class WaitTimeoutError(HorsiesError, TimeoutError):
    """The timeout of `as_completed` ended while tasks were still live. They continue."""


def _problem_list(where: str, problems: Sequence[str]) -> str:
    return f"{plural(len(problems), 'problem')} in {where}:" + "".join(f"\n  - {problem}" for problem in problems)
