"""On which terms tasks are sent."""

from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from horsies.model.retry import RetryPolicy

TaskId: TypeAlias = str

DEFAULT_PRIORITY = 100


class Terms(NamedTuple):
    """On which terms tasks are sent: all but what they are called with, the same for a whole batch.

    `due` is a moment, or how long from now on the database's clock; None is now.
    """

    task_name: str
    queue_name: str
    priority: int = DEFAULT_PRIORITY
    timeout_ms: int | None = None
    retry: RetryPolicy | None = None
    due: datetime | timedelta | None = None
    good_until: datetime | None = None
    trace: str | None = None
    """Of the trace in which they are sent; see `horsies.events.Tracer`."""
