"""Plain functions are read without `inspect`, with the same result."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from horsies import TaskError, TaskResult
from horsies.model.signature import (
    is_coroutine_function,
    is_simple,
    parameters_by_inspect,
    parameters_of,
    takes_no_arguments,
)

Result = TaskResult[int, TaskError]


def nothing() -> Result: ...
def places(a: int, b: "str", c: float = 1.0, d: Any = None) -> Result: ...
def names(*, a: int, b: list[int] | None = None, c: str) -> Result: ...
def both(a: Any, b: int = 1, *, c: Any, d: "dict[str, int] | None" = None) -> Result: ...
async def coroutine(a: int) -> Result: ...
def with_locals(a: int) -> Result:
    b = a
    return TaskResult(ok=b)


def rest(a: int, *others: int) -> Result: ...
def options(a: int, **others: int) -> Result: ...
def only_places(a: int, /, b: int) -> Result: ...


@functools.wraps(places)
def wrapper(*args: Any, **kwargs: Any) -> Result: ...


class Callee:
    def __call__(self, a: int) -> Result: ...
    async def method(self, a: int) -> Result: ...
    async def bare(self) -> Result: ...


bare: Any = lambda a, b=1: (a, b)  # noqa: E731  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType] - without annotations
SIMPLE: list[Callable[..., Any]] = [nothing, places, names, both, coroutine, with_locals, bare]
OTHERS: list[Callable[..., Any]] = [
    rest,
    options,
    only_places,
    wrapper,
    Callee(),
    Callee().method,
    Callee().bare,
    functools.partial(places, 1),
    functools.partial(coroutine, 1),
]


def shown(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


@pytest.mark.parametrize("fn", SIMPLE, ids=shown)
def test_a_plain_function_is_read_as_inspect_reads_it(fn: Callable[..., Any]) -> None:
    assert is_simple(fn)
    assert parameters_of(fn) == parameters_by_inspect(fn)


@pytest.mark.parametrize("fn", OTHERS, ids=shown)
def test_other_callables_are_left_to_inspect(fn: Callable[..., Any]) -> None:
    assert not is_simple(fn)


@pytest.mark.parametrize("fn", [*SIMPLE, *OTHERS], ids=shown)
def test_coroutine_functions_are_recognized(fn: Callable[..., Any]) -> None:
    assert is_coroutine_function(fn) == inspect.iscoroutinefunction(fn)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [(nothing, True), (places, False), (Callee().bare, True), (Callee().method, False), (lambda a=1: a, True)],
    ids=lambda each: each if isinstance(each, bool) else shown(each),
)
def test_callables_without_required_arguments_are_recognized(fn: Any, expected: bool) -> None:  # noqa: FBT001
    assert takes_no_arguments(fn) is expected
