"""A worker from its start to its exit. The order of the `async with` below is the order of the shutdown, reversed."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from uuid import uuid4

from horsies.app import Horsies
from horsies.child.wire import Boot
from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.keeper.keep import Keeper
from horsies.model.errors import HorsiesError
from horsies.model.worker import WorkerConfig
from horsies.schedules.declare import declared
from horsies.tasks.unknown import KnownTasks
from horsies.worker.books import Books
from horsies.worker.checkup import Checkup
from horsies.worker.endpoints import endpoints
from horsies.worker.heartbeat import DeclaredDead, Heartbeat
from horsies.worker.member import Member
from horsies.worker.pool import Pool, PoolOptions
from horsies.worker.pump import Pump
from horsies.worker.quarantine import Quarantine
from horsies.worker.scheduler import Scheduler
from horsies.worker.service import ExitCode, cause_of, open_database, serve, signals
from horsies.worker.settings import frames_of, limits_of, marks_of, queues_of
from horsies.worker.subject import WorkerSubject
from horsies.worker_thread import WorkerControl

TURNS_AT_MOST = 4
CONTROL_EVERY_S = 0.05
"""Control messages lead to at most one heartbeat per interval."""

log = logging.getLogger("horsies.worker")


def run_worker(
    app: Horsies, config: WorkerConfig, control: WorkerControl | None = None, *, loaded: Horsies | None = None
) -> ExitCode:
    """Run until SIGTERM or SIGINT, and until what was running then has ended. Raises why it could not start.

    With `control` it is embedded: signals are left alone, so that it may run on any thread, and so are the connections of the app. `loaded` is
    the app as the children load it, if that is another object: it has the tasks.
    """
    known = _known_tasks(loaded or app)
    queues_of(app.config, config)  # a queue that is not there is told before a database is waited for
    if config.scheduler:
        declared(app.config, app.known_tasks)  # and so is a schedule that could never run

    if app.suppresses_sends:
        log.warning(
            "sends of app %r are suppressed ($HORSIES_SUPPRESS_SENDS, or app.suppress_sends(True)): what its tasks send is not enqueued",
            app.name,
        )

    def run() -> ExitCode:
        checkup = Checkup()
        with endpoints(app, checkup, host=config.metrics_host, port=config.metrics_port):
            open_database(app.broker, app.config, control.asked if control else None)
            return asyncio.run(_run_incarnations(app, config, known, checkup, control))

    return serve(app, run, log, owns_app=control is None)


def _known_tasks(app: Horsies) -> Mapping[str, int]:
    """The signatures of its tasks by name."""
    if not app.known_tasks:
        modules = ", ".join(app.task_modules)
        where = (
            f"imported {modules}, which define none" if modules else "name their modules in app.discover_tasks([...])"
        )
        raise HorsiesError(f"this app has no task, so a worker would have nothing to do: {where}")
    return {name: task.arguments.fingerprint for name, task in app.known_tasks.items()}


async def _run_incarnations(
    app: Horsies, config: WorkerConfig, known: Mapping[str, int], checkup: Checkup, control: WorkerControl | None
) -> ExitCode:
    """A worker that was declared dead kills its children, forgets its claims, and starts anew under another name."""
    life = Life(control.tell_ready if control else lambda: None)
    checkup.loop = asyncio.get_running_loop()
    if control:
        control.attach(life.ask)
    with nullcontext() if control else signals(life.ask):
        while True:
            try:
                return await _run(app, config, known, life, checkup)
            except BaseExceptionGroup as group:
                error = cause_of(group)
                if not isinstance(error, DeclaredDead):
                    raise error from None
                log.warning("%s; starting anew", error)


class Life:
    """What outlives an incarnation. How often we were asked to stop, and who wants to know: the first time asks, the second hurries, the third kills."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self.ready = ready
        self.asked = asyncio.Event()
        self.schedules_are_stored = asyncio.Event()
        self.pump: Pump | None = None
        self.heartbeat: Heartbeat | None = None

    def ask(self) -> None:
        if self.heartbeat:
            self.heartbeat.stop_registering()
        if self.asked.is_set() and self.pump:
            self.pump.hurry()
        self.asked.set()


async def _run(app: Horsies, config: WorkerConfig, known: Mapping[str, int], life: Life, checkup: Checkup) -> ExitCode:
    worker, database, recovery = str(uuid4()), app.broker.config, app.config.recovery
    roster: list[Member] = []
    books = _open_books(app, config, known, worker, roster)
    in_doubt = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        pump = Pump(
            group,
            books,
            database=database,
            resilience=app.config.resilience,
            grace_ms=recovery.grace_ms,
            turns=min(TURNS_AT_MOST, config.process_count * config.concurrency),
            coalesce=config.coalesce_notifies,
            in_doubt=in_doubt.set,
        )
        life.pump = pump
        heartbeat = Heartbeat(
            group,
            books,
            pump,
            database=database,
            resilience=app.config.resilience,
            recovery=recovery,
            in_doubt=in_doubt,
            listener=app.broker.listener,
            app=app.name,
        )
        life.heartbeat = heartbeat
        pool = Pool(group, roster, pump.clerk, _pool_options(app, config))
        keeper = Keeper(
            group,
            worker,
            database=database,
            recovery=recovery,
            retention=app.config.retention,
            due_in=pump.alarm.due_in,
        )
        checkup.subject = WorkerSubject(books, pool, heartbeat, keeper, app.broker.listener, life.asked.is_set)
        scheduling = _scheduler(group, app, life.schedules_are_stored) if config.scheduler else nullcontext()
        async with pool, heartbeat, keeper, pump, scheduling:
            with _hearing(app.broker, worker, pump, concerns=books.marks.concerns, beat_now=in_doubt.set):
                queues = ", ".join(books.marks.queues)
                log.info("worker %s is ready on queues %s (pid %d)", worker, queues, os.getpid())
                life.ready()
                await life.asked.wait()
                await pump.drain(config.shutdown_timeout_ms)
    log.info("stopped")
    return ExitCode.KILLED_TASKS if pump.has_killed else ExitCode.CLEAN


def _open_books(
    app: Horsies, config: WorkerConfig, known: Mapping[str, int], worker: str, roster: list[Member]
) -> Books:
    books = Books(
        worker=worker,
        database=app.broker.config,
        limits=limits_of(app.config, config),
        roster=roster,
        frames=frames_of(app.config, config),
        marks=marks_of(app.config, config),
        quarantine=Quarantine(app.config.resilience),
        known=KnownTasks(dict(known)),
    )
    log.info(
        "Concurrency config: processes=%d, cluster_wide_cap=%s, max_claim_per_worker=%s, max_claim_batch=%d, concurrency=%d, prefetch_buffer=%s",
        config.process_count,
        app.config.cluster_wide_cap,
        config.max_claim_per_worker or books.frames.described_ceiling,
        config.max_claim_batch,
        config.concurrency,
        app.config.prefetch_buffer,
    )
    return books


def _scheduler(group: asyncio.TaskGroup, app: Horsies, are_stored: asyncio.Event) -> Scheduler:
    """Schedules are stored once: a worker that starts anew would undo what a newer release has declared meanwhile."""
    schedules = None if are_stored.is_set() else declared(app.config, app.known_tasks)
    return Scheduler(group, app, declared=schedules, stored=are_stored.set)


def _pool_options(app: Horsies, config: WorkerConfig) -> PoolOptions:
    return PoolOptions(
        processes=config.process_count,
        concurrency=config.concurrency,
        max_tasks_per_child=config.max_tasks_per_child,
        max_memory_per_child_mb=config.max_memory_per_child_mb,
        recovery=app.config.recovery,
        max_payload_bytes=app.config.max_payload_bytes,
        boot=Boot(
            config.app_locator or "",
            config.loglevel,
            config.concurrency,
            config.max_memory_per_child_mb,
            list(config.imports),
            config.dsn,
            tuple(sys.path),
            config.log_format,
        ),
        # The embedded server is found once, by us: children that send must not look for it on their own.
        env={"HORSIES_DATABASE_URL": app.broker.config.database_url} if app.is_embedded else {},
    )


class Rationed:
    """Calls `act` at once, and then at most once per interval, however often it is called. Belongs to its event loop."""

    def __init__(self, act: Callable[[], None], every_s: float) -> None:
        self._act = act
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> None:
        if self._timer is not None:
            return  # it will be called in a moment, for all who have asked by then
        wait_s = self._not_before - self._loop.time()
        if wait_s > 0:
            self._timer = self._loop.call_later(wait_s, self._call)
        else:
            self._call()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _call(self) -> None:
        self._timer = None
        self._not_before = self._loop.time() + self._every_s
        self._act()


@contextmanager
def _hearing(
    broker: PostgresBroker,
    worker: str,
    pump: Pump,
    *,
    concerns: Callable[[str | None], bool],
    beat_now: Callable[[], None],
) -> Generator[None]:
    """Notifications reach the pump on its event loop.

    Anyone may send them, so they only say when to look. `ping` and `cancel` both ask for a heartbeat, which reads from the rows what is
    to be cancelled; a message about a task whose row says nothing of it changes nothing.
    """
    loop, listener, here = asyncio.get_running_loop(), broker.listener(), threading.get_ident()
    look = Rationed(beat_now, CONTROL_EVERY_S)

    def new(payload: str | None) -> None:
        if payload is None and listener.is_listening:
            loop.call_soon_threadsafe(pump.reached)
        if not concerns(payload):
            return
        if threading.get_ident() == here:
            pump.heard(payload)
        else:
            loop.call_soon_threadsafe(pump.heard, payload)

    def control(payload: str | None) -> None:
        match (payload or "").split(" "):
            case [_, "cancel", _] | [_, "ping"]:
                loop.call_soon_threadsafe(look)
            case _:
                pass  # what was missed is read at the next heartbeat

    listener.subscribe(Channel.NEW, None, new)
    listener.subscribe(Channel.CONTROL, worker, control)
    try:
        with listener.read_on_this_loop():
            yield
    finally:
        listener.unsubscribe(Channel.NEW, None, new)
        listener.unsubscribe(Channel.CONTROL, worker, control)
        look.close()
