"""Events: what happens in this process, for metrics, traces and reports of your own.

    from horsies import events

    @events.subscribe
    def report(event: events.Event) -> None:
        if isinstance(event, events.TaskRaised):
            sentry_sdk.capture_exception(event.exception)

A subscriber gets the events of its own process: sends in a producer (and in a child whose task sends), the progress of tasks in the worker, exceptions of
user code in the child. It is called where the event happens, on that thread, before the work goes on: it must be fast, thread-safe and must not
block. If it raises, nothing else is affected; that is logged once.

Without subscribers no event is created: the hot path only evaluates `if subscribers:`.

A `Tracer` is called at the beginning of a send, of a start of a workflow and of an attempt. It returns a `Span`, which is ended with that work; the
trace of the span is stored with the task. An app has at most one tracer (`app.tracer`), for example `horsies.contrib.otel`.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Subscriber: TypeAlias = Callable[[Any], object]

log = logging.getLogger("horsies.events")

subscribers: list[Subscriber] = []
"""Check that it is not empty before you create an event."""
_reported: set[int] = set()


def subscribe(subscriber: Subscriber) -> Subscriber:
    """Call it with every event of this process from now on. Can be used as a decorator."""
    if subscriber not in subscribers:
        subscribers.append(subscriber)
    return subscriber


def unsubscribe(subscriber: Subscriber) -> None:
    subscribers[:] = [other for other in subscribers if other != subscriber]
    _reported.discard(id(subscriber))


def emit(event: object) -> None:
    for subscriber in tuple(subscribers):  # a copy: a subscriber may subscribe or unsubscribe others
        try:
            subscriber(event)
        except Exception as error:  # noqa: BLE001 - user code must not stop the work
            log_failure_once(subscriber, error)


def log_failure_once(failed: object, error: Exception) -> None:
    if id(failed) not in _reported:
        _reported.add(id(failed))
        log.error("%r failed; its further failures are not logged", failed, exc_info=error)


@dataclass(frozen=True, slots=True)
class _AttemptOfTask:
    task_id: str
    task_name: str
    queue_name: str
    attempt: int


# -- in producers


@dataclass(frozen=True, slots=True)
class TasksSent:
    """One send was committed, or has become part of the caller's transaction; `count` tasks are new."""

    task_name: str
    queue_name: str
    count: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class WorkflowStarted:
    """The same for the start of a workflow."""

    workflow_name: str
    workflow_id: str
    duration_s: float


# -- in children


@dataclass(frozen=True, slots=True)
class TaskRaised(_AttemptOfTask):
    """User code raised; the task fails, or is retried."""

    exception: BaseException


# -- in workers: tasks


@dataclass(frozen=True, slots=True)
class TasksClaimed:
    """This worker has claimed `count` tasks of this name and queue."""

    task_name: str
    queue_name: str
    count: int


@dataclass(frozen=True, slots=True)
class TaskStarted(_AttemptOfTask):
    """User code starts. `wait_s` is the time since the task was sent or due: how long it has waited for a free slot."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class TaskEnded(_AttemptOfTask):
    """The ending of a task in this worker is committed. `status` is COMPLETED, FAILED or CANCELLED."""

    status: str
    error_code: str | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class TaskRetried(_AttemptOfTask):
    """The failure of an attempt is committed, and the next attempt follows in `delay_s`."""

    error_code: str | None
    duration_s: float
    delay_s: float


# -- in workers: themselves


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    """One batch is committed, with this number of endings stored and tasks claimed."""

    ended: int
    claimed: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class DatabaseError:
    """A batch failed and will be repeated. `kind` is contention, connection_lost, invalid_data or unexpected."""

    kind: str


@dataclass(frozen=True, slots=True)
class HeartbeatMissed:
    """The database did not accept a heartbeat."""


@dataclass(frozen=True, slots=True)
class ChildStarted:
    pid: int


@dataclass(frozen=True, slots=True)
class ChildDied:
    """A child died unexpectedly and is replaced."""

    pid: int
    cause: str


@dataclass(frozen=True, slots=True)
class ChildRecycled:
    """A child was replaced because of its number of tasks or its memory."""

    pid: int


@dataclass(frozen=True, slots=True)
class NotificationsLost:
    """Notifications do not arrive in this process: waiters and the worker poll."""


@dataclass(frozen=True, slots=True)
class NotificationsRestored:
    """Notifications arrive again."""


# -- in the worker that is the maintenance leader


@dataclass(frozen=True, slots=True)
class WorkerDeclaredDead:
    """The maintenance leader has declared a worker dead."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class TasksRescued:
    """The maintenance leader has ended, retried or released `count` tasks of dead workers."""

    count: int


@dataclass(frozen=True, slots=True)
class TasksExpired:
    """`count` tasks had not started before their `good_until`, and ended as EXPIRED."""

    count: int


# -- in schedulers, and in workers that are also schedulers


@dataclass(frozen=True, slots=True)
class ScheduleSlotDecided:
    """The outcome of a slot is committed: ENQUEUED, SKIPPED, or, for one or more in a row, MISSED."""

    schedule_name: str
    outcome: str


_TaskEvent: TypeAlias = TasksSent | WorkflowStarted | TaskRaised | TasksClaimed | TaskStarted | TaskEnded | TaskRetried
_WorkerEvent: TypeAlias = BatchCommitted | DatabaseError | HeartbeatMissed | ChildStarted | ChildDied | ChildRecycled
_ListenerEvent: TypeAlias = NotificationsLost | NotificationsRestored
_MaintenanceEvent: TypeAlias = WorkerDeclaredDead | TasksRescued | TasksExpired
Event: TypeAlias = _TaskEvent | _WorkerEvent | _ListenerEvent | _MaintenanceEvent | ScheduleSlotDecided


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
class TaskSpan(_AttemptOfTask):
    """An attempt. `trace` is that of the span of its send, or of the start of its workflow."""

    trace: str | None


TracedWork: TypeAlias = SendSpan | WorkflowStartSpan | TaskSpan


class Span(Protocol):
    """Work in progress."""

    @property
    def trace(self) -> str | None:
        """Return what is stored with the tasks that are sent inside this span."""
        ...

    def end(self, error_code: str | None, raised: BaseException | None) -> None:
        """End the span. Without an error code and an exception the work succeeded."""
        ...


class Tracer(Protocol):
    def begin(self, work: TracedWork) -> Span:
        """Begin a span. This is called in the context in which the work is done; for an attempt, only the task uses that context."""
        ...


def begin_span(tracer: Tracer, work: TracedWork) -> Span | None:
    """Return None if the tracer fails: the work goes on without a span."""
    try:
        return tracer.begin(work)
    except Exception as error:  # noqa: BLE001 - user code must not stop the work
        log_failure_once(tracer, error)
        return None


def end_span(span: Span, error_code: str | None = None, raised: BaseException | None = None) -> None:
    try:
        span.end(error_code, raised)
    except Exception as error:  # noqa: BLE001 - user code must not stop the work
        log_failure_once(type(span), error)
