"""Middleware: generator functions that run around each attempt of a task. Checked when they are defined; `executor/around.py` runs them."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from horsies.model.errors import TaskDefinitionError
from horsies.tasks.current_task import CurrentTask

MiddlewareFunction: TypeAlias = Callable[[CurrentTask], Iterator[None] | AsyncIterator[None]]
TaskKind: TypeAlias = Literal["all", "def", "async"]


@dataclass(frozen=True, slots=True)
class Middleware:
    """A generator function with one `yield`, and the kind of tasks that it runs around."""

    name: str
    function: Callable[[CurrentTask], Any]
    is_async: bool
    around: TaskKind

    def applies_to(self, *, is_async: bool) -> bool:
        return self.around in ("all", "async" if is_async else "def")


def middleware_from(function: object, around: object) -> Middleware:
    """Check a middleware. Raises TaskDefinitionError."""
    name = getattr(function, "__qualname__", repr(function))
    is_async = inspect.isasyncgenfunction(function)
    if around not in get_args(TaskKind):
        raise TaskDefinitionError(f'middleware {name}: around is {around!r}; give "all", "def" or "async"')
    if not callable(function) or not (is_async or inspect.isgeneratorfunction(function)):
        raise TaskDefinitionError(
            f"middleware {name} is not a generator function; write @app.middleware above a function with one `yield`, "
            "and inside it `with manager: yield` for a context manager"
        )
    if is_async and around != "async":
        raise TaskDefinitionError(
            f"middleware {name} is async, so it can only run around `async def` tasks; write "
            '@app.middleware(around="async"), and another one with around="def" if the other tasks need it too'
        )
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        raise TaskDefinitionError(
            f"middleware {name} is called with one argument, the current task; write `def {name}(task: CurrentTask)`"
        ) from None
    return Middleware(name, function, is_async, around)  # pyright: ignore[reportArgumentType] - checked above
