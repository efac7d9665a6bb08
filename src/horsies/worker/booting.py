"""Watching a process load the app: it says what it is at, and is given up when it takes too long."""

import asyncio
import logging
from typing import Protocol

WARN_AFTER_S = 10.0

log = logging.getLogger("horsies.worker")


class Boots(Protocol):
    """A process that loads the app."""

    ready: asyncio.Event
    doing: str
    refusal: str | None

    @property
    def pid(self) -> int: ...
    def kill(self) -> None: ...


async def see_it_boot(process: Boots, timeout_s: float) -> None:
    """Returns when it is ready. One that is not in time is killed, and its refusal says why."""
    try:
        async with asyncio.timeout(timeout_s):
            try:
                async with asyncio.timeout(WARN_AFTER_S):
                    await process.ready.wait()
            except TimeoutError:
                log.warning("child %d is not ready after %g s: it is %s", process.pid, WARN_AFTER_S, process.doing)
                await process.ready.wait()
    except TimeoutError:
        process.refusal = f"the child was not ready within {timeout_s:g} s: it was {process.doing}"
        process.kill()
