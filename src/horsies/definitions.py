"""What an application consists of: its tasks, its workflows, the hooks of its children. Checked as it is defined.

Every child of a worker loads this: what only workflows need is loaded by the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from horsies.model.annotations import is_coroutine_function, ok_type, takes_nothing
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.config import DEFAULT_APP_NAME, AppConfig, QueueMode
from horsies.model.errors import TaskDefinitionError
from horsies.model.mapper import ErrorCodes, ExceptionMap, mapper_problems
from horsies.model.problems import instance_problems, number_problems
from horsies.model.retry import RetryPolicy
from horsies.model.sizes import SizeWatch
from horsies.tasks.suppress import environment_suppresses_sends
from horsies.tasks.task import AsyncTask, Sendable, Task

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence
    from datetime import timedelta

    from horsies.db.broker import PostgresBroker
    from horsies.events import Tracer
    from horsies.model.graph import OnError
    from horsies.model.result import TaskError, TaskResult
    from horsies.tasks.node import AnyNode, WorkflowNode
    from horsies.workflows.draft import SuccessPolicy
    from horsies.workflows.spec import WorkflowSpec

MAX_NAME = 200
MAX_TIMEOUT_MS = 24 * 24 * 3600 * 1000  # fits an integer of PostgreSQL

P = ParamSpec("P")
T = TypeVar("T")
OnErrorWord: TypeAlias = Literal["fail", "pause"]
Hook: TypeAlias = Callable[[], object]
AnyHook = TypeVar("AnyHook", bound=Hook)  # by a name in quotes it would be compiled, for 2 ms of a child's start


class TaskDecorator(Protocol):
    """What `@app.task(...)` is: keeps the signature, adds the verbs."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]]) -> AsyncTask[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, TaskResult[T, TaskError]]) -> Task[P, T]: ...


class Definitions:
    """The half of an app that is written down when its modules are imported; nothing here needs a database."""

    def __init__(self, config: AppConfig) -> None:
        self.config = config
        self.locator: str | None = None
        """`module:attribute`, once this app was found by a locator."""
        self.tracer: Tracer | None = None
        self.suppresses_sends = environment_suppresses_sends()
        """Sends and starts of workflows enqueue nothing, and return inert handles."""
        self._tasks: dict[str, Sendable[..., Any]] = {}
        self._task_modules: list[str] = []
        self._child_start_hooks: list[Hook] = []
        self._child_stop_hooks: list[Hook] = []

    @property
    def broker(self) -> PostgresBroker:
        """Where what is defined here is sent to."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name that schedules and workers of this app are stored under: `AppConfig.name`, or else its locator."""
        return self.config.name or self.locator or DEFAULT_APP_NAME

    def suppress_sends(self, suppressed: bool = True) -> None:  # noqa: FBT001, FBT002 - suppress_sends(False) reads well
        """Enqueue nothing from now on, in this process: sends and starts of workflows return inert handles, whose `get()` raises `SendSuppressed`.

        `suppress_sends(False)` ends it, also where $HORSIES_SUPPRESS_SENDS is set. What schedulers enqueue is not affected.
        """
        self.suppresses_sends = suppressed

    # -- tasks and workflows

    def task(
        self,
        name: str = "",
        *,
        task_name: str = "",
        queue_name: str | None = None,
        retry_policy: RetryPolicy | None = None,
        timeout_ms: int | None = None,
        exception_mapper: Mapping[type[BaseException], str] | None = None,
    ) -> TaskDecorator:
        """Make a function a task. Its return annotation must be `TaskResult[T, TaskError]`. `task_name` is another way to give the name.

        `exception_mapper` gives exceptions that it raises an error code; what it does not know, the app's own may.
        """
        if name and task_name:
            raise TaskDefinitionError(f"a task has one name: give {name!r} or task_name={task_name!r}, not both")
        name = name or task_name
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
        kind = cast("type[Sendable[..., Any]]", AsyncTask if is_coroutine_function(function) else Task)
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
        on_error: OnError | OnErrorWord = "fail",
        success_policy: SuccessPolicy | None = None,
        time_limit: float | timedelta | None = None,
        definition_key: str | None = None,
    ) -> WorkflowSpec[Any]:
        """A workflow of these nodes. Everything that is wrong with it is reported here, together; nothing is started.

        Its value is that of `output`. `time_limit` is in seconds or a timedelta, from its start.
        """
        from horsies.tasks.node import listed
        from horsies.workflows.draft import Draft
        from horsies.workflows.spec import specify

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
        """Where the tasks are: dotted modules or `.py` paths, or patterns of either. Workers and their children import them.

        `"myapp.*.tasks"` and `"jobs/*.py"` stand for all that match, in the order of their names; nothing that matches is an error.
        """
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


def _name_problems(name: str) -> Iterator[str]:
    if len(name) > MAX_NAME or not name.isprintable():
        yield f"its name has {len(name)} characters or an unprintable one; choose a name of 1 to {MAX_NAME} printable characters"


def _checked_hook(hook: object) -> Hook:
    if not callable(hook):
        raise TaskDefinitionError(f"a hook must be a function, not {hook!r}; write @app.on_child_start above a def")
    if not takes_nothing(hook):
        raise TaskDefinitionError(
            f"hook {getattr(hook, '__qualname__', hook)} needs arguments, but hooks are called without any; give them defaults"
        )
    return hook
