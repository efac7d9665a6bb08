"""Make a blocking method and an asyncio method from one description of what to send to the database."""

from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

from horsies.db.broker import PostgresBroker
from horsies.db.statement import Op

P = ParamSpec("P")
T = TypeVar("T")
Verb: TypeAlias = Callable[[], Op[T]]
"""Makes an operation, and another one for each attempt. It must be safe to run twice: it is repeated if the first answer was lost."""


class HasBroker(Protocol):
    @property
    def broker(self) -> PostgresBroker: ...


S = TypeVar("S", bound=HasBroker)


class operation(Generic[S, P, T]):  # noqa: N801 - used as a decorator
    """The blocking method. The decorated method returns the verb; `for_asyncio` is the other method."""

    def __init__(self, method: Callable[Concatenate[S, P], Verb[T]]) -> None:
        self._method = method
        self.for_asyncio = AsyncOperation(method)
        update_wrapper(self, method)  # pyright: ignore[reportArgumentType] - for its name and docstring

    def __get__(self, instance: S, _owner: type[S]) -> Callable[P, T]:
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            verb = self._method(instance, *args, **kwargs)
            return instance.broker.run(verb, again=verb)

        return run


class AsyncOperation(Generic[S, P, T]):
    """The same for asyncio code."""

    def __init__(self, method: Callable[Concatenate[S, P], Verb[T]]) -> None:
        self._method = method

    def __get__(self, instance: S, _owner: type[S]) -> Callable[P, Coroutine[Any, Any, T]]:
        async def run(*args: P.args, **kwargs: P.kwargs) -> T:
            verb = self._method(instance, *args, **kwargs)
            return await instance.broker.run_async(verb, again=verb)

        return run
