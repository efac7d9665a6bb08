"""What to write instead of the names and options that users of other task queues try first.

A missing attribute or an unknown option that is in one of these tables raises the usual AttributeError or TypeError, with one more sentence. Nothing
else changes: `hasattr` is False, type checkers report the mistake, and attributes that exist are found without this module. A name that is imported
from `horsies` itself raises ImportError.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Final, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SEND: Final = "write task.send(...), or await task.send_async(...)"
_WITH: Final = "task.with_options(eta=..., good_until=..., priority=..., queue_name=..., key=...).send(...)"
_OPTIONS: Final = f"write {_WITH}"
_LATER: Final = "write task.schedule(seconds, ...), or task.with_options(eta=...).send(...)"
_MANY: Final = "write task.send_many([task.call(...) for ... in ...])"
_NODE: Final = "write task.node()(...) for a node of app.workflow(...), or task.call(...) for task.send_many([...])"
_CALL: Final = "call the task to run it here: task(...) returns its TaskResult"
_RETRY: Final = (
    "give the task a retry_policy=RetryPolicy.exponential(...), and raise an exception or return an error code that it lists; "
    "TaskError(retry_after_seconds=...) sets the delay"
)
_CURRENT: Final = "write current_task() inside the task, which has task_id, attempt, deadline, cancelled and progress()"
_PROGRESS: Final = "write current_task().progress(fraction, message) inside the task"

_CANVAS: Final[Mapping[str, str]] = {
    "chain": 'write first = a.node()(1), second = b.node()(from_node(first)), and app.workflow("name", [first, second])',
    "group": f"{_MANY} and app.gather(handles); in a workflow: nodes that do not wait for each other",
    "chord": "write body.node()([from_node(node) for node in header]) in app.workflow(...)",
}

TASK_NAMES: Final[Mapping[str, str]] = {
    # Celery
    "delay": _SEND,
    "apply_async": f"{_SEND}; later: task.schedule(seconds, ...); with options: {_WITH}",
    "apply": _CALL,
    "run": _CALL,
    "s": _NODE,
    "si": _NODE,
    "signature": _NODE,
    "subtask": _NODE,
    "map": f"{_MANY}, or task.map_node()(...) in a workflow",
    "starmap": f"{_MANY}, or task.map_node()(...) in a workflow",
    "chunks": f"{_MANY}: it is one transaction, however many they are",
    "delay_on_commit": "write task.with_options(connection=connection).send(...): the task is part of your transaction",
    "retry": _RETRY,
    "replace": "send the other task at the end of this one, or define a workflow with app.workflow(...)",
    "request": _CURRENT,
    "update_state": _PROGRESS,
    "AsyncResult": "write app.handle(task_id, task)",
    "max_retries": "read task.retry_policy",
    "rate_limit": "cap the queue of the task: CustomQueueConfig(name=..., max_concurrency=...)",
    # django.tasks
    "aenqueue": "write await task.send_async(...)",
    "using": _OPTIONS,
    # Dramatiq
    "send_with_options": f"{_OPTIONS}; later: task.schedule(seconds, ...)",
    "message": _NODE,
    "message_with_options": _NODE,
    "fn": "write task.function",
    # RQ
    "enqueue": _SEND,
    # procrastinate
    "defer": _SEND,
    "defer_async": "write await task.send_async(...)",
    "batch_defer": _MANY,
    "batch_defer_async": "write await task.send_many_async([task.call(...) for ... in ...])",
    "configure": _OPTIONS,
}
"""Attributes of tasks, and of what `with_options` returns."""

APP_NAMES: Final[Mapping[str, str]] = {
    # Celery
    "send_task": "write app.tasks[name].send(...); for a task of another code base, insert a row into horsies.tasks",
    "signature": _NODE,
    **_CANVAS,
    "shared_task": "write @app.task(name) above the function",
    "conf": "pass the settings: Horsies(AppConfig(...))",
    "config_from_object": "pass the settings: Horsies(AppConfig(...))",
    "autodiscover_tasks": 'write app.discover_tasks(["shop.*.tasks"])',
    "register_task": "write @app.task(name) above the function",
    "Task": "write @app.task(name) above a function; tasks are not classes",
    "AsyncResult": "write app.handle(task_id, task)",
    "GroupResult": "write app.gather(handles), or app.workflow_handle(workflow_id)",
    "control": "write app.ops, which inspects and operates tasks, queues and workers",
    "worker_main": "run `horsies worker module:app`, or call app.run_worker()",
    "start": "run `horsies worker module:app`, or call app.run_worker()",
    "on_after_configure": "declare schedules with AppConfig(schedule=ScheduleConfig(schedules=[TaskSchedule(...)]))",
    "on_after_finalize": "declare schedules with AppConfig(schedule=ScheduleConfig(schedules=[TaskSchedule(...)]))",
    "add_periodic_task": "declare a TaskSchedule in AppConfig(schedule=...), or call app.ops.create_schedule(TaskSchedule(...))",
    # Dramatiq
    "actor": "write @app.task(name) above the function",
    # RQ
    "enqueue": _SEND,
    "enqueue_call": _SEND,
    "enqueue_many": _MANY,
    "enqueue_in": _LATER,
    "enqueue_at": _LATER,
    "fetch_job": "write app.handle(task_id, task)",
    # procrastinate
    "configure_task": "write app.tasks[name].with_options(...)",
    "periodic": "declare a TaskSchedule with a CronSchedule in AppConfig(schedule=...)",
    "open": "leave it out: connections are opened when they are needed; app.close() closes them",
    "open_async": "leave it out: connections are opened when they are needed; await app.close_async() closes them",
    "run_worker_async": "write async with app.worker(WorkerConfig(...)) as worker",
    # APScheduler
    "add_job": "declare a TaskSchedule in AppConfig(schedule=...), or call app.ops.create_schedule(TaskSchedule(...))",
    "add_schedule": "declare a TaskSchedule in AppConfig(schedule=...), or call app.ops.create_schedule(TaskSchedule(...))",
    "scheduled_job": "declare a TaskSchedule in AppConfig(schedule=...)",
}
"""Attributes of apps, which users of other libraries know from apps, brokers, queues and schedulers."""

_GET: Final = "write handle.get(timeout_ms=...), or await handle.get_async(...)"
_STATUS: Final = "write handle.status(), which is a TaskStatus: PENDING, RUNNING, COMPLETED, FAILED, ..."
_IS_OK: Final = "write handle.get(timeout_ms=0).is_ok(); an error WAIT_TIMEOUT means that it has not ended"
_ID: Final = "write handle.task_id, or workflow_id if it is a workflow"

HANDLE_NAMES: Final[Mapping[str, str]] = {
    # Celery
    "id": _ID,
    "state": _STATUS,
    "ready": f"{_STATUS}; its is_final says whether the task has ended",
    "successful": _IS_OK,
    "failed": f"{_STATUS}; compare it with TaskStatus.FAILED",
    "result": _GET,
    "wait": _GET,
    "maybe_throw": "write handle.get().unwrap(), which raises if the result is an error",
    "traceback": 'write handle.get().unwrap_err().data["traceback"]',
    "revoke": "write handle.cancel()",
    "forget": "leave it out: AppConfig(retention=RetentionConfig(finished=...)) says how long results are kept",
    "join": "write app.gather(handles)",
    "collect": "write app.as_completed(handles)",
    "then": "make the next task a node of app.workflow(...), or send it at the end of this task",
    # RQ
    "get_id": _ID,
    "get_status": _STATUS,
    "is_finished": _IS_OK,
    "is_failed": f"{_STATUS}; compare it with TaskStatus.FAILED",
    "return_value": _GET,
    "latest_result": _GET,
    "refresh": "leave it out: handle.status() and handle.info() read the database each time",
    "exc_info": 'write handle.get().unwrap_err().data["traceback"]',
    # Dramatiq
    "get_result": _GET,
    "message_id": _ID,
}
"""Attributes of the handles of tasks and workflows."""

CURRENT_TASK_NAMES: Final[Mapping[str, str]] = {
    "id": "write current_task().task_id",
    "retries": "write current_task().attempt - 1: the first attempt is 1",
    "retry": _RETRY,
    "update_state": _PROGRESS,
    "is_aborted": "write current_task().cancelled",
    "request": "leave it out: current_task() has what self.request had",
}
"""Attributes of `current_task()`, which users know from `self` and `self.request`."""

_POLICY: Final = "write retry_policy=RetryPolicy.exponential(base_seconds=1, max_retries=5, auto_retry_for=[OSError])"
_TIMEOUT: Final = "write timeout_ms=...: TaskTimeoutError is raised in the task, and its process is killed after RecoveryConfig.grace_ms"
_QUEUE: Final = "write queue_name=..."
_LATE: Final = (
    'leave it out: a task that did not start is never lost; list "WORKER_CRASHED" in auto_retry_for of its retry_policy '
    "if it may run again after its process died"
)
_KEEP: Final = "leave it out: results are stored, and RetentionConfig(finished=...) says how long"
_CAP: Final = "cap a queue: CustomQueueConfig(name=..., max_concurrency=1)"
_AT_SEND: Final = "set it when you send: task.with_options({}).send(...)"

TASK_OPTIONS: Final[Mapping[str, str]] = {
    # Celery
    "bind": "leave it and self out, and write current_task() inside the task",
    "base": "leave it out: tasks are functions; write what tasks share as functions, and prepare it in @app.on_child_start",
    "max_retries": _POLICY,
    "default_retry_delay": "write retry_policy=RetryPolicy.fixed([60, 60, 60], auto_retry_for=[ConnectionError])",
    "autoretry_for": _POLICY,
    "dont_autoretry_for": f"list only what is retried; {_POLICY}",
    "retry_backoff": _POLICY,
    "retry_backoff_max": f"{_POLICY} with max_delay_seconds=...",
    "retry_jitter": f"{_POLICY} with jitter=...",
    "retry_kwargs": _POLICY,
    "retries": _POLICY,
    "rate_limit": "cap how many run at once: queue_name=..., with CustomQueueConfig(name=..., max_concurrency=...)",
    "time_limit": _TIMEOUT,
    "soft_time_limit": _TIMEOUT,
    "acks_late": _LATE,
    "acks_on_failure_or_timeout": _LATE,
    "reject_on_worker_lost": _LATE,
    "ignore_result": _KEEP,
    "store_errors_even_if_ignored": _KEEP,
    "track_started": "leave it out: RUNNING is always recorded, with the time and the worker",
    "serializer": "leave it out: arguments and results are encoded by their annotations",
    "throws": 'write exception_mapper={OrderClosed: "ORDER_CLOSED"}, or return that error',
    "expires": _AT_SEND.format("good_until=..."),
    "priority": _AT_SEND.format("priority=...") + ", or set CustomQueueConfig(priority=...)",
    "queue": _QUEUE,
    # Dramatiq
    "actor_name": 'give the name first: @app.task("resize")',
    "min_backoff": _POLICY,
    "max_backoff": f"{_POLICY} with max_delay_seconds=...",
    "retry_when": _POLICY,
    "max_age": _AT_SEND.format("good_until=..."),
    "store_results": _KEEP,
    "result_ttl": _KEEP,
    # RQ and procrastinate
    "timeout": _TIMEOUT,
    "retry": _POLICY,
    "pass_context": "leave it and the parameter out, and write current_task() inside the task",
    "lock": _CAP,
    "queueing_lock": _AT_SEND.format("key=..."),
}
"""Options of `@app.task`."""

_FOLLOW: Final = "make both tasks nodes of app.workflow(...), or send the next task at the end of this one"

SEND_OPTIONS: Final[Mapping[str, str]] = {
    # Celery
    "args": "pass the arguments to send: task.with_options(...).send(1, width=2)",
    "kwargs": "pass the arguments to send: task.with_options(...).send(1, width=2)",
    "countdown": "write task.schedule(seconds, ...), also after with_options(...)",
    "expires": "write good_until=datetime.now(UTC) + timedelta(...)",
    "queue": _QUEUE,
    "routing_key": _QUEUE,
    "exchange": _QUEUE,
    "link": _FOLLOW,
    "link_error": 'give the task on_failure=other_task: @app.task("resize", on_failure=other_task)',
    "task_id": "write key=...: a task is sent at most once under a key; the id is chosen by the library",
    "retry": "leave it out: a send is repeated when its connection is lost, with the same id",
    "retry_policy": 'give it to the task: @app.task("resize", retry_policy=...)',
    "time_limit": 'give it to the task: @app.task("resize", timeout_ms=...)',
    "soft_time_limit": 'give it to the task: @app.task("resize", timeout_ms=...)',
    "ignore_result": _KEEP,
    "serializer": "leave it out: arguments are encoded by their annotations",
    "headers": "make it a parameter of the task",
    # Dramatiq
    "delay": "write task.schedule(seconds, ...), also after with_options(...)",
    # procrastinate
    "lock": _CAP,
    "queueing_lock": "write key=...",
    "schedule_in": "write task.schedule(timedelta(...), ...), also after with_options(...)",
    "schedule_at": "write eta=...",
}
"""Options of `with_options`."""

_DATABASE: Final = 'write Horsies(AppConfig.for_database_url("postgresql://..."))'

APP_OPTIONS: Final[Mapping[str, str]] = {
    # Celery
    "broker": _DATABASE,
    "backend": "leave it out: results are in the database of the app",
    "include": 'write app.discover_tasks(["shop.tasks"])',
    # our own, at another place
    "database_url": _DATABASE,
}
"""Options of `Horsies`."""

_URL: Final = 'write AppConfig.for_database_url("postgresql://...")'

CONFIG_OPTIONS: Final[Mapping[str, str]] = {
    # Celery
    "broker_url": _URL,
    "result_backend": "leave it out: results are in the database of the app",
    "result_expires": "write retention=RetentionConfig(finished=timedelta(days=7))",
    "task_always_eager": "leave it out: in tests use the fixture horsies_inline, or run_inline() of horsies.testing",
    "task_acks_late": _LATE,
    "task_time_limit": 'give it to each task: @app.task("resize", timeout_ms=...)',
    "task_routes": 'give it to each task: @app.task("resize", queue_name=...)',
    "beat_schedule": "write schedule=ScheduleConfig(schedules=[TaskSchedule(...)])",
    "timezone": "give it to each schedule: TaskSchedule(..., timezone=...)",
    "worker_concurrency": "run `horsies worker --processes=...`",
    "worker_prefetch_multiplier": 'write prefetch_buffer=...: 0, a number, or "auto"',
    # our own, at another place
    "database_url": _URL,
}
"""Options of `AppConfig`."""

MODULE_NAMES: Final[Mapping[str, str]] = {
    # Celery
    **_CANVAS,
    "Celery": "write app = Horsies()",
    "shared_task": "import the app, and write @app.task(name) above the function",
    "task": "import the app, and write @app.task(name) above the function",
    "current_app": "import the app from the module that defines it",
    "signature": _NODE,
    "crontab": 'write CronSchedule("*/5 * * * mon-fri")',
    "AsyncResult": "write app.handle(task_id, task)",
    # Dramatiq
    "actor": "import the app, and write @app.task(name) above the function",
    # RQ
    "Queue": "write CustomQueueConfig(name=...), and send with task.send(...)",
    "Retry": "write RetryPolicy.exponential(base_seconds=1, max_retries=5, auto_retry_for=[OSError])",
}
"""What is imported from `horsies`."""


def explain_missing(advice: Mapping[str, str]) -> Callable[[object, str], object]:
    """Return a `__getattr__` that adds the advice to the error. Write it below `if not TYPE_CHECKING:`, or every attribute would be of type object."""

    def __getattr__(self: object, name: str) -> object:  # noqa: N807 - the name that a traceback shows
        if name in advice:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: {advice[name]}")
        # The lookup has failed, and fails again with its own error, which may be that of a property.
        return object.__getattribute__(self, name)

    return __getattr__


def explain_import(name: str) -> NoReturn:
    """Be the `__getattr__` of the module `horsies`. An AttributeError would lose the advice in `from horsies import ...`."""
    if name in MODULE_NAMES:
        raise ImportError(f"cannot import name {name!r} from 'horsies': {MODULE_NAMES[name]}", name="horsies")
    raise AttributeError(f"module 'horsies' has no attribute {name!r}", name=name, obj=sys.modules["horsies"])


GET_OPTIONS: Final[Mapping[str, str]] = {
    "timeout": "write timeout_ms=..., in milliseconds",
    "propagate": "leave it out: get() returns an error as a value, and get().unwrap() raises it",
    "interval": "leave it out: a notification ends the wait",
}
"""Options of `handle.get()`."""


def refuse_options(what: str, given: Iterable[str], advice: Mapping[str, str]) -> NoReturn:
    """Raise TypeError for options that do not exist, with the advice for those that users know from elsewhere."""
    raise TypeError(
        "; ".join(f"{what} has no option {name!r}" + (f": {advice[name]}" if name in advice else "") for name in given)
    )


def explain_options(
    what: str, advice: Mapping[str, str], error: type[TypeError]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Refuse these options of a method with the advice; any other unknown option raises the usual TypeError."""

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            if found := [f"no option {name!r}: {advice[name]}" for name in kwargs if name in advice]:
                raise error(f"{what} has {'; '.join(found)}")
            return method(*args, **kwargs)

        return checked

    return decorate
