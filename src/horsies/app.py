"""`Horsies`: configuration, registry and entry points of one application."""

import inspect
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload
from uuid import UUID

from horsies.model.codec import ArgumentsCodec, ResultCodec, ok_type
from horsies.model.config import AppConfig, PostgresConfig, QueueMode
from horsies.model.errors import TaskDefinitionError
from horsies.model.graph import OnError
from horsies.model.mapper import ErrorCodes, ExceptionMap, mapper_problems
from horsies.model.problems import instance_problems, number_problems, refuse
from horsies.model.result import TaskError, TaskResult
from horsies.model.retry import RetryPolicy
from horsies.model.sizes import SizeWatch
from horsies.model.worker import WorkerConfig
from horsies.tasks.gather import Gathering
from horsies.tasks.handle import TaskHandle, refuse_in_event_loop
from horsies.tasks.ids import as_task_id, as_workflow_id
from horsies.tasks.inspect import WorkerState, get_worker_states
from horsies.tasks.node import AnyNode, WorkflowNode, listed
from horsies.tasks.queues import pause_queue, resume_queue
from horsies.tasks.task import AsyncTask, Sendable, Task
from horsies.workflows.draft import Draft, SuccessPolicy
from horsies.workflows.handle import WorkflowHandle
from horsies.workflows.spec import WorkflowSpec, specify

if TYPE_CHECKING:
    from horsies.db.broker import PostgresBroker

MAX_NAME = 200
MAX_TIMEOUT_MS = 24 * 24 * 3600 * 1000  # fits an integer of PostgreSQL

P = ParamSpec("P")
T = TypeVar("T")
OnErrorWord: TypeAlias = Literal["fail", "pause"]
Hook: TypeAlias = Callable[[], object]
AnyHook = TypeVar("AnyHook", bound=Hook)


class TaskDecorator(Protocol):
    """What `@app.task(...)` is: keeps the signature, adds the verbs."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]]) -> AsyncTask[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, TaskResult[T, TaskError]]) -> Task[P, T]: ...


class Horsies:
    """An application. Without a database in its configuration it uses $HORSIES_DATABASE_URL, $DATABASE_URL, or the
    embedded PostgreSQL of this project, in this order, when the database is first needed.
    """

    def __init__(self, config: AppConfig | None = None) -> None:
        if config is not None:
            refuse("Horsies", instance_problems("config", config, AppConfig, "AppConfig.for_database_url(...)"))
        self.config = config or AppConfig()
        self._tasks: dict[str, Sendable[..., Any]] = {}
        self._task_modules: list[str] = []
        self._broker: PostgresBroker | None = None
        self._child_start_hooks: list[Hook] = []
        self._child_stop_hooks: list[Hook] = []

    # -- definition

    def task(
        self,
        name: str,
        *,
        queue_name: str | None = None,
        retry_policy: RetryPolicy | None = None,
        timeout_ms: int | None = None,
        exception_mapper: Mapping[type[BaseException], str] | None = None,
    ) -> TaskDecorator:
        """Make a function a task. Its return annotation must be `TaskResult[T, TaskError]`.

        `exception_mapper` gives exceptions that it raises an error code; what it does not know, the app's own may.
        """
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance] - `@app.task` without a call
            raise TaskDefinitionError('a task needs an explicit name: write @app.task("resize")')
        problems = list(_name_problems(name))
        problems += [] if timeout_ms is None else list(number_problems("timeout_ms", timeout_ms, 1, MAX_TIMEOUT_MS))
        if retry_policy is not None:
            problems += instance_problems("retry_policy", retry_policy, RetryPolicy, "RetryPolicy.fixed(...)")
        problems += mapper_problems("exception_mapper", {} if exception_mapper is None else exception_mapper)
        if problems:
            raise TaskDefinitionError(f"task {name!r}: {'; '.join(problems)}")

        error_codes = ErrorCodes(
            of_task=ExceptionMap(exception_mapper),
            of_app=ExceptionMap(self.config.exception_mapper),
            default=self.config.default_unhandled_error_code,
        )

        def decorate(function: Callable[..., Any]) -> Sendable[..., Any]:
            task = self._define(function, name, queue_name, retry_policy, timeout_ms, error_codes)
            self._tasks[name] = task
            return task

        return cast("TaskDecorator", decorate)

    def _define(
        self,
        function: Callable[..., Any],
        name: str,
        queue_name: str | None,
        retry_policy: RetryPolicy | None,
        timeout_ms: int | None,
        error_codes: ErrorCodes,
    ) -> Sendable[..., Any]:
        if name in self._tasks:
            other = self._tasks[name].function
            raise TaskDefinitionError(
                f"two tasks are named {name!r}: {other.__module__}.{other.__qualname__} and "
                f"{function.__module__}.{function.__qualname__}; rename one of them"
            )
        limits = self.config.payload_limits
        kind = cast("type[Sendable[..., Any]]", AsyncTask if inspect.iscoroutinefunction(function) else Task)
        return kind(
            function,
            name=name,
            queue_name=self._queue_of(name, queue_name),
            arguments=ArgumentsCodec.for_function(function, SizeWatch(f"the arguments of task {name!r}", limits)),
            result=ResultCodec.for_type(ok_type(function), SizeWatch(f"the result of task {name!r}", limits)),
            outlet=self,
            error_codes=error_codes,
            retry_policy=retry_policy,
            timeout_ms=timeout_ms,
        )

    def _queue_of(self, task_name: str, queue_name: str | None) -> str:
        names = [queue.name for queue in self.config.queues]
        if self.config.queue_mode is QueueMode.DEFAULT:
            if queue_name is not None:
                raise TaskDefinitionError(
                    f"task {task_name!r} names queue {queue_name!r}, but this app has only the default queue; "
                    "leave queue_name out, or configure queue_mode=QueueMode.CUSTOM and custom_queues"
                )
            return names[0]
        if queue_name not in names:
            wrong = "names no queue" if queue_name is None else f"names an unknown queue {queue_name!r}"
            raise TaskDefinitionError(f"task {task_name!r} {wrong}; set queue_name to one of {', '.join(names)}")
        return queue_name

    @overload
    def workflow(
        self,
        name: str,
        tasks: Sequence[WorkflowNode[Any]],
        *,
        output: AnyNode[T],
        on_error: OnError | OnErrorWord = ...,
        success_policy: SuccessPolicy | None = ...,
        time_limit: float | timedelta | None = ...,
        definition_key: str | None = ...,
    ) -> WorkflowSpec[T]: ...
    @overload
    def workflow(
        self,
        name: str,
        tasks: Sequence[WorkflowNode[Any]],
        *,
        output: None = ...,
        on_error: OnError | OnErrorWord = ...,
        success_policy: SuccessPolicy | None = ...,
        time_limit: float | timedelta | None = ...,
        definition_key: str | None = ...,
    ) -> WorkflowSpec[None]: ...
    def workflow(
        self,
        name: str,
        tasks: Sequence[WorkflowNode[Any]],
        *,
        output: AnyNode[Any] | None = None,
        on_error: OnError | OnErrorWord = OnError.FAIL,
        success_policy: SuccessPolicy | None = None,
        time_limit: float | timedelta | None = None,
        definition_key: str | None = None,
    ) -> WorkflowSpec[Any]:
        """A workflow of these nodes. Everything that is wrong with it is reported here, together; nothing is started.

        Its value is that of `output`. `time_limit` is in seconds or a timedelta, from its start.
        """
        draft = Draft(
            name=name,
            nodes=listed(tasks),
            output=output,
            on_error=on_error,
            success_policy=success_policy,
            time_limit=time_limit,
            definition_key=definition_key,
        )
        return specify(self, draft)

    @property
    def tasks(self) -> Mapping[str, Sendable[..., Any]]:
        """The registered tasks by name."""
        return MappingProxyType(self._tasks)

    def discover_tasks(self, modules: Sequence[str]) -> None:
        """Where the tasks are: dotted modules or `.py` paths. Workers and their children import them."""
        if isinstance(modules, str):
            raise TaskDefinitionError(f"discover_tasks takes a list: discover_tasks([{modules!r}])")
        self._task_modules.extend(module for module in modules if module not in self._task_modules)

    @property
    def task_modules(self) -> tuple[str, ...]:
        """What `discover_tasks` was told, in that order."""
        return tuple(self._task_modules)

    # -- hooks

    def on_child_start(self, hook: AnyHook) -> AnyHook:
        """Run this once in every child of a worker, after the imports and before its first task: pools, clients, models.

        `def` or `async def`, without parameters; an `async def` runs on the event loop that the child's tasks run on.
        """
        self._child_start_hooks.append(_checked_hook(hook))
        return hook

    def on_child_stop(self, hook: AnyHook) -> AnyHook:
        """Run this once in every child before it leaves; the last one defined goes first. Not when a child is killed."""
        self._child_stop_hooks.append(_checked_hook(hook))
        return hook

    @property
    def child_start_hooks(self) -> tuple[Hook, ...]:
        """In the order they run."""
        return tuple(self._child_start_hooks)

    @property
    def child_stop_hooks(self) -> tuple[Hook, ...]:
        """In the order they run: the last one defined first."""
        return tuple(reversed(self._child_stop_hooks))

    # -- the database

    @property
    def broker(self) -> "PostgresBroker":
        """The connection to the database, made at first need."""
        if self._broker is None:
            from horsies.db.broker import PostgresBroker  # noqa: PLC0415 - a child that never sends need not load psycopg

            configured = self._configured_database()
            broker = PostgresBroker(configured or _embedded_database(), resilience=self.config.resilience)
            if configured is None:
                broker.ensure_schema_initialized()  # it is ours alone, and nobody is there to run a migration
            self._broker = broker
        return self._broker

    def use_database(self, database_url: str) -> None:
        """Use this database from now on, whatever was configured; all other settings stay."""
        self.close()
        broker = self.config.broker
        if broker is None:
            broker = PostgresConfig(database_url=database_url)
        else:
            broker = replace(broker, database_url=database_url, listen_url=None)  # which led to the other one
        self.config, self._broker = replace(self.config, broker=broker), None

    @contextmanager
    def using(self, broker: "PostgresBroker") -> Generator[None]:
        """For a while, this broker and its database, whatever was configured. For tests (`horsies.testing`)."""
        former = self.config, self._broker
        self.config, self._broker = replace(self.config, broker=broker.config), broker
        try:
            yield
        finally:
            self.config, self._broker = former

    def _configured_database(self) -> PostgresConfig | None:
        url = os.environ.get("HORSIES_DATABASE_URL") or os.environ.get("DATABASE_URL")
        return self.config.broker or (PostgresConfig(database_url=url) if url else None)

    # -- waiting

    @overload
    def handle(self, task_id: str | UUID) -> TaskHandle[Any]: ...
    @overload
    def handle(self, task_id: str | UUID, task: Sendable[..., T]) -> TaskHandle[T]: ...
    def handle(self, task_id: str | UUID, task: Sendable[..., Any] | None = None) -> TaskHandle[Any]:
        """A handle from a stored id; nothing is looked up. With its task, results have the task's type; without, they are JSON values."""
        if not isinstance(task, Sendable | None):  # pyright: ignore[reportUnnecessaryIsInstance] - its name is no task
            raise TypeError(
                f"task is {task!r}; give the decorated function, such as app.tasks[{task!r}], or leave it out"
            )
        codec = ResultCodec.for_type(Any) if task is None else task.result
        return TaskHandle(as_task_id(task_id), codec, lambda: self.broker)

    @overload
    def workflow_handle(self, workflow_id: str | UUID) -> WorkflowHandle[Any]: ...
    @overload
    def workflow_handle(self, workflow_id: str | UUID, spec: WorkflowSpec[T]) -> WorkflowHandle[T]: ...
    def workflow_handle(self, workflow_id: str | UUID, spec: WorkflowSpec[Any] | None = None) -> WorkflowHandle[Any]:
        """A handle of a run from a stored id; nothing is looked up. With its specification it has the type of the workflow's value."""
        if spec is not None:
            return spec.handle(workflow_id)
        return WorkflowHandle(as_workflow_id(workflow_id), self)

    def gather(self, handles: Iterable[TaskHandle[T]], timeout_ms: int | None = None) -> list[TaskResult[T, TaskError]]:
        """Wait for all of them; the results in the order of the handles. What has not ended in time is `err(WAIT_TIMEOUT)`."""
        return Gathering(handles, lambda: self.broker, timeout_ms).all()

    async def gather_async(
        self, handles: Iterable[TaskHandle[T]], timeout_ms: int | None = None
    ) -> list[TaskResult[T, TaskError]]:
        """The same for asyncio code."""
        return await Gathering(handles, lambda: self.broker, timeout_ms).all_async()

    def as_completed(self, handles: Iterable[TaskHandle[T]], timeout_ms: int | None = None) -> Iterator[TaskHandle[T]]:
        """The handles, each as soon as its task has ended: `get()` then returns at once. Raises `WaitTimeoutError` when the time runs
        out before all have.
        """
        refuse_in_event_loop("as_completed()", "async for handle in app.as_completed_async(handles)")
        return Gathering(handles, lambda: self.broker, timeout_ms).completed()

    def as_completed_async(
        self, handles: Iterable[TaskHandle[T]], timeout_ms: int | None = None
    ) -> AsyncIterator[TaskHandle[T]]:
        """The same for asyncio code."""
        return Gathering(handles, lambda: self.broker, timeout_ms).completed_async()

    # -- operation

    def run_worker(self, config: WorkerConfig | None = None) -> int:
        """Run a worker in this process until SIGTERM or SIGINT; its exit code. Must be called on the main thread."""
        if config is not None:
            refuse("run_worker", instance_problems("config", config, WorkerConfig, "WorkerConfig(processes=2)"))
        # By name: a worker stands above the app, and an app that only sends never loads it.
        return import_module("horsies.worker.embed").run_in_process(self, config or WorkerConfig())

    def pause_queue(self, name: str) -> None:
        """Nothing more is claimed from this queue, by any worker, until it is resumed. Sends are accepted."""
        self.broker.run(partial(pause_queue, self.config.queue_named(name).name))

    async def pause_queue_async(self, name: str) -> None:
        """The same for asyncio code."""
        await self.broker.run_async(partial(pause_queue, self.config.queue_named(name).name))

    def resume_queue(self, name: str) -> None:
        """Workers claim from this queue again, and those that wait hear of it."""
        self.broker.run(partial(resume_queue, self.config.queue_named(name).name))

    async def resume_queue_async(self, name: str) -> None:
        """The same for asyncio code."""
        await self.broker.run_async(partial(resume_queue, self.config.queue_named(name).name))

    def worker_states(self, worker_id: str | None = None) -> list[WorkerState]:
        """The newest health snapshot of every worker, or the history of one, newest first."""
        return self.broker.run(partial(get_worker_states, worker_id))

    async def worker_states_async(self, worker_id: str | None = None) -> list[WorkerState]:
        """The same for asyncio code."""
        return await self.broker.run_async(partial(get_worker_states, worker_id))

    @property
    def is_embedded(self) -> bool:
        """Nothing is configured: the embedded PostgreSQL serves this app."""
        return self._configured_database() is None

    def close(self) -> None:
        """Close the connections of this process. They are made anew if the app is used again."""
        if self._broker is not None:
            self._broker.close()

    async def close_async(self) -> None:
        """The same, and the pool of the running event loop with it."""
        if self._broker is not None:
            await self._broker.close_async()


def _embedded_database() -> PostgresConfig:
    from horsies.dev.embedded import embedded_database_url  # noqa: PLC0415 - an extra; only when nothing is configured

    return PostgresConfig(database_url=embedded_database_url())


def _name_problems(name: str) -> Iterator[str]:
    if len(name) > MAX_NAME or not name.isprintable():
        yield f"its name has {len(name)} characters or an unprintable one; choose a name of 1 to {MAX_NAME} printable characters"


def _checked_hook(hook: object) -> Hook:
    if not callable(hook):
        raise TaskDefinitionError(f"a hook must be a function, not {hook!r}; write @app.on_child_start above a def")
    try:
        inspect.signature(hook).bind()
    except TypeError:
        raise TaskDefinitionError(
            f"hook {getattr(hook, '__qualname__', hook)} needs arguments, but hooks are called without any; give them defaults"
        ) from None
    return hook
