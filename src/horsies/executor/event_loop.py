"""The event loop of a child, made when something first runs on it: a child that only runs functions never loads asyncio."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar

from horsies.executor.os_process import exit_copy

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine
    from contextvars import Context

T = TypeVar("T")


class ChildEventLoop:
    """One for the whole life of the child, so that what a hook opens on it serves the tasks."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    @property
    def is_made(self) -> bool:
        return self._runner is not None

    def get(self) -> asyncio.AbstractEventLoop:
        if self._runner is None:
            import asyncio  # noqa: PLC0415 - see above

            self._runner = asyncio.Runner()
        return self._runner.get_loop()

    def run(self, coroutine: Coroutine[Any, Any, T], *, context: Context | None = None) -> T:
        self.get()
        assert self._runner is not None  # noqa: S101 - it has just been made
        return self._runner.run(coroutine, context=context)

    def end_in_copy(self) -> None:
        """In a copy of this process that a coroutine has forked: when it awaits, nothing else of what ran here may go on in it."""
        if self._runner is None:
            return
        loop = self._runner.get_loop()
        ready: Any = getattr(
            loop, "_ready", None
        )  # there is no public way; a loop of another make may do one more step
        if ready is not None:
            ready.clear()
        with suppress(
            RuntimeError
        ):  # in debug mode a loop minds on which thread it is called; then it is not the one that forked
            loop.call_soon(exit_copy, RuntimeError("a process that a task has forked cannot go on with its event loop"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._runner is not None:
            self._runner.close()
