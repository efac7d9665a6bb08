"""What happens, told to whoever subscribes: metrics, traces and reports of your own hang here, not in the logic.

    from horsies import events

    @events.subscribe
    def tell(event: events.Event) -> None:
        if isinstance(event, events.TaskRaised):
            sentry_sdk.capture_exception(event.exception)

A subscriber hears the events of its own process: sends in a producer (and in a child whose task sends), the journey of tasks in the worker, what user
code raised in the child. It is called where the event happens, on whatever thread that is, before the work goes on: it must be quick, safe from
several threads, and must not wait. One that raises breaks nothing; that is logged once.

While nobody subscribes, no event is even made, and this module is not loaded: `if subscribers:` is all that the hot path pays (`watchers.py`).

A `Tracer` is asked at the beginning of a send, of a start and of a run, gives a `Span` that is ended with it, and what the span says of its trace
travels with the task. There is at most one for each app (`app.tracer`); `horsies.contrib.otel` is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from horsies.subscribers import emit, report_broken_subscriber, subscribe, subscribers, unsubscribe

__all__ = [
    "BatchCommitted",
    "ChildDied",
    "ChildRecycled",
    "ChildStarted",
    "DatabaseError",
    "Event",
    "HeartbeatMissed",
    "NotificationsLost",
    "NotificationsRestored",
    "ScheduleSlotDecided",
    "SendSpan",
    "Span",
    "TaskEnded",
    "TaskRaised",
    "TaskRetried",
    "TaskSpan",
    "TaskStarted",
    "TasksClaimed",
    "TasksExpired",
    "TasksRescued",
    "TasksSent",
    "TracedWork",
    "Tracer",
    "WorkerDeclaredDead",
    "WorkflowStartSpan",
    "WorkflowStarted",
    "begin_span",
    "emit",
    "end_span",
    "subscribe",
    "subscribers",
    "unsubscribe",
]


# -- in producers


@dataclass(frozen=True, slots=True)
class TasksSent:
    """One send was committed, or became part of the caller's transaction; `count` tasks are new."""

    task_name: str
    queue_name: str
    count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class WorkflowStarted:
    """The same for a start of a workflow."""

    workflow_name: str
    workflow_id: str
    duration_s: float


# -- in children


@dataclass(frozen=True, slots=True)
class TaskRaised:
    """User code raised; the task fails, or is retried."""

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    exception: BaseException


# -- in workers: tasks


@dataclass(frozen=True, slots=True)
class TasksClaimed:
    """So many of one task and queue are this worker's."""

    task_name: str
    queue_name: str
    count: int


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """User code begins. `wait_s` is how long ago it could have, had there been a free slot: since it was sent, or due."""

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """This worker's ending of a task is committed. `status` is COMPLETED, FAILED or CANCELLED."""

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    status: str
    error_code: str | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class TaskRetried:
    """An attempt has failed, that is committed, and another comes in `delay_s`."""

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    error_code: str | None
    duration_s: float
    delay_s: float


# -- in workers: themselves


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """One conversation with the database: so many endings were written, so many tasks claimed."""

    ended: int
    claimed: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class DatabaseError:
    """A turn failed and will be repeated. `kind` is contention, connection_lost, invalid_data or unexpected."""

    kind: str


@dataclass(frozen=True, slots=True)
class HeartbeatMissed:
    """The database did not take the sign of life."""


@dataclass(frozen=True, slots=True)
class ChildStarted:
    pid: int


@dataclass(frozen=True, slots=True)
class ChildDied:
    """Unexpectedly; another takes its place."""

    pid: int
    cause: str


@dataclass(frozen=True, slots=True)
class ChildRecycled:
    """It had served long enough, and another took its place."""

    pid: int


@dataclass(frozen=True, slots=True)
class NotificationsLost:
    """Notifications do not arrive in this process: whoever waits polls."""


@dataclass(frozen=True, slots=True)
class NotificationsRestored:
    """They arrive again."""


# -- in workers: what one of them does for all


@dataclass(frozen=True, slots=True)
class WorkerDeclaredDead:
    """The keeper has found a worker dead."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class TasksRescued:
    """The keeper has ended, retried or given back so many tasks of dead workers."""

    count: int


@dataclass(frozen=True, slots=True)
class TasksExpired:
    """So many did not begin in time, and never will."""

    count: int


# -- in schedulers, and in workers that are one


@dataclass(frozen=True, slots=True)
class ScheduleSlotDecided:
    """What became of a slot is committed: `outcome` is ENQUEUED, SKIPPED, or, for one or more in a row, MISSED."""

    schedule_name: str
    outcome: str


Event: TypeAlias = (
    TasksSent
    | WorkflowStarted
    | TaskRaised
    | TasksClaimed
    | TaskStarted
    | TaskEnded
    | TaskRetried
    | BatchCommitted
    | DatabaseError
    | HeartbeatMissed
    | ChildStarted
    | ChildDied
    | ChildRecycled
    | NotificationsLost
    | NotificationsRestored
    | WorkerDeclaredDead
    | TasksRescued
    | TasksExpired
    | ScheduleSlotDecided
)


# -- traces


@dataclass(frozen=True, slots=True)
class SendSpan:
    task_name: str
    queue_name: str
    task_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class WorkflowStartSpan:
    workflow_name: str
    workflow_id: str


@dataclass(frozen=True, slots=True)
class TaskSpan:
    """An attempt. `trace` is what the span of its send, or of its workflow's start, has told of itself."""

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    trace: str | None


TracedWork: TypeAlias = SendSpan | WorkflowStartSpan | TaskSpan


class Span(Protocol):
    """Work under way."""

    @property
    def trace(self) -> str | None:
        """What is sent within it carries along."""
        ...

    def end(self, error_code: str | None, raised: BaseException | None) -> None:
        """Without either it went well."""
        ...


class Tracer(Protocol):
    def begin(self, work: TracedWork) -> Span:
        """In the context in which the work is done then; of a run, that context is the task's alone."""
        ...


def begin_span(tracer: Tracer, work: TracedWork) -> Span | None:
    """None: the tracer is broken, and the work goes on without it."""
    try:
        return tracer.begin(work)
    except Exception as error:  # noqa: BLE001 - the same as a subscriber
        report_broken_subscriber(tracer, error)
        return None


def end_span(span: Span, error_code: str | None = None, raised: BaseException | None = None) -> None:
    try:
        span.end(error_code, raised)
    except Exception as error:  # noqa: BLE001 - the same
        report_broken_subscriber(type(span), error)
