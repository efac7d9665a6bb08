"""Register what an app consists of: its tasks, its workflows and the hooks of its children. Each is checked when it is defined."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

from horsies.db.broker import PostgresBroker
from horsies.events import Tracer
from horsies.model.codec import ArgumentsCodec, ResultCodec
from horsies.model.config import DEFAULT_APP_NAME, AppConfig, QueueMode
from horsies.model.error_codes import ErrorCodes, ExceptionMap, code_problems, mapper_problems
from horsies.model.errors import TaskDefinitionError
from horsies.model.graph import OnError
from horsies.model.other_queues import APP_NAMES, TASK_OPTIONS, explain_missing, explain_options
from horsies.model.payload_errors import PayloadSizeCheck
from horsies.model.result import TaskError, TaskFailure, TaskResult
from horsies.model.retry_policy import RetryPolicy
from horsies.model.signature import is_coroutine_function, ok_type
from horsies.model.validation import instance_problems, name_problems, number_problems
from horsies.tasks.handle import CallerTransactions
from horsies.tasks.middleware import Middleware, MiddlewareFunction, TaskKind, middleware_from
from horsies.tasks.nodes import AnyNode, SuccessPolicy, WorkflowDraft, WorkflowNode
from horsies.tasks.sender import environment_suppresses_sends
from horsies.tasks.task import AsyncTask, BaseTask, Task
from horsies.workflows.definition import WorkflowSpec, build_spec

MAX_TIMEOUT_MS = 24 * 24 * 3600 * 1000  # 24 days, which fits into an integer of PostgreSQL

P = ParamSpec("P")
T = TypeVar("T")
OnErrorWord: TypeAlias = Literal["fail", "pause"]
Hook: TypeAlias = Callable[[], object]
AnyHook = TypeVar("AnyHook", bound=Hook)
AnyMiddleware = TypeVar("AnyMiddleware", bound=MiddlewareFunction)


class TaskDecorator(Protocol):
    """The type of `@app.task(...)`: it keeps the signature of the function and adds the methods of a task."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]]) -> AsyncTask[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, TaskResult[T, TaskError]]) -> Task[P, T]: ...


class FailureTask(Protocol):
    """A task that can be called with a failure alone."""

    name: str

    def __call__(self, failure: TaskFailure, /) -> Any: ...


class Registry:
    """The part of an app that is defined when its modules are imported. It needs no database."""

    def __init__(self, config: AppConfig) -> None:
        self.config = config
        self.locator: str | None = None
        """`module:attribute`, after this app was found by a locator."""
        self.child_locator: str | None = None
        """Where children find this app, if it is made by a framework and not at the top level of a module of the user."""
        self.tracer: Tracer | None = None
        self.transactions: CallerTransactions | None = None
        """Finds the open transaction of the caller's framework, for sends without a `connection`."""
        self.suppresses_sends = environment_suppresses_sends()
        """Whether sends and starts of workflows enqueue nothing and return inert handles."""
        self._tasks: dict[str, BaseTask[..., Any]] = {}
        self._aliases: dict[str, BaseTask[..., Any]] = {}
        self._defined_by: dict[str, Callable[[], CodeType | None]] = {}
        """By task name: the execution of the module that defined it, as long as it runs."""
        self.task_modules: tuple[str, ...] = ()
        """The modules given to `discover_tasks`, in that order."""
        self.child_start_hooks: tuple[Hook, ...] = ()
        self.child_stop_hooks: tuple[Hook, ...] = ()
        """Both in the order they run: the last stop hook defined runs first."""
        self.middlewares: tuple[Middleware, ...] = ()
        """The outermost first."""

    @property
    def broker(self) -> PostgresBroker:
        """Return the broker that tasks of this app are sent with."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Return the name under which schedules and workers of this app are stored: `AppConfig.name`, or else its locator."""
        return self.config.name or self.locator or DEFAULT_APP_NAME

    def suppress_sends(self, suppressed: bool = True) -> None:  # noqa: FBT001, FBT002 - suppress_sends(False) reads well
        """Enqueue nothing in this process from now on: sends and starts of workflows return inert handles, whose `get()` raises `SendSuppressed`.

        `suppress_sends(False)` ends it, even if $HORSIES_SUPPRESS_SENDS is set. Tasks that schedulers enqueue are not affected.
        """
        self.suppresses_sends = suppressed

    # -- tasks and workflows

    @explain_options("@app.task", TASK_OPTIONS, TaskDefinitionError)
    def task(  # noqa: PLR0913 - the options of a task
        self,
        name: str = "",
        *,
        task_name: str = "",
        queue_name: str | None = None,
        retry_policy: RetryPolicy | None = None,
        timeout_ms: int | None = None,
        exception_mapper: Mapping[type[BaseException], str] | None = None,
        default_unhandled_error_code: str | None = None,
        aliases: Sequence[str] = (),
        sensitive: bool = False,
        keep_logs: bool | None = None,
        on_failure: str | FailureTask | None = None,
    ) -> TaskDecorator:
        """Make a function a task. Its return annotation must be `TaskResult[T, TaskError]`. `task_name` is another way to give the name.

        `exception_mapper` maps exceptions that it raises to error codes, and has precedence over the mapper of the app. Other exceptions
        get `default_unhandled_error_code`, or else that of the app. `aliases` are former names of the task: this function also runs
        what was sent under them.

        `sensitive` hides the arguments, results and errors of the task in the CLI, in the dashboard and in logs. `keep_logs` stores what the task logs with
        its attempts; the default is that of the app, `AppConfig.keep_logs`.

        `on_failure` is a task, or its name, that is enqueued with a `TaskFailure` in the transaction in which this one finally fails.
        """
        if name and task_name:
            raise TaskDefinitionError(f"a task has one name: give {name!r} or task_name={task_name!r}, not both")
        name = name or task_name
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance] - `@app.task` without a call
            suggested = getattr(name, "__name__", "resize")
            raise TaskDefinitionError(
                f'a task needs an explicit name, under which the database stores it: write @app.task("{suggested}")'
            )
        mapper, code = exception_mapper, default_unhandled_error_code
        if problems := list(_task_problems(name, timeout_ms, retry_policy, aliases, mapper, code)):
            raise TaskDefinitionError(f"task {name!r}: {'; '.join(problems)}")
        flags = {"sensitive": sensitive, "keep_logs": self.config.keep_logs if keep_logs is None else keep_logs}
        if problems := [each for flag in flags.items() for each in instance_problems(*flag, bool, "True")]:
            raise TaskDefinitionError(f"task {name!r}: {'; '.join(problems)}")
        if on_failure is not None and (not isinstance(on_failure, str | BaseTask) or on_failure == ""):
            raise TaskDefinitionError(f"task {name!r}: on_failure is {on_failure!r}; give a task, or the name of one")
        error_codes = ErrorCodes(
            of_task=ExceptionMap(mapper),
            of_app=ExceptionMap(self.config.exception_mapper),
            default=str(code or self.config.default_unhandled_error_code),
        )

        def decorate(function: Callable[..., Any]) -> BaseTask[..., Any]:
            _check_function(name, function)
            self._check_not_defined(name, function)
            self._check_aliases(name, aliases)
            arguments_size = PayloadSizeCheck(f"the arguments of task {name!r}", self.config.payload_limits)
            result_size = PayloadSizeCheck(f"the result of task {name!r}", self.config.payload_limits)
            kind = cast("type[BaseTask[..., Any]]", AsyncTask if is_coroutine_function(function) else Task)
            task = self._tasks[name] = kind(
                function,
                name=name,
                queue_name=self._queue_for(name, queue_name),
                arguments=ArgumentsCodec(function, arguments_size),
                result=ResultCodec[Any](ok_type(function), result_size),
                app=self,
                error_codes=error_codes,
                retry_policy=retry_policy,
                timeout_ms=timeout_ms,
                on_failure=on_failure,
                **flags,
            )
            others = {alias: other for alias, other in self._aliases.items() if other.name != name}
            self._aliases = others | dict.fromkeys(aliases, task)
            self._defined_by[name] = _module_execution(function)
            return task

        return cast("TaskDecorator", decorate)

    def _check_not_defined(self, name: str, function: Callable[..., Any]) -> None:
        """Raise if another function has this name. A function replaces itself when its module is executed again, by `importlib.reload`
        or because a script is also imported by its name.
        """
        if name not in self._tasks:
            return
        other = self._tasks[name].function
        execution, earlier = _module_execution(function)(), self._defined_by[name]()
        is_same = _source_of(function) is not None and _source_of(function) == _source_of(other)
        if is_same and execution is not None and execution is not earlier:
            return
        raise TaskDefinitionError(
            f"two tasks are named {name!r}: {other.__module__}.{other.__qualname__} and "
            f"{function.__module__}.{function.__qualname__}; rename one of them"
        )

    def _check_aliases(self, name: str, aliases: Sequence[str]) -> None:
        """Raise if the name or an alias belongs to another task."""
        owner = self._aliases.get(name)
        if owner is not None and owner.name != name:
            raise TaskDefinitionError(
                f"task {name!r} has the name that task {owner.name!r} lists in its aliases; remove it there, or rename this task"
            )
        for alias in aliases:
            other = self.known_tasks.get(alias)
            if other is not None and other.name != name:
                raise TaskDefinitionError(
                    f"task {name!r} lists {alias!r} in its aliases, which is a name of task {other.name!r}; remove it from one of them"
                )

    def _queue_for(self, task_name: str, queue_name: str | None) -> str:
        names = [queue.name for queue in self.config.queues]
        if self.config.queue_mode is QueueMode.DEFAULT:
            if queue_name is not None:
                raise TaskDefinitionError(
                    f"task {task_name!r} names queue {queue_name!r}, but this app has only the default queue; "
                    "leave queue_name out, or configure queue_mode=QueueMode.CUSTOM and custom_queues"
                )
            return names[0]
        if queue_name not in names:
            problem = "names no queue" if queue_name is None else f"names an unknown queue {queue_name!r}"
            raise TaskDefinitionError(f"task {task_name!r} {problem}; set queue_name to one of {', '.join(names)}")
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
    ) -> WorkflowSpec[dict[str, TaskResult[Any, TaskError]]]: ...
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
        """Define a workflow of these nodes. All problems with it are raised here, together; nothing is started.

        Its value is that of `output`, or, without one, the results of its last nodes by their ids. `time_limit`, in seconds or a timedelta, counts from its start.
        """
        draft = WorkflowDraft(
            name=name,
            nodes=tasks,
            output=output,
            on_error=on_error,
            success_policy=success_policy,
            time_limit=time_limit,
            definition_key=definition_key,
        )
        return build_spec(self, draft)

    @property
    def tasks(self) -> Mapping[str, BaseTask[..., Any]]:
        """Return the registered tasks by name."""
        return MappingProxyType(self._tasks)

    @property
    def known_tasks(self) -> Mapping[str, BaseTask[..., Any]]:
        """Return the registered tasks by every name under which they may have been sent, including aliases."""
        return {**self._aliases, **self._tasks}

    def discover_tasks(self, modules: Sequence[str]) -> None:
        """List the modules with tasks: dotted names or `.py` paths, or patterns of either. Workers and their children import them.

        `"myapp.*.tasks"` and `"jobs/*.py"` stand for all that match, sorted by name. A pattern that matches nothing is an error.
        """
        if isinstance(modules, str):
            raise TaskDefinitionError(f"discover_tasks takes a list: discover_tasks([{modules!r}])")
        self.task_modules = tuple(dict.fromkeys((*self.task_modules, *modules)))

    # -- hooks

    def on_child_start(self, hook: AnyHook) -> AnyHook:
        """Run this once in every child of a worker, after the imports and before its first task: pools, clients, models.

        `def` or `async def`, without parameters; an `async def` runs on the event loop that the child's tasks run on.
        """
        _check_hook(hook)
        self.child_start_hooks += (hook,)
        return hook

    def on_child_stop(self, hook: AnyHook) -> AnyHook:
        """Run this once in every child before it exits; the last one defined runs first. Not run when a child is killed."""
        _check_hook(hook)
        self.child_stop_hooks = (hook, *self.child_stop_hooks)
        return hook

    # -- middleware

    @overload
    def middleware(self, function: AnyMiddleware, /) -> AnyMiddleware: ...
    @overload
    def middleware(self, /, *, around: TaskKind) -> Callable[[AnyMiddleware], AnyMiddleware]: ...
    def middleware(
        self, function: MiddlewareFunction | None = None, /, *, around: TaskKind = "all"
    ) -> MiddlewareFunction | Callable[[Any], Any]:
        """Run this generator function around each attempt of every task, in the child that runs it. The first one defined is the outermost.

        It is called with the current task. Its `yield` returns the result of the task, or raises what the task raised. An async generator
        runs around `async def` tasks only: `around="async"`. A task that is called directly runs without middleware.
        """

        def decorate(given: Any) -> Any:
            self.middlewares += (middleware_from(given, around),)
            return given

        return decorate if function is None else decorate(function)

    if not TYPE_CHECKING:
        __getattr__ = explain_missing(APP_NAMES)


def _module_execution(function: Callable[..., Any]) -> Callable[[], CodeType | None]:
    """Return a weak reference to the code of the module of this function, if the module is being executed.

    Each execution has its own code object. This distinguishes a function that is defined twice in one execution from one that
    is defined again by the next.
    """
    namespace = getattr(inspect.unwrap(function), "__globals__", None)
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is namespace and frame.f_code.co_name == "<module>":
            return weakref.ref(frame.f_code)
        frame = frame.f_back
    return lambda: None


def _source_of(function: Callable[..., Any]) -> tuple[str, str] | None:
    """Return the file and the qualified name; None if it is not a function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else (os.path.realpath(code.co_filename), function.__qualname__)


def _task_problems(
    name: str, timeout_ms: int | None, retry_policy: object, aliases: object, mapper: object, code: object
) -> Iterator[str]:
    yield from name_problems("its name", name)
    if timeout_ms is not None:
        yield from number_problems("timeout_ms", timeout_ms, 1, MAX_TIMEOUT_MS)
    if retry_policy is not None:
        yield from instance_problems("retry_policy", retry_policy, RetryPolicy, "RetryPolicy.fixed(...)")
    yield from _alias_problems(name, aliases)
    yield from mapper_problems("exception_mapper", {} if mapper is None else mapper)
    if code is not None:
        yield from code_problems("default_unhandled_error_code", code)


def _alias_problems(name: str, aliases: object) -> Iterator[str]:
    if isinstance(aliases, str) or not isinstance(aliases, list | tuple | set | frozenset):
        yield f"aliases is {aliases!r}; give a list of names, such as aliases=['old_name']"
        return
    for alias in cast("Sequence[object]", aliases):
        if not isinstance(alias, str) or not alias:
            yield f"aliases has {alias!r}; a name is a string that is not empty"
        elif alias == name:
            yield f"aliases has {alias!r}, which is the name of the task itself; remove it"
        else:
            yield from name_problems("an alias", alias)


def _check_function(name: str, function: Callable[..., Any]) -> None:
    """Refuse what cannot be called with the arguments of a task alone, or does not return once."""
    path = getattr(function, "__qualname__", "").split(".")
    if (
        isinstance(function, classmethod | staticmethod)
        or inspect.ismethod(function)
        or (len(path) > 1 and path[-2] != "<locals>")
    ):
        raise TaskDefinitionError(
            f"task {name!r}: {'.'.join(path)} belongs to a class; write a function outside of it that takes what it needs, such as an id, "
            "and calls the method"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TaskDefinitionError(
            f"task {name!r}: {'.'.join(path)} is a generator function, but a task returns once: return a list, "
            "send a task for each item, or report progress with current_task().progress(...)"
        )


def _check_hook(hook: object) -> None:
    if not callable(hook):
        raise TaskDefinitionError(f"a hook must be a function, not {hook!r}; write @app.on_child_start above a def")
    try:
        inspect.signature(hook).bind()
    except TypeError:
        raise TaskDefinitionError(
            f"hook {getattr(hook, '__qualname__', hook)} needs arguments, but hooks are called without any; give them defaults"
        ) from None
