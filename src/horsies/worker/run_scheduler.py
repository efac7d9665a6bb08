"""A scheduler as a process of its own, from its start to its exit."""

import asyncio
import logging
import os
from collections.abc import Sequence

from horsies.app import Horsies
from horsies.schedules.declare import Declared, declared
from horsies.worker.scheduler import Scheduler
from horsies.worker.service import ExitCode, cause_of, open_database, serve, signals

log = logging.getLogger("horsies.scheduler")


def run_scheduler(app: Horsies) -> ExitCode:
    """Run until SIGTERM or SIGINT. Raises why it could not start."""
    schedules = declared(app.config, app.tasks)  # a mistake is told before a database is waited for

    def run() -> ExitCode:
        open_database(app.broker, app.config)
        return asyncio.run(_run(app, schedules))

    return serve(app, run, log)


async def _run(app: Horsies, schedules: Sequence[Declared] | None) -> ExitCode:
    stop = asyncio.Event()
    if schedules is None:
        log.info("this app declares no schedules; those that are stored are served")
    with signals(stop.set):
        try:
            async with (
                asyncio.TaskGroup() as group,
                Scheduler(group, app.broker, resilience=app.config.resilience, declared=schedules),
            ):
                log.info("scheduler is ready (pid %d)", os.getpid())
                await stop.wait()
        except BaseExceptionGroup as failed:
            raise cause_of(failed) from None
    log.info("stopped")
    return ExitCode.CLEAN
