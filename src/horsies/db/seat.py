"""Where a waiter sits: how a thread, or a coroutine, sleeps until it is rung, and how it reads when it is the clerk."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from horsies.db.desk import Read, Rest


class BlockingSeat:
    """For a thread."""

    def __init__(self, read: Callable[[Read[Any]], Any]) -> None:
        self._read = read
        self._bell = threading.Event()

    def ring(self) -> None:
        self._bell.set()

    def __call__(self, step: Rest | Read[Any]) -> Any:
        if isinstance(step, Read):
            return self._read(step)
        self._bell.wait(step.timeout_s)
        self._bell.clear()
        return None


class AwaitingSeat:
    """For a coroutine; belongs to its event loop."""

    def __init__(self, read: Callable[[Read[Any]], Awaitable[Any]]) -> None:
        self._read = read
        self._bell = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def ring(self) -> None:
        with suppress(RuntimeError):  # the loop was closed while this waiter was being thrown away
            self._loop.call_soon_threadsafe(self._bell.set)

    async def __call__(self, step: Rest | Read[Any]) -> Any:
        if isinstance(step, Read):
            return await self._read(step)
        with suppress(TimeoutError):
            async with asyncio.timeout(step.timeout_s):
                await self._bell.wait()
        self._bell.clear()
        return None
