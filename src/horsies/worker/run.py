"""A worker from its start to its exit. The order of the `async with` below is the order of the shutdown, reversed."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from horsies.app import Horsies
from horsies.db.broker import PostgresBroker
from horsies.db.channels import Channel
from horsies.executor.protocol import Boot
from horsies.locate import load_app
from horsies.logs import configure_logging
from horsies.maintenance.leader import MaintenanceLeader
from horsies.model.config import AppConfig, CustomQueueConfig
from horsies.model.errors import ConfigError, HorsiesError, LocateError
from horsies.model.status import TaskStatus
from horsies.model.worker_config import WorkerConfig
from horsies.schedules.sync import declared_schedules
from horsies.tasks.claim import Caps
from horsies.tasks.handle import refuse_in_event_loop
from horsies.tasks.import_guard import sends_are_suppressed
from horsies.tasks.unknown import KnownTasks
from horsies.worker.capacity import ClaimLimits, PrefetchPolicy
from horsies.worker.child import Child
from horsies.worker.dispatcher import Dispatcher
from horsies.worker.health import HealthCheck, WorkerHealth
from horsies.worker.heartbeat import DeclaredDead, Heartbeat
from horsies.worker.http import endpoints
from horsies.worker.pending import PendingWork
from horsies.worker.quarantine import Quarantine
from horsies.worker.scheduler import Scheduler
from horsies.worker.service import ExitCode, open_database, root_cause, serve, signals, signals_restored
from horsies.worker.supervisor import ChildPool, PoolOptions
from horsies.worker.watermarks import Watermarks
from horsies.worker_thread import Worker, WorkerControl

# --------
# From what the app and the worker were told to what the pump works by.


def served_queues(app: AppConfig, config: WorkerConfig) -> list[CustomQueueConfig]:
    """The queues this worker serves, in its order, with its caps."""
    known = {queue.name: queue for queue in app.queues}
    named = {*(config.queues or ()), *config.queue_priorities, *config.queue_max_concurrency}
    if unknown := sorted(named - known.keys()):
        raise ConfigError(
            "WorkerConfig", [f"there is no queue {name!r}; this app has {', '.join(known)}" for name in unknown]
        )
    served = [
        CustomQueueConfig(
            name=queue.name,
            priority=config.queue_priorities.get(queue.name, queue.priority),
            max_concurrency=config.queue_max_concurrency.get(queue.name, queue.max_concurrency),
        )
        for queue in app.queues
        if config.queues is None or queue.name in config.queues
    ]
    return sorted(served, key=lambda queue: queue.priority)


def watermarks_for(app: AppConfig, config: WorkerConfig) -> Watermarks:
    return Watermarks([queue.name for queue in served_queues(app, config)])


def prefetch_policy_for(app: AppConfig, config: WorkerConfig) -> PrefetchPolicy:
    return PrefetchPolicy(app.prefetch_buffer, config.process_count, config.concurrency)


def claim_limits_for(app: AppConfig, config: WorkerConfig) -> ClaimLimits:
    is_soft = app.prefetch_buffer != 0
    caps = Caps(
        cluster_wide=app.cluster_wide_cap,
        queues={q.name: q.max_concurrency for q in served_queues(app, config) if q.max_concurrency is not None},
        # With a buffer only what runs counts against a queue's cap.
        counted=(TaskStatus.RUNNING,) if is_soft else (TaskStatus.CLAIMED, TaskStatus.RUNNING),
    )
    return ClaimLimits(
        lease_ms=app.lease_ms,
        caps=caps,
        max_claim_batch=config.max_claim_batch,
        max_claim_per_worker=config.max_claim_per_worker,
    )


BATCHES_AT_MOST = 4
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
    served_queues(app.config, config)  # a queue that is not there is told before a database is waited for
    if config.scheduler:
        declared_schedules(app.config, app.known_tasks)  # and so is a schedule that could never run

    if app.suppresses_sends:
        log.warning(
            "sends of app %r are suppressed ($HORSIES_SUPPRESS_SENDS, or app.suppress_sends(True)): what its tasks send is not enqueued",
            app.name,
        )

    def run() -> ExitCode:
        checkup = HealthCheck()
        with endpoints(app, checkup, host=config.metrics_host, port=config.metrics_port):
            open_database(app.broker, app.config, control.stop_requested if control else None)
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
    app: Horsies, config: WorkerConfig, known: Mapping[str, int], checkup: HealthCheck, control: WorkerControl | None
) -> ExitCode:
    """A worker that was declared dead kills its children, forgets its claims, and starts anew under another name."""
    stop_requests = StopRequests(control.set_ready if control else lambda: None)
    checkup.loop = asyncio.get_running_loop()
    if control:
        control.attach(stop_requests.ask)
    with nullcontext() if control else signals(stop_requests.ask):
        while True:
            try:
                return await _run(app, config, known, stop_requests, checkup)
            except BaseExceptionGroup as group:
                error = root_cause(group)
                if not isinstance(error, DeclaredDead):
                    raise error from None
                log.warning("%s; starting anew", error)


class StopRequests:
    """What outlives an incarnation. How often we were asked to stop, and who wants to know: the first time asks, the second hurries, the third kills."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self.ready = ready
        self.asked = asyncio.Event()
        self.schedules_are_stored = asyncio.Event()
        self.dispatcher: Dispatcher | None = None
        self.heartbeat: Heartbeat | None = None

    def ask(self) -> None:
        if self.heartbeat:
            self.heartbeat.stop_registering()
        if self.asked.is_set() and self.dispatcher:
            self.dispatcher.escalate_stop()
        self.asked.set()


async def _run(
    app: Horsies, config: WorkerConfig, known: Mapping[str, int], stop_requests: StopRequests, checkup: HealthCheck
) -> ExitCode:
    worker, database, recovery = str(uuid4()), app.broker.config, app.config.recovery
    children: list[Child] = []
    pending = _open_books(app, config, known, worker, children)
    in_doubt = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        dispatcher = Dispatcher(
            group,
            pending,
            database=database,
            resilience=app.config.resilience,
            grace_ms=recovery.grace_ms,
            batches=min(BATCHES_AT_MOST, config.process_count * config.concurrency),
            coalesce=config.coalesce_notifies,
            request_heartbeat=in_doubt.set,
        )
        stop_requests.dispatcher = dispatcher
        heartbeat = Heartbeat(
            group,
            pending,
            dispatcher,
            database=database,
            resilience=app.config.resilience,
            recovery=recovery,
            in_doubt=in_doubt,
            listener=app.broker.listener,
            app=app.name,
        )
        stop_requests.heartbeat = heartbeat
        pool = ChildPool(group, children, dispatcher.reports, _pool_options(app, config))
        leader = MaintenanceLeader(
            group,
            worker,
            database=database,
            recovery=recovery,
            retention=app.config.retention,
            due_in=dispatcher.wakeup_timer.schedule_promotion,
        )
        checkup.subject = WorkerHealth(
            pending, pool, heartbeat, leader, app.broker.listener, stop_requests.asked.is_set
        )
        scheduling = _scheduler(group, app, stop_requests.schedules_are_stored) if config.scheduler else nullcontext()
        async with pool, heartbeat, leader, dispatcher, scheduling:
            with _hearing(
                app.broker, worker, dispatcher, concerns=pending.watermarks.is_relevant, beat_now=in_doubt.set
            ):
                queues = ", ".join(pending.watermarks.queues)
                log.info("worker %s is ready on queues %s (pid %d)", worker, queues, os.getpid())
                stop_requests.ready()
                await stop_requests.asked.wait()
                await dispatcher.drain(config.shutdown_timeout_ms)
    log.info("stopped")
    return ExitCode.KILLED_TASKS if dispatcher.has_interrupted_tasks else ExitCode.CLEAN


def _open_books(
    app: Horsies, config: WorkerConfig, known: Mapping[str, int], worker: str, children: list[Child]
) -> PendingWork:
    pending = PendingWork(
        worker=worker,
        database=app.broker.config,
        limits=claim_limits_for(app.config, config),
        children=children,
        prefetch=prefetch_policy_for(app.config, config),
        watermarks=watermarks_for(app.config, config),
        quarantine=Quarantine(app.config.resilience),
        known_tasks=KnownTasks(dict(known)),
    )
    log.info(
        "Concurrency config: processes=%d, cluster_wide_cap=%s, max_claim_per_worker=%s, max_claim_batch=%d, concurrency=%d, prefetch_buffer=%s",
        config.process_count,
        app.config.cluster_wide_cap,
        config.max_claim_per_worker or pending.prefetch.described_limit,
        config.max_claim_batch,
        config.concurrency,
        app.config.prefetch_buffer,
    )
    return pending


def _scheduler(group: asyncio.TaskGroup, app: Horsies, are_stored: asyncio.Event) -> Scheduler:
    """Schedules are stored once: a worker that starts anew would undo what a newer release has declared meanwhile."""
    schedules = None if are_stored.is_set() else declared_schedules(app.config, app.known_tasks)
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


class RationedPool:
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
    dispatcher: Dispatcher,
    *,
    concerns: Callable[[str | None], bool],
    beat_now: Callable[[], None],
) -> Generator[None]:
    """Notifications reach the pump on its event loop.

    Anyone may send them, so they only say when to look. `ping` and `cancel` both ask for a heartbeat, which reads from the rows what is
    to be cancelled; a message about a task whose row says nothing of it changes nothing.
    """
    loop, listener, here = asyncio.get_running_loop(), broker.listener(), threading.get_ident()
    look = RationedPool(beat_now, CONTROL_EVERY_S)

    def new(payload: str | None) -> None:
        if payload is None and listener.is_listening:
            loop.call_soon_threadsafe(dispatcher.on_database_reached)
        if not concerns(payload):
            return
        if threading.get_ident() == here:
            dispatcher.on_notification(payload)
        else:
            loop.call_soon_threadsafe(dispatcher.on_notification, payload)

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


# --------
# A worker started from code: `app.run_worker(WorkerConfig(...))`, and `app.worker(...)` on a thread of its own.


def run_in_process(app: Horsies, config: WorkerConfig) -> int:
    _refuse_wrong_places()
    configure_logging(config.loglevel, config.log_format)  # does nothing where the program has its own
    config, loaded = _prepared(app, config)
    with signals_restored():
        return run_worker(app, config, loaded=loaded)


def embedded(app: Horsies, config: WorkerConfig) -> Worker:
    """Make a worker for a thread of this process. What is wrong with its place is said here, where it is called."""
    _refuse_import("app.worker()")
    prepared, loaded = _prepared(app, config)
    return Worker(lambda control: run_worker(app, prepared, control, loaded=loaded))


def _prepared(app: Horsies, config: WorkerConfig) -> tuple[WorkerConfig, Horsies]:
    """What the worker runs with, and the app as its children load it."""
    if config.app_locator is None:
        config = replace(config, app_locator=locate(app))
    app.locator = app.locator or _module_locator(config.app_locator or "")
    if config.dsn is not None:
        app.use_database(config.dsn)
    return config, load_app(config.app_locator or "", imports=config.imports)


def _refuse_import(call: str) -> None:
    if sends_are_suppressed():  # a child that imports the script would be a worker itself, with children, without end
        raise HorsiesError(
            f'{call} is called while a worker imports this module; write it below `if __name__ == "__main__":`'
        )


def _refuse_wrong_places() -> None:
    _refuse_import("run_worker()")
    if threading.current_thread() is not threading.main_thread():
        raise HorsiesError("run_worker() must be called on the main thread, the only one that hears signals")
    refuse_in_event_loop("run_worker()", "horsies worker, or call it before the loop starts")


def locate(app: Horsies) -> str:
    """Where the children find this app: the module that holds it at its top level; the script itself only if no other does."""
    script = sys.modules.get("__main__")  # under multiprocessing it has a second name
    for name, module in sorted(sys.modules.items(), key=lambda item: item[1] is script):
        for attribute in _names_of(app, module):
            if module is not script:
                return f"{name}:{attribute}"
            if file := getattr(module, "__file__", None):
                return f"{Path(file).resolve()}:{attribute}"
    raise LocateError(
        "this app is not at the top level of any module, so child processes cannot find it; "
        'give WorkerConfig(app_locator="package.module:attribute")'
    )


def _module_locator(locator: str) -> str:
    """The locator by the name under which the children import a script, so that it does not depend on the folder."""
    place, _, attribute = locator.rpartition(":")
    return f"{Path(place).stem}:{attribute}" if place.endswith(".py") else locator


def _names_of(app: Horsies, module: ModuleType) -> Iterator[str]:
    for attribute, value in list(getattr(module, "__dict__", {}).items()):
        if value is app:
            yield attribute
