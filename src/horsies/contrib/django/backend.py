"""The backend for `django.tasks` of Django 6, and for its backport, the package `django-tasks`.

    TASKS = {"default": {"BACKEND": "horsies.contrib.django.backend.HorsiesBackend"}}

Each task of Django is a task of horsies whose name is its dotted path. Workers know those in the modules that they import: `tasks` of each app in INSTALLED_APPS,
`HORSIES["modules"]`, and what these and the models import. A task of another module is refused when it is enqueued, because no worker would ever run it.

A task is stored with the arguments `args`, `kwargs`, `alias` (of the backend) and `run_after`, so its result is rebuilt from its row. It was enqueued at the time in its
id, which the sender, the worker and every reader know without a query.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (Django comes without types, and has these modules since Django 6)

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.module_loading import import_string

from horsies.contrib.django.application import in_tests, the_app
from horsies.model.errors import QueueError, TaskDefinitionError
from horsies.model.result import TaskError, TaskResult
from horsies.model.send_options import DEFAULT_PRIORITY
from horsies.model.status import TaskStatus
from horsies.ops.api import ALL_CHARACTERS
from horsies.tasks.current_task import current_task
from horsies.tasks.ids import to_task_id
from horsies.tasks.inspect import TaskDetail, TaskInfo, get_task_detail

HAS_OWN: Final = find_spec("django.tasks") is not None
PACKAGE: Final = "django.tasks" if HAS_OWN and "django_tasks" not in settings.INSTALLED_APPS else "django_tasks"
if find_spec(PACKAGE) is None:
    raise ImproperlyConfigured(
        "horsies.contrib.django.backend needs Django 6, or its backport: pip install django-tasks"
    )
# The names are the same in both, except for those of exceptions.
contract, signals = import_module(f"{PACKAGE}.base"), import_module(f"{PACKAGE}.signals")
exceptions, backends = import_module(f"{PACKAGE}.exceptions"), import_module(f"{PACKAGE}.backends.base")
InvalidTask: type[Exception] = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
Status = contract.TaskResultStatus

UUID_VERSION: Final = 7

_defined: dict[str, Any] = {}
"""The tasks of Django that are tasks of horsies, by their paths."""


class TaskFailedError(Exception):
    """The task has failed without an exception: it was cancelled, has expired, or its process has died. The traceback has the reason."""


class HorsiesBackend(backends.BaseTaskBackend):
    """Enqueues tasks as rows, in the transaction that is open, and reads their results from there."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Any) -> None:
        """Refuse a task that this backend could not run, and make the others known to workers."""
        super().validate_task(task)
        app = the_app()
        try:
            app.config.queue_named(task.queue_name)
            if task.module_path not in app.tasks:
                _register(task)
        except (QueueError, TaskDefinitionError) as error:
            raise InvalidTask(str(error)) from error

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task, as a part of the open transaction if there is one."""
        self.validate_task(task)
        app, path = the_app(), task.module_path
        if app.is_discovered and path not in app.discovered_tasks and not in_tests():
            raise InvalidTask(
                f"workers do not import {task.func.__module__}, so they do not know {path}; move it to the module tasks of an app in INSTALLED_APPS, or "
                f"add {task.func.__module__!r} to HORSIES['modules']"
            )
        result = _result(task, self.alias, args=args, kwargs=kwargs, status=Status.READY)
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        stored: dict[str, Any] = {"args": result.args, "kwargs": result.kwargs, "alias": self.alias}
        if task.run_after is not None:
            stored["run_after"] = task.run_after.isoformat()
        sender = app.tasks[path].with_options(
            priority=DEFAULT_PRIORITY - task.priority, queue_name=task.queue_name, eta=run_after
        )
        task_id = sender.send(**stored).task_id
        _set(result, id=task_id, enqueued_at=_time_in(task_id))
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Read a result. Within a transaction it finds what was enqueued in it."""
        try:
            read = partial(get_task_detail, to_task_id(result_id), characters=ALL_CHARACTERS)
        except ValueError:
            raise exceptions.TaskResultDoesNotExist(result_id) from None
        found = the_app().run_joined(read)
        task = None if found is None else _task_at(found[0].task_name)
        if found is None or task is None:
            raise exceptions.TaskResultDoesNotExist(result_id)
        return _stored_result(task, *found)

    def check(self, **_options: Any) -> list[CheckMessage]:
        """Check that the queues of this backend exist."""
        try:
            known = {queue.name for queue in the_app().config.queues}
        except ImproperlyConfigured:
            return []  # reported by the checks of horsies
        if unknown := sorted(self.queues - known):
            message = f"settings.TASKS[{self.alias!r}] has the queues {', '.join(unknown)}, which horsies does not have"
            return [Error(message, hint="Add them to HORSIES['custom_queues'].", id="horsies.E008")]
        return []


# -- in the worker


def _register(task: Any) -> None:
    """Make a task of horsies that calls the function of this task."""
    path, app = task.module_path, the_app()
    _defined[path] = task

    def run(
        args: list[Any], kwargs: dict[str, Any], alias: str, run_after: str | None = None
    ) -> TaskResult[Any, TaskError]:
        del run_after  # it was the due time
        result, call = _begin(path, alias, args, kwargs)
        with _reported(result) as done:
            done(call())
        return TaskResult(ok=result._return_value)  # noqa: SLF001 - the property of the class fails for other states

    async def run_async(
        args: list[Any], kwargs: dict[str, Any], alias: str, run_after: str | None = None
    ) -> TaskResult[Any, TaskError]:
        del run_after
        result, call = await sync_to_async(_begin, thread_sensitive=True)(path, alias, args, kwargs)
        with _reported(result) as done:
            done(await call())
        return TaskResult(ok=result._return_value)  # noqa: SLF001 - as above

    own_queue = app.config.queue_mode.value == "CUSTOM"
    app.task(path, queue_name=task.queue_name if own_queue else None)(
        run_async if iscoroutinefunction(task.func) else run
    )


def _begin(path: str, alias: str, args: list[Any], kwargs: dict[str, Any]) -> tuple[Any, Callable[[], Any]]:
    """Return the result for the code of the task and the signals, and the call. What it needs from its row is read only if it is needed."""
    task: Any = _task_at(path)
    current, now = current_task(), timezone.now()
    result = _result(task, alias, args=args, kwargs=kwargs, status=Status.RUNNING, id=current.task_id)
    _set(result, enqueued_at=_time_in(current.task_id), started_at=now, last_attempted_at=now)
    if task.takes_context or current.attempt > 1:
        stored = task.get_backend().get_result(current.task_id)
        _set(result, errors=stored.errors, worker_ids=stored.worker_ids, started_at=stored.started_at or now)
    # The start of this attempt may not have been saved yet.
    missing = current.attempt - len(result.worker_ids)
    result.worker_ids.extend([f"{socket.gethostname()}:{os.getppid()}"] * missing)
    context = [contract.TaskContext(task_result=result)] if task.takes_context else []
    return result, partial(task.func, *context, *args, **kwargs)


@contextmanager
def _reported(result: Any) -> Iterator[Callable[[Any], None]]:
    """Send the signals. What is yielded takes the value of the task."""

    def done(value: Any) -> None:
        _set(result, _return_value=contract.normalize_json(value), finished_at=timezone.now(), status=Status.SUCCESSFUL)

    signals.task_started.send(sender=HorsiesBackend, task_result=result)
    try:
        yield done
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        failure = contract.TaskError(exception_class_path=path, traceback="".join(format_exception(error)))
        _set(result, finished_at=timezone.now(), status=Status.FAILED, errors=[*result.errors, failure])
        signals.task_finished.send(HorsiesBackend, task_result=result)
        raise
    signals.task_finished.send(HorsiesBackend, task_result=result)


# -- results


def _result(task: Any, alias: str, *, args: Sequence[Any], kwargs: Mapping[str, Any], status: Any, id: str = "") -> Any:  # noqa: A002 - Django's name
    return contract.TaskResult(
        task=task,
        id=id,
        status=status,
        enqueued_at=None,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def _set(result: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(result, name, value)  # it is frozen for its users


def _stored_result(task: Any, info: TaskInfo, detail: TaskDetail) -> Any:
    """Rebuild a result from its row."""
    stored = json.loads(detail.args or "{}")
    run_after = stored.get("run_after")
    variant = task.using(
        priority=DEFAULT_PRIORITY - info.priority,
        queue_name=info.queue_name,
        run_after=datetime.fromisoformat(run_after) if run_after else None,
        backend=stored["alias"],
    )
    status = {
        TaskStatus.PENDING: Status.READY,
        TaskStatus.CLAIMED: Status.READY,
        TaskStatus.RUNNING: Status.RUNNING,
        TaskStatus.COMPLETED: Status.SUCCESSFUL,
    }.get(info.status, Status.FAILED)
    failed, has_attempt = list(info.failed_attempts), status != Status.READY and info.started_at is not None
    started = [attempt.started_at for attempt in failed] + ([info.started_at] if has_attempt else [])
    workers = [attempt.worker or "" for attempt in failed] + ([info.worker or ""] if has_attempt else [])
    errors = [_error(info.task_name, attempt.error, attempt.error_code) for attempt in failed]
    if status == Status.FAILED:
        errors.append(_error(info.task_name, info.error, info.error_code or info.status.value))
    result = _result(variant, stored["alias"], args=stored["args"], kwargs=stored["kwargs"], status=status, id=info.id)
    _set(
        result,
        enqueued_at=_time_in(info.id) or _local(info.sent_at),
        started_at=_local(started[0]) if started else None,
        last_attempted_at=_local(started[-1]) if started else None,
        finished_at=_local(info.finished_at),
        errors=errors,
        worker_ids=workers,
        _return_value=json.loads(detail.result) if status == Status.SUCCESSFUL and detail.result else None,
    )
    return result


def _error(path: str, error: TaskError | None, code: str) -> Any:
    match error and error.data:
        case {"exception": str() as exception, "traceback": str() as traceback}:
            return contract.TaskError(exception_class_path=exception, traceback=traceback)
    message = error.message if error else "no reason was recorded"
    return contract.TaskError(
        exception_class_path=f"{__name__}.{TaskFailedError.__qualname__}", traceback=f"{path}: {code}: {message}\n"
    )


def _task_at(path: str) -> Any | None:
    """Return the task of Django at this path. None if it is another kind of task."""
    if path in _defined:
        return _defined[path]
    try:
        found = import_string(path)
    except ImportError:
        return None
    return found if isinstance(found, contract.Task) else None


def _time_in(task_id: str) -> datetime | None:
    found = UUID(task_id)
    if found.version != UUID_VERSION:
        return None
    return _local(datetime.fromtimestamp((found.int >> 80) / 1000, UTC))


def _local(time: datetime | None) -> datetime | None:
    """Return a time as Django has them: without a zone if USE_TZ is off."""
    return time if time is None or settings.USE_TZ else timezone.make_naive(time)
