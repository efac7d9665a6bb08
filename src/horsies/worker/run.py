"""A worker from its start to its exit. The order of the `async with` below is the order of the shutdown, reversed."""

import asyncio
import logging
import os
import random
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from horsies.app import Horsies
from horsies.child.wire import Boot
from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.model.config import AppConfig
from horsies.model.errors import BrokerError, HorsiesError
from horsies.worker.books import Books
from horsies.worker.frames import Frames
from horsies.worker.heartbeat import Heartbeat
from horsies.worker.marks import Marks
from horsies.worker.member import Member
from horsies.worker.pool import Pool
from horsies.worker.pump import Pump

TURNS_AT_MOST = 4

log = logging.getLogger("horsies.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How one worker runs; what it runs is the app's business."""

    app: str
    processes: int
    loglevel: str = "INFO"


def run_worker(app: Horsies, options: WorkerOptions) -> None:
    """Run until SIGTERM or SIGINT, and until what was running then has ended. Raises why it could not go on."""
    open_database(app.broker, app.config)
    try:
        asyncio.run(_run(app, options))
    except* HorsiesError as group:
        raise _first(group) from None
    finally:
        app.close()


def open_database(broker: PostgresBroker, config: AppConfig) -> None:
    """Wait for the database if it must be, and bring its schema up to date."""
    attempt, limit = 0, config.resilience.db_retry_max_attempts
    while True:
        try:
            applied = broker.migrate()
        except BrokerError as error:
            if not error.retryable or (limit and attempt >= limit):
                raise
            delay_s = config.resilience.delay_ms(attempt, random.uniform(-1, 1)) / 1000  # noqa: S311 - jitter
            log.warning("the database cannot be reached, trying again in %.1f s: %s", delay_s, error)
            time.sleep(delay_s)
            attempt += 1
        else:
            if applied:
                log.info("migrations applied: %s", ", ".join(applied))
            return


async def _run(app: Horsies, options: WorkerOptions) -> None:
    worker, database = str(uuid4()), app.broker.config
    queues = [queue.name for queue in app.config.queues]
    roster: list[Member] = []
    books = Books(
        worker=worker,
        statement_timeout_ms=database.statement_timeout_ms,
        lease_ms=app.config.lease_ms,
        roster=roster,
        frames=Frames(app.config.prefetch_buffer, options.processes),
        marks=Marks(queues),
    )
    log.info("Concurrency config: processes=%d, prefetch_buffer=%s", options.processes, app.config.prefetch_buffer)
    stop, in_doubt = asyncio.Event(), asyncio.Event()
    with _signals(stop, roster):
        async with asyncio.TaskGroup() as group:
            pump = Pump(
                group,
                books,
                database=database,
                resilience=app.config.resilience,
                turns=min(TURNS_AT_MOST, options.processes),
                in_doubt=in_doubt.set,
            )
            heartbeat = Heartbeat(
                group,
                worker,
                database=database,
                resilience=app.config.resilience,
                processes=options.processes,
                queues=queues,
                in_doubt=in_doubt,
                pump=pump,
            )
            pool = Pool(
                group,
                roster,
                pump,
                processes=options.processes,
                boot=Boot(options.app, options.loglevel),
                # The embedded server is found once, by us: children that send must not look for it on their own.
                env={"HORSIES_DATABASE_URL": database.database_url} if app.is_embedded else {},
            )
            async with heartbeat, pool, pump:
                with _hearing(app.broker, pump):
                    log.info("worker %s is ready on queues %s (pid %d)", worker, ", ".join(queues), os.getpid())
                    await stop.wait()
                    log.info("stopping: no more claims, waiting for what runs")
                    await pump.drain()
    log.info("stopped")


@contextmanager
def _hearing(broker: PostgresBroker, pump: Pump) -> Generator[None]:
    """Notifications reach the pump on its event loop."""
    loop = asyncio.get_running_loop()

    def bell(payload: str | None) -> None:
        loop.call_soon_threadsafe(pump.heard, payload)

    broker.listener().subscribe(Channel.NEW, None, bell)
    try:
        yield
    finally:
        broker.listener().unsubscribe(Channel.NEW, None, bell)


@contextmanager
def _signals(stop: asyncio.Event, roster: list[Member]) -> Generator[None]:
    """The first signal asks; a second one kills the children, and what they ran ends as crashed."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            log.warning("second signal: killing the children")
            for member in roster:
                member.kill()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _first(group: BaseExceptionGroup[HorsiesError]) -> HorsiesError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
