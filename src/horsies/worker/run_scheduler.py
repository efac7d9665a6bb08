"""A scheduler as a process of its own, from its start to its exit."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from horsies.app import Horsies
from horsies.model.worker import DEFAULT_METRICS_HOST
from horsies.schedules.declare import Declared, declared
from horsies.worker.checkup import Checkup, silence
from horsies.worker.endpoints import endpoints
from horsies.worker.scheduler import Scheduler
from horsies.worker.service import ExitCode, cause_of, open_database, serve, signals

log = logging.getLogger("horsies.scheduler")


def run_scheduler(
    app: Horsies, *, metrics_port: int | None = None, metrics_host: str = DEFAULT_METRICS_HOST
) -> ExitCode:
    """Run until SIGTERM or SIGINT. Raises why it could not start."""
    schedules = declared(app.config, app.known_tasks)  # a mistake is told before a database is waited for

    def run() -> ExitCode:
        checkup = Checkup()
        with endpoints(app, checkup, host=metrics_host, port=metrics_port):
            open_database(app.broker, app.config)
            return asyncio.run(_run(app, schedules, checkup))

    return serve(app, run, log)


async def _run(app: Horsies, schedules: Sequence[Declared] | None, checkup: Checkup) -> ExitCode:
    stop = asyncio.Event()
    checkup.loop = asyncio.get_running_loop()
    if schedules is None:
        log.info("this app declares no schedules; those that are stored are served")
    with signals(stop.set):
        try:
            async with (
                asyncio.TaskGroup() as group,
                Scheduler(group, app, declared=schedules) as scheduler,
            ):
                checkup.subject = SchedulerSubject(scheduler, stop.is_set)
                log.info("scheduler is ready (pid %d)", os.getpid())
                await stop.wait()
        except BaseExceptionGroup as failed:
            raise cause_of(failed) from None
    log.info("stopped")
    return ExitCode.CLEAN


@dataclass(frozen=True, slots=True)
class SchedulerSubject:
    """A scheduler as a checkup sees it."""

    scheduler: Scheduler
    is_stopping: Callable[[], bool]

    def unready(self) -> Iterator[str]:
        scheduler = self.scheduler
        if self.is_stopping():
            yield "the scheduler is stopping"
        if scheduler.answered_at is None:
            yield "the schedules have not been looked at yet"
        else:
            yield from silence(scheduler.answered_at, scheduler.poll_s, is_missing=scheduler.is_missing)

    def vitals(self) -> None:
        """What there is to tell of it is counted from events."""
