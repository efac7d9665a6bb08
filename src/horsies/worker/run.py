"""Run a worker, from its start to its exit. The order of the `async with` in `_run` is the order of the shutdown, reversed.

`horsies worker` calls `run_worker`; code calls `app.run_worker(WorkerConfig(...))` (`run_in_process`), or `app.worker(...)` for one on a thread of its own
(`embedded`). A worker that was declared dead kills its children, forgets its claims, and starts again as a new incarnation.
"""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from horsies.app import Horsies
from horsies.db.listener import Listener
from horsies.executor.protocol import Boot
from horsies.locate import load_app
from horsies.logs import configure_logging
from horsies.maintenance.leader import MaintenanceLeader
from horsies.model.config import AppConfig, CustomQueueConfig
from horsies.model.errors import ConfigError, HorsiesError, LocateError
from horsies.model.status import TaskStatus
from horsies.model.worker_config import StartMethod, WorkerConfig
from horsies.schedules.sync import declared_schedules
from horsies.tasks.claim import Caps
from horsies.tasks.handle import refuse_in_event_loop
from horsies.tasks.sender import sends_are_suppressed
from horsies.tasks.unknown import KnownTasks
from horsies.worker.batch_sender import BatchSender
from horsies.worker.child import Child
from horsies.worker.dispatcher import Dispatcher
from horsies.worker.health import HealthCheck, WorkerStats, check_database, endpoints
from horsies.worker.heartbeat import DeclaredDead, Heartbeat, UsageMeter
from horsies.worker.plan import ClaimLimits, DispatcherState, PrefetchPolicy
from horsies.worker.scheduler import Scheduler
from horsies.worker.service import ExitCode, open_database, root_cause, serve, signals, signals_restored
from horsies.worker.spawn import choose_start_method
from horsies.worker.supervisor import ChildPool, PoolOptions
from horsies.worker.wakeups import Notifications
from horsies.worker.watermarks import Watermarks
from horsies.worker_thread import Worker, WorkerControl

MAX_BATCHES_IN_FLIGHT: Final = 4

log = logging.getLogger("horsies.worker")


def run_worker(
    app: Horsies, config: WorkerConfig, control: WorkerControl | None = None, *, loaded: Horsies | None = None
) -> ExitCode:
    """Run until SIGTERM or SIGINT, and then until its running tasks have ended. Raise the reason if it cannot start.

    With `control` the worker is embedded: it can run on any thread, because it leaves signals alone, and the app's connections stay open. `loaded` is the
    app as the children load it, if that is another object: it has the tasks.
    """
    signatures = {name: task.arguments.fingerprint for name, task in (loaded or app).known_tasks.items()}
    if not signatures:
        modules = ", ".join((loaded or app).task_modules)
        where = (
            f"imported {modules}, which define none" if modules else "name their modules in app.discover_tasks([...])"
        )
        raise HorsiesError(f"this app has no task, so a worker would have nothing to do: {where}")
    # Raise configuration errors before waiting for a database: unknown queues, and schedules that could never run.
    served_queues(app.config, config)
    start_method_for(config)
    if config.scheduler:
        declared_schedules(app.config, app.known_tasks)
    if app.suppresses_sends:
        log.warning(
            "sends of app %r are suppressed ($HORSIES_SUPPRESS_SENDS, or app.suppress_sends(True)): what its tasks send is not enqueued",
            app.name,
        )

    def run() -> ExitCode:
        health = HealthCheck()
        with endpoints(app, health, host=config.metrics_host, port=config.metrics_port):
            open_database(app.broker, app.config, control.stop_requested if control else None, migrate=config.migrate)
            return asyncio.run(_run_incarnations(app, config, signatures, health, control))

    return serve(app, run, log, owns_app=control is None)


# -- settings of the app and of this worker


def served_queues(app: AppConfig, config: WorkerConfig) -> list[CustomQueueConfig]:
    """Return the queues that this worker serves, in its order and with its caps."""
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


def claim_limits_for(app: AppConfig, config: WorkerConfig) -> ClaimLimits:
    caps = Caps(
        cluster_wide=app.cluster_wide_cap,
        queues={q.name: q.max_concurrency for q in served_queues(app, config) if q.max_concurrency is not None},
        # With a prefetch buffer only running tasks count against the cap of a queue.
        counted=(TaskStatus.RUNNING,) if app.prefetch_buffer != 0 else (TaskStatus.CLAIMED, TaskStatus.RUNNING),
    )
    return ClaimLimits(
        lease_ms=app.lease_ms,
        caps=caps,
        max_claim_batch=config.max_claim_batch,
        max_claim_per_worker=config.max_claim_per_worker,
    )


def _state_for(
    app: Horsies, config: WorkerConfig, signatures: Mapping[str, int], worker: str, children: list[Child]
) -> DispatcherState:
    prefetch = PrefetchPolicy(app.config.prefetch_buffer, config.process_count, config.concurrency)
    log.info(
        "Concurrency config: processes=%d, cluster_wide_cap=%s, max_claim_per_worker=%s, max_claim_batch=%d, concurrency=%d, prefetch_buffer=%s",
        config.process_count,
        app.config.cluster_wide_cap,
        config.max_claim_per_worker or prefetch.described_limit,
        config.max_claim_batch,
        config.concurrency,
        app.config.prefetch_buffer,
    )
    return DispatcherState(
        worker=worker,
        database=app.broker.config,
        limits=claim_limits_for(app.config, config),
        children=children,
        prefetch=prefetch,
        watermarks=Watermarks([queue.name for queue in served_queues(app.config, config)]),
        known_tasks=KnownTasks(dict(signatures)),
    )


def start_method_for(config: WorkerConfig) -> StartMethod:
    has_recycling = bool(config.max_tasks_per_child) or config.max_memory_per_child_mb is not None
    return choose_start_method(config.start_method, has_recycling=has_recycling)


def _pool_options_for(app: Horsies, config: WorkerConfig) -> PoolOptions:
    return PoolOptions(
        start_method=start_method_for(config),
        processes=config.process_count,
        max_tasks_per_child=config.max_tasks_per_child,
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
        env=app.child_environment,
    )


# -- incarnations


async def _run_incarnations(
    app: Horsies,
    config: WorkerConfig,
    signatures: Mapping[str, int],
    health: HealthCheck,
    control: WorkerControl | None,
) -> ExitCode:
    stop_requests = StopRequests(control.set_ready if control else lambda: None)
    health.loop = asyncio.get_running_loop()
    if control:
        control.attach(stop_requests.add)
    with nullcontext() if control else signals(stop_requests.add):
        while True:
            try:
                return await _run(app, config, signatures, stop_requests, health)
            except BaseExceptionGroup as group:
                error = root_cause(group)
                if not isinstance(error, DeclaredDead):
                    raise error from None
                log.warning("%s; starting again", error)


class StopRequests:
    """Stop requests, kept across incarnations: the first drains, the second interrupts running tasks, the third kills them.

    An operator who asks the worker to leave is not counted: the first signal after that, usually of a supervisor that stops everything, does not
    interrupt the tasks that the worker waits for.
    """

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self.on_ready = on_ready
        self.requested = asyncio.Event()
        self.schedules_are_stored = asyncio.Event()
        self.dispatcher: Dispatcher | None = None
        self.heartbeat: Heartbeat | None = None
        self.pool: ChildPool | None = None
        self._signals = 0

    def leave(self) -> None:
        """Drain, because an operator has asked for it in the database; again, change nothing."""
        if not self.requested.is_set():
            log.info("an operator has asked this worker to leave")
            self.requested.set()

    def add(self) -> None:
        self._signals += 1
        if self.pool:
            self.pool.stop_starting()
        if self.heartbeat:
            self.heartbeat.stop_registering()
        if self._signals > 1 and self.dispatcher:
            self.dispatcher.escalate_stop()
        self.requested.set()


async def _run(
    app: Horsies, config: WorkerConfig, signatures: Mapping[str, int], stop_requests: StopRequests, health: HealthCheck
) -> ExitCode:
    worker, database, recovery = str(uuid4()), app.broker.config, app.config.recovery
    children: list[Child] = []
    state = _state_for(app, config, signatures, worker, children)
    heartbeat_requested = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        batches = min(MAX_BATCHES_IN_FLIGHT, config.process_count * config.concurrency)
        dispatcher = stop_requests.dispatcher = Dispatcher(
            state,
            BatchSender(group, database, batches, app.config.resilience),
            resilience=app.config.resilience,
            grace_ms=recovery.grace_ms,
            coalesce=config.coalesce_notifies,
            request_heartbeat=heartbeat_requested.set,
            loop=asyncio.get_running_loop(),
        )
        pool = stop_requests.pool = ChildPool(
            group, children, dispatcher.on_child_report, _pool_options_for(app, config)
        )
        heartbeat = stop_requests.heartbeat = Heartbeat(
            group, dispatcher, pool, app, heartbeat_requested, on_leave_requested=stop_requests.leave
        )
        leader = MaintenanceLeader(
            group,
            worker,
            database=database,
            recovery=recovery,
            retention=app.config.retention,
            on_retry_due=dispatcher.promote_in,
        )
        of_worker = WorkerHealth(
            dispatcher, pool, heartbeat, leader, app.broker.listener, stop_requests.requested.is_set
        )
        health.unready, health.stats = of_worker.unready, of_worker.stats
        scheduler = nullcontext()
        if config.scheduler:
            # Store the schedules only once: a new incarnation would undo what a newer release has declared since.
            stored = stop_requests.schedules_are_stored
            schedules = None if stored.is_set() else declared_schedules(app.config, app.known_tasks)
            scheduler = Scheduler(group, app, declared=schedules, on_stored=stored.set)
        async with pool, heartbeat, leader, dispatcher, scheduler:
            with Notifications(app.broker, dispatcher, heartbeat_requested.set) as notifications:
                queues = ", ".join(dispatcher.queues)
                log.info("worker %s is ready on queues %s (pid %d)", worker, queues, os.getpid())
                stop_requests.on_ready()
                await stop_requests.requested.wait()
                notifications.resign()
                await dispatcher.drain(config.shutdown_timeout_ms)
    log.info("stopped")
    return ExitCode.KILLED_TASKS if dispatcher.has_interrupted_tasks else ExitCode.CLEAN


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The services of one incarnation of a worker."""

    dispatcher: Dispatcher
    pool: ChildPool
    heartbeat: Heartbeat
    leader: MaintenanceLeader
    listener: Callable[[], Listener]
    is_stopping: Callable[[], bool]
    _usage: UsageMeter = field(default_factory=UsageMeter)
    _children_usage: UsageMeter = field(default_factory=UsageMeter)

    def unready(self) -> Iterator[str]:
        heartbeat, wanted = self.heartbeat, self.dispatcher.processes
        if self.is_stopping():
            yield "the worker is stopping"
        if (ready := self.pool.ready_count) < wanted:
            yield f"{ready} of {wanted} children are ready"
        if heartbeat.answered_at is None:
            yield "the worker is not registered yet"
        else:
            yield from check_database(heartbeat.answered_at, heartbeat.interval_s, is_missing=heartbeat.is_missing)

    def stats(self) -> WorkerStats:
        dispatcher, listener, now = self.dispatcher, self.listener(), time.monotonic()
        heartbeat_at, notified_at = self.heartbeat.answered_at, listener.received_at
        memory_mb, _cpu = self._usage.measure([os.getpid()])
        children_memory_mb, _cpu = self._children_usage.measure(dispatcher.child_pids)
        return WorkerStats(
            children=self.pool.ready_count,
            children_wanted=dispatcher.processes,
            slots=dispatcher.processes * dispatcher.concurrency,
            running=dispatcher.running_count,
            buffered=dispatcher.buffered_count,
            memory_bytes=memory_mb * (1 << 20),
            children_memory_bytes=children_memory_mb * (1 << 20),
            heartbeat_age_s=None if heartbeat_at is None else now - heartbeat_at,
            is_leader=self.leader.is_elected,
            is_polling=listener.is_polling,
            notification_age_s=None if notified_at is None else now - notified_at,
        )


# -- started from code


def run_in_process(app: Horsies, config: WorkerConfig) -> int:
    _refuse_during_import("run_worker()")
    if threading.current_thread() is not threading.main_thread():
        raise HorsiesError("run_worker() must be called on the main thread, the only one that receives signals")
    refuse_in_event_loop("run_worker()", "horsies worker, or call it before the loop starts")
    configure_logging(config.loglevel, config.log_format)  # does nothing if the program has configured logging
    config, loaded = _prepare(app, config)
    with signals_restored():
        return run_worker(app, config, loaded=loaded)


def embedded(app: Horsies, config: WorkerConfig) -> Worker:
    """Make a worker for a thread of this process. Raise here, where it is called, if it cannot run in this place."""
    _refuse_during_import("app.worker()")
    prepared, loaded = _prepare(app, config)
    return Worker(lambda control: run_worker(app, prepared, control, loaded=loaded))


def _refuse_during_import(call: str) -> None:
    # A child that imports the script would become a worker itself, with children, without end.
    if sends_are_suppressed():
        raise HorsiesError(
            f'{call} is called while a worker imports this module; write it below `if __name__ == "__main__":`'
        )


def _prepare(app: Horsies, config: WorkerConfig) -> tuple[WorkerConfig, Horsies]:
    """Return the config with a locator, and the app as the children load it."""
    locator = locate(app) if config.app_locator is None else config.app_locator
    # Children import a script under the name of its file. The locator of the app must not depend on the directory.
    place, _, attribute = locator.rpartition(":")
    app.locator = app.locator or (f"{Path(place).stem}:{attribute}" if place.endswith(".py") else locator)
    if config.dsn is not None:
        app.use_database(config.dsn)
    return replace(config, app_locator=locator), load_app(locator, imports=config.imports)


def locate(app: Horsies) -> str:
    """Find the module that has this app at its top level, for the children; the script itself only if no other module has it."""
    if app.child_locator is not None:
        return app.child_locator
    script = sys.modules.get("__main__")  # under multiprocessing it has a second name
    for name, module in sorted(sys.modules.items(), key=lambda item: item[1] is script):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is not app:
                continue
            if module is not script:
                return f"{name}:{attribute}"
            if file := getattr(module, "__file__", None):
                return f"{Path(file).resolve()}:{attribute}"
    raise LocateError(
        "this app is not at the top level of any module, so child processes cannot find it; "
        'give WorkerConfig(app_locator="package.module:attribute")'
    )
