"""The scheduler: sleeps until a schedule is due, and ticks. Any number may run; each slot is handled once (`schedules/tick.py`)."""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Self

from horsies.app import Horsies
from horsies.db.channels import Channel
from horsies.db.dedicated import ThreadedConnection
from horsies.db.errors import DriverError, ErrorKind, broker_error, classify
from horsies.events import ScheduleSlotDecided, emit, subscribers
from horsies.model.worker_config import DEFAULT_METRICS_HOST
from horsies.schedules.decide import SlotOutcome
from horsies.schedules.sync import DeclaredSchedule, declared_schedules, sync_schedules
from horsies.schedules.tick import TickResult, tick
from horsies.worker.health import HealthCheck, check_database, endpoints
from horsies.worker.service import Backoff, ExitCode, open_database, root_cause, serve, signals

SHORTEST_SLEEP_S: Final = 0.05  # when another scheduler handles what is due
WAKEUP_INTERVAL_S: Final = 0.1  # any client may notify: that leads to one tick at once, and at most one per interval
LAST_TICK_S: Final = 3.0
FAILED_PAUSE_S: Final = 60.0
"""How long a schedule that this process cannot decide about, or that the database has rejected, is left out, unless schedules are changed."""
NAMES_SHOWN: Final = 10

log = logging.getLogger("horsies.scheduler")


def run_scheduler(
    app: Horsies, *, migrate: bool = True, metrics_port: int | None = None, metrics_host: str = DEFAULT_METRICS_HOST
) -> ExitCode:
    """Run a scheduler as a process of its own, until SIGTERM or SIGINT. Raise the reason if it cannot start."""
    schedules = declared_schedules(app.config, app.known_tasks)  # raises errors before waiting for a database

    def run() -> ExitCode:
        health = HealthCheck()
        with endpoints(app, health, host=metrics_host, port=metrics_port):
            open_database(app.broker, app.config, migrate=migrate)
            return asyncio.run(_run(app, schedules, health))

    return serve(app, run, log)


async def _run(app: Horsies, schedules: Sequence[DeclaredSchedule] | None, health: HealthCheck) -> ExitCode:
    stop = asyncio.Event()
    health.loop = asyncio.get_running_loop()
    if schedules is None:
        log.info("this app declares no schedules; stored schedules are served")
    with signals(stop.set):
        try:
            async with asyncio.TaskGroup() as group, Scheduler(group, app, declared=schedules) as scheduler:
                health.unready = lambda: scheduler.unready(is_stopping=stop.is_set())
                log.info("scheduler is ready (pid %d)", os.getpid())
                await stop.wait()
        except BaseExceptionGroup as failed:
            raise root_cause(failed) from None
    log.info("stopped")
    return ExitCode.CLEAN


class Scheduler:
    """A service of a worker, or of a process of its own. Stores `declared` first and then calls `on_stored`; None stores nothing."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        app: Horsies,
        *,
        declared: Sequence[DeclaredSchedule] | None,
        on_stored: Callable[[], None] = lambda: None,
    ) -> None:
        self._group = group
        self._app = app
        self._connection = ThreadedConnection(app.broker.config, "scheduler")
        self._backoff = Backoff(app.config.resilience)
        self._poll_s = app.config.resilience.notify_poll_interval_ms / 1000
        self._declared = declared
        self._on_stored = on_stored
        self._left_out: dict[str, tuple[str, float]] = {}
        """Schedules that have failed: why, and until when they are left out."""
        self._changes = 0
        """How often a notification has said that schedules were changed."""
        self._wakeup = asyncio.Event()
        self._next_wakeup_at = 0.0
        self._stopping = asyncio.Event()
        self._answered_at: float | None = None
        """When the last tick succeeded, on the monotonic clock."""
        self._is_missing = False
        """Whether the last one failed."""

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._app.broker.listener().subscribe(Channel.SCHEDULES, None, self._on_notification)
        self._scheduling = self._group.create_task(self._schedule())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._app.broker.listener().unsubscribe(Channel.SCHEDULES, None, self._on_notification)
        self._stopping.set()
        self._wakeup.set()
        if kind is None:
            await asyncio.wait({self._scheduling}, timeout=LAST_TICK_S)
        self._scheduling.cancel()
        await self._connection.close(None)

    def unready(self, *, is_stopping: bool) -> Iterator[str]:
        if is_stopping:
            yield "the scheduler is stopping"
        if self._answered_at is None:
            yield "the scheduler has not ticked yet"
        else:
            yield from check_database(self._answered_at, self._poll_s, is_missing=self._is_missing)

    def _on_notification(self, payload: str | None) -> None:
        is_back = payload is None and self._app.broker.listener().is_listening

        def wake() -> None:
            if is_back:
                self._backoff.reached()
            self._changes += 1
            self._left_out = {name: (reason, 0.0) for name, (reason, _) in self._left_out.items()}
            self._wakeup.set()

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(wake)

    async def _schedule(self) -> None:
        while not self._stopping.is_set():
            self._wakeup.clear()  # before the tick, or a change during it would be missed
            try:
                await self._store_declared()
                ticked = await self._tick()
            except DriverError as error:
                await self._recover(error)
            else:
                self._backoff.succeeded()
                self._answered_at, self._is_missing = time.monotonic(), False
                if not ticked.is_full:
                    await self._sleep(ticked.next_due_s)

    async def _store_declared(self) -> None:
        if self._declared is None:
            return
        app = self._app
        synced = await self._connection.run(sync_schedules(self._declared, app=app.name, locator=app.locator))
        log.info(
            "%d schedules are declared by app %r: %d new, %d changed, %d removed%s",
            len(self._declared),
            app.name,
            len(synced.added),
            len(synced.changed),
            len(synced.retired),
            f" ({_join_names(synced.retired)})" if synced.retired else "",
        )
        for name, owner in synced.clashes.items():
            log.warning(
                "schedule %r belongs to app %r and is not stored for app %r: what app %r has declared stays in force. Rename the "
                "schedule in one of the apps; if both are the same app, set the same AppConfig(name=...) for both",
                name, owner, app.name, owner,
            )  # fmt: skip
        for name in synced.taken:
            log.warning(
                "schedule %r was created at run time, so the one that app %r declares is not stored. Rename it in the app, or remove "
                "the other one (`horsies schedules remove %s`) and restart this scheduler",
                name, app.name, name,
            )  # fmt: skip
        if synced.unowned:
            log.warning(
                "schedules without an app, stored by an older release, stay in force though app %r does not declare them: %s. Start "
                "the scheduler of the app that does; if there is none, run `horsies schedules pause NAME`",
                app.name,
                _join_names(synced.unowned),
            )
        self._declared = None  # from now on, the stored schedules count
        self._on_stored()

    async def _tick(self) -> TickResult:
        now, changes = time.monotonic(), self._changes
        ticked = await self._connection.run(
            tick(excluded=[n for n, (_, until) in self._left_out.items() if now < until])
        )
        again_at = (
            now + FAILED_PAUSE_S if changes == self._changes else 0.0
        )  # it may have been changed since it was read
        for event, reasons in (("failed", ticked.failed), ("cannot be served by this process", ticked.unreadable)):
            for name, reason in reasons.items():
                if self._left_out.get(name, ("", 0.0))[0] != reason:
                    log.error("schedule %r %s, the next try is in %g s: %s", name, event, FAILED_PAUSE_S, reason)
                self._left_out[name] = reason, again_at
        if ticked.decisions:
            counts = Counter(decision.outcome for decision in ticked.decisions)
            log.info(
                "enqueued %d, skipped %d, missed %d",
                *(counts[outcome] for outcome in (SlotOutcome.ENQUEUED, SlotOutcome.SKIPPED, SlotOutcome.MISSED)),
            )
        if subscribers:
            for decision in ticked.decisions:
                emit(ScheduleSlotDecided(decision.name, decision.outcome.value))
        return ticked

    async def _recover(self, error: DriverError) -> None:
        if classify(error) is ErrorKind.CONTENTION:
            self._backoff.contended()
        else:
            self._is_missing = True
            self._backoff.failed(broker_error(error), unreached=classify(error) is ErrorKind.CONNECTION_LOST)
        while self._backoff.left_s and not self._stopping.is_set():
            self._wakeup.clear()
            await _wait(self._wakeup, self._backoff.left_s)

    async def _sleep(self, next_due_s: float | None) -> None:
        """Sleep until the next slot is due, or until a notification says that schedules have changed."""
        sleep_s = self._poll_s if next_due_s is None else min(self._poll_s, max(SHORTEST_SLEEP_S, next_due_s))
        await _wait(self._wakeup, sleep_s)
        if self._wakeup.is_set():
            await _wait(self._stopping, self._next_wakeup_at - time.monotonic())
            self._next_wakeup_at = time.monotonic() + WAKEUP_INTERVAL_S


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:NAMES_SHOWN])
    return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
