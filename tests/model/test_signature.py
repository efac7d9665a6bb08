"""What can be a task or a hook: plain functions, methods, partials and objects that can be called."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from horsies import Horsies, TaskDefinitionError, TaskError, TaskResult
from horsies.model.codec import ArgumentsCodec

Result = TaskResult[int, TaskError]


def nothing() -> Result: ...
def places(a: int, b: "str", c: float = 1.0, d: Any = None) -> Result: ...


@functools.wraps(places)
def wrapper(*args: Any, **kwargs: Any) -> Result: ...


class Callee:
    def __call__(self, a: int) -> Result: ...
    async def method(self, a: int) -> Result: ...
    async def bare(self) -> Result: ...


def shown(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


@pytest.mark.parametrize(
    ("fn", "args", "payload"),
    [
        (nothing, (), "{}"),
        (places, (1, "x"), '{"a":1,"b":"x"}'),
        (wrapper, (1, "x"), '{"a":1,"b":"x"}'),
        (Callee(), (1,), '{"a":1}'),
        (Callee().method, (1,), '{"a":1}'),
        (functools.partial(Callee().method, 1), (), "{}"),
    ],
    ids=lambda each: shown(each) if callable(each) else "",
)
def test_the_parameters_of_every_kind_of_callable_are_found(
    fn: Callable[..., Any], args: tuple[Any, ...], payload: str
) -> None:
    codec = ArgumentsCodec(fn)
    assert codec.encode(args, {}) == payload


@pytest.mark.parametrize("hook", [nothing, Callee().bare, lambda a=1: a], ids=shown)
def test_a_hook_can_be_called_without_arguments(hook: Any) -> None:
    assert Horsies().on_child_start(hook) is hook


@pytest.mark.parametrize("hook", [places, Callee().method], ids=shown)
def test_a_hook_that_needs_arguments_is_refused(hook: Any) -> None:
    with pytest.raises(TaskDefinitionError, match="needs arguments"):
        Horsies().on_child_start(hook)
