"""A link with a thread of its own, for a service on an event loop that nobody else may hold up."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import psycopg

from horsies.db.link import Link
from horsies.db.op import Op
from horsies.model.config import PostgresConfig

FAREWELL_S = 3.0

T = TypeVar("T")


class Aside:
    """Used by one event loop, one verb at a time."""

    def __init__(self, config: PostgresConfig, purpose: str) -> None:
        self._link = Link(config, purpose)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"horsies-{purpose}")

    async def run(self, op: Op[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._link.run, op)

    @property
    def own_session(self) -> int | None:
        """See `Link`. Between two verbs."""
        return self._link.own_session

    async def close(self, farewell: Op[object] | None) -> None:
        """Say this, if the server still listens. One that is silent is not waited for: a worker that was told to leave leaves."""
        try:
            if farewell is not None:
                with suppress(psycopg.Error, TimeoutError):
                    async with asyncio.timeout(FAREWELL_S):
                        await self.run(farewell)
        finally:
            self._link.cut()
            self._thread.submit(self._link.close)
            self._thread.shutdown(wait=False)  # what is left to do it does, and ends, also if we are cancelled now
        await asyncio.to_thread(self._thread.shutdown)
