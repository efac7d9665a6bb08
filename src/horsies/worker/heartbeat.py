"""The heartbeat: one row says that this incarnation of the worker is alive, for all of its tasks at once.

It has a connection and a thread of its own, so that neither a busy pump nor a long turn can silence it.

Each beat also asks which rows the database thinks are ours. A claim whose COMMIT was answered to nobody shows here as a
stranger; so does a task that ended between the question and the look at our books. The second kind is gone when we look
again, so what is still a stranger at the next beat, which comes soon then, is given back.
"""

import asyncio
import logging
import os
import random
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from types import TracebackType
from typing import Self, TypeVar

from horsies.db.link import Link
from horsies.db.load import load
from horsies.db.op import Op, Query, ask, rows
from horsies.db.trouble import DatabaseError, broker_error
from horsies.model.config import PostgresConfig, WorkerResilienceConfig
from horsies.model.errors import HorsiesError
from horsies.model.task import Claim
from horsies.tasks.claim import as_claims
from horsies.tasks.release import get_held
from horsies.worker.pump import Pump

BEAT_S = 5.0
LOOK_AGAIN_S = 0.2
T = TypeVar("T")

SQL = load(__file__)
log = logging.getLogger("horsies.worker")


class DeclaredDead(HorsiesError):  # noqa: N818 - it says what happened
    """This incarnation is no longer registered: its tasks may belong to others by now."""


class Heartbeat:
    """A service: entering registers the incarnation, leaving strikes it off.

    `in_doubt` asks for a beat as soon as the database answers: something may have been claimed that nobody knows of.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        worker: str,
        *,
        database: PostgresConfig,
        resilience: WorkerResilienceConfig,
        processes: int,
        queues: Sequence[str],
        in_doubt: asyncio.Event,
        pump: Pump,
    ) -> None:
        self._group = group
        self._worker = worker
        self._resilience = resilience
        self._processes = processes
        self._queues = queues
        self._pump = pump
        self._strangers: frozenset[Claim] = frozenset()
        self._link = Link(database, "heartbeat")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="horsies-heartbeat")
        self._in_doubt = in_doubt

    async def __aenter__(self) -> Self:
        await self._register()
        self._beating = self._group.create_task(self._beat_for_ever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._beating.cancel()
        # After an error tasks may still be ours by the database's account: the row stays, for whoever recovers them.
        if kind is None:
            with suppress(DatabaseError):
                await self._run(rows(SQL["retire_worker"](id=self._worker)))
        await asyncio.to_thread(self._thread.shutdown)
        self._link.close()

    async def _beat_for_ever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S if self._strangers else BEAT_S):
                    await self._in_doubt.wait()
            self._in_doubt.clear()
            try:
                held = await self._run(self._beat())
            except DatabaseError as error:
                log.debug("a heartbeat failed: %s", broker_error(error))
                await asyncio.sleep(self._resilience.delay_ms(0, random.uniform(-1, 1)) / 1000)  # noqa: S311 - jitter
                self._in_doubt.set()
            else:
                await self._look_for_strangers(held)

    async def _look_for_strangers(self, held: Sequence[Claim]) -> None:
        found = frozenset(await self._pump.strangers(held))
        certain = found & self._strangers
        self._strangers = found - certain
        if certain:
            log.warning("giving back %d tasks whose claim was answered to nobody", len(certain))
            self._pump.release(list(certain))

    def _beat(self) -> Op[Sequence[Claim]]:
        alive, held = yield from ask(SQL["beat"](id=self._worker), get_held(self._worker))
        if not alive:
            raise DeclaredDead(
                "this worker was declared dead and its tasks may run elsewhere by now (was the machine paused, or the "
                "network away?); it stops here, start it again"
            )
        return as_claims(held)

    async def _register(self) -> None:
        """An outage between the first connection and this one is ridden out like any other."""
        attempt, limit = 0, self._resilience.db_retry_max_attempts
        while True:
            try:
                await self._run(rows(self._registration()))
            except DatabaseError as error:
                reason = broker_error(error)
                if not reason.retryable or (limit and attempt >= limit):
                    raise reason from error
                delay_s = self._resilience.delay_ms(attempt, random.uniform(-1, 1)) / 1000  # noqa: S311 - jitter
                log.warning("this worker cannot be registered, trying again in %.1f s: %s", delay_s, reason)
                await asyncio.sleep(delay_s)
                attempt += 1
            else:
                return

    def _registration(self) -> Query:
        return SQL["register_worker"](
            id=self._worker,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            processes=self._processes,
            queues=list(self._queues),
            library_version=version("horsies"),
        )

    async def _run(self, op: Op[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._link.run, op)
