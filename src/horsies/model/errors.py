"""What the library raises. Infrastructure fails by exception; a task's own errors are returned as values."""

from collections.abc import Sequence


class HorsiesError(Exception):
    """Every exception of this library is one of these."""


class ConfigError(HorsiesError, ValueError):
    """A configuration that cannot work; carries every problem found, not only the first."""

    def __init__(self, what: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{_counted(self.problems)} in {what}:{_lines(self.problems)}")


class TaskDefinitionError(HorsiesError, TypeError):
    """A function that cannot be a task: its name, signature or return annotation is at fault."""


class WorkflowDefinitionError(HorsiesError, ValueError):
    """A workflow that cannot work; carries every problem found in its graph, not only the first."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{_counted(self.problems)} in workflow {name!r}:{_lines(self.problems)}")


class NodeNotFoundError(HorsiesError, LookupError):
    """A node that the workflow does not have, or whose result it cannot give."""


class LocateError(HorsiesError):
    """The app, or a module with tasks, cannot be found or imported."""


class QueueError(HorsiesError, ValueError):
    """A queue that this app does not have."""


class KeyConflictError(HorsiesError):
    """The idempotency key belongs to another send: `task_id` is the task that has it."""

    def __init__(self, message: str, *, key: str, task_id: str) -> None:
        super().__init__(message)
        self.key = key
        self.task_id = task_id


class WorkflowConflictError(HorsiesError):
    """The workflow_id belongs to a run of another workflow."""


class PayloadError(HorsiesError, ValueError):
    """Arguments or a result that do not fit their annotations, or cannot be encoded."""


class ResultTypeError(PayloadError):
    """A task returned a value that is not of the type its annotation promises."""


class SendSuppressed(HorsiesError):  # noqa: N818 - a public name; it reports a rule, not a fault
    """The send happened while a worker was importing modules, so nothing was enqueued."""


class BrokerError(HorsiesError):
    """PostgreSQL could not do what was asked."""

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class SchemaError(BrokerError):
    """The database's schema is missing, too new, or may not be created by this user."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class UnsupportedConnectionError(HorsiesError, TypeError):
    """`connection=` was given something that a send cannot run on."""


class BlockingCallError(HorsiesError, RuntimeError):
    """A blocking call was made where an event loop is running."""


class OutsideTaskError(HorsiesError, RuntimeError):
    """`current_task()` was called where no task runs."""


class TaskTimeoutError(HorsiesError, TimeoutError):
    """Raised inside a task that has run for longer than its `timeout_ms`: clean up, and let it pass."""


class TaskCancelledError(HorsiesError):
    """Raised inside a task that somebody has cancelled: clean up, and let it pass."""


class WaitTimeoutError(HorsiesError, TimeoutError):
    """The time of `as_completed` ran out while tasks were still live; they go on."""


def _counted(problems: Sequence[str]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"


def _lines(problems: Sequence[str]) -> str:
    return "".join(f"\n  - {problem}" for problem in problems)
