"""Metrics for Prometheus: `pip install horsies[prometheus]`.

A worker or a scheduler started with `--metrics-port` serves them. A producer that has its own `/metrics` adds ours to it:

    from horsies.contrib import prometheus
    prometheus.instrument(app)

Counters are fed by events, in the process where they are emitted: children run tasks, and their worker counts them. The state of
the queues is read when a scrape arrives, at most every few seconds, by one query whose cost does not grow with the backlog.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from horsies import events
from horsies.app import Horsies
from horsies.db.broker import PostgresBroker
from horsies.db.pool import PoolStats
from horsies.model.error_codes import OperationalErrorCode
from horsies.model.errors import HorsiesError
from horsies.tasks.queues import MAX_COUNTED, QueueDepth, get_queue_depths
from horsies.worker.http import WorkerStats

FRESH_S = 5.0  # a scrape within this time gets the result of the one before
QUERY_TIMEOUT_S = 3.0
OTHER = "(other)"
"""The label of tasks that this app does not define: any client may insert rows, and the number of labels must stay small."""

QUICK_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LONG_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

_installed: "WeakKeyDictionary[CollectorRegistry, _Installed]" = WeakKeyDictionary()


def instrument(app: Horsies, *, registry: CollectorRegistry = REGISTRY) -> None:
    """Add the metrics of this process and of the app's queues to a registry. A second call has no effect."""
    _installed_in(registry).add(app)


def exposition(app: Horsies, stats: Callable[[], WorkerStats | None]) -> Callable[[], tuple[bytes, str]]:
    """Return a function that renders `/metrics` for a worker or a scheduler, with its content type. Metrics of the user are included."""
    installed = _installed_in(REGISTRY)
    installed.add(app)
    installed.gauges.stats = stats
    return lambda: (generate_latest(REGISTRY), CONTENT_TYPE_LATEST)


def _installed_in(registry: CollectorRegistry) -> "_Installed":
    if registry not in _installed:
        _installed[registry] = _Installed(registry)
    return _installed[registry]


class _Installed:
    """The collectors that were added to one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counts = EventCounters(registry)
        self.gauges = StateCollector()
        registry.register(self.gauges)
        events.subscribe(self.counts)

    def add(self, app: Horsies) -> None:
        self.counts.apps.add(app)
        if app not in self.gauges.depths:
            self.gauges.depths[app] = QueueDepths(app)


class EventCounters:
    """Count events. An instance is an event subscriber."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.apps: set[Horsies] = set()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        task, kind = ["task", "queue"], ["task", "queue", "status"]
        self._sent = counter("horsies_tasks_sent", "Tasks sent by this process.", task)
        self._claimed = counter("horsies_tasks_claimed", "Tasks claimed.", task)
        self._started = counter("horsies_tasks_started", "Attempts started.", task)
        self._ended = counter("horsies_tasks_ended", "Tasks ended, by status.", kind)
        self._retried = counter("horsies_tasks_retried", "Attempts that failed and are retried.", task)
        self._crashed = counter("horsies_tasks_crashed", "Attempts whose child process died, or was killed.", task)
        self._rescued = counter("horsies_tasks_rescued", "Tasks of dead workers that this maintenance leader rescued.")
        self._expired = counter(
            "horsies_tasks_expired", "Tasks that did not start in time, found by this maintenance leader."
        )
        self._slots = counter("horsies_schedule_slots", "Schedule slots, by outcome.", ["outcome"])
        self._workflows = counter("horsies_workflows_started", "Workflows started by this process.")
        self._declared_dead = counter(
            "horsies_workers_declared_dead", "Workers that this maintenance leader declared dead."
        )
        self._children_started = counter("horsies_children_started", "Child processes started.")
        self._children_died = counter("horsies_children_died", "Child processes that died unexpectedly.")
        self._children_recycled = counter(
            "horsies_children_recycled", "Child processes replaced because of their task count or memory."
        )
        self._database_errors = counter(
            "horsies_database_errors", "Batches that failed and were repeated, by kind.", ["kind"]
        )
        self._missed = counter("horsies_heartbeats_missed", "Heartbeats that could not be saved.")
        self._notifications_lost = counter("horsies_notifications_lost", "Times that notifications stopped arriving.")
        self._duration = histogram("horsies_task_duration_seconds", "Duration of attempts.", task, buckets=LONG_BUCKETS)
        self._wait = histogram(
            "horsies_task_wait_seconds", "Time from sent, or due, to started.", ["queue"], buckets=LONG_BUCKETS
        )
        self._send = histogram("horsies_send_duration_seconds", "Duration of sends.", ["queue"], buckets=QUICK_BUCKETS)
        self._batch = histogram("horsies_batch_duration_seconds", "Duration of batches.", buckets=QUICK_BUCKETS)
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            events.TasksSent: self._on_sent,
            events.TasksClaimed: lambda event: self._claimed.labels(*self._labels(event)).inc(event.count),
            events.TaskStarted: self._on_started,
            events.TaskEnded: self._on_ended,
            events.TaskRetried: self._on_retried,
            events.TasksRescued: lambda event: self._rescued.inc(event.count),
            events.TasksExpired: lambda event: self._expired.inc(event.count),
            events.ScheduleSlotDecided: lambda event: self._slots.labels(event.outcome).inc(),
            events.WorkflowStarted: lambda _: self._workflows.inc(),
            events.WorkerDeclaredDead: lambda _: self._declared_dead.inc(),
            events.ChildStarted: lambda _: self._children_started.inc(),
            events.ChildDied: lambda _: self._children_died.inc(),
            events.ChildRecycled: lambda _: self._children_recycled.inc(),
            events.DatabaseError: lambda event: self._database_errors.labels(event.kind).inc(),
            events.HeartbeatMissed: lambda _: self._missed.inc(),
            events.NotificationsLost: lambda _: self._notifications_lost.inc(),
            events.BatchCommitted: lambda event: self._batch.observe(event.duration_s),
        }

    def __call__(self, event: events.Event) -> None:
        if handle := self._handlers.get(type(event)):
            handle(event)

    def _labels(
        self, event: events.TasksClaimed | events.TaskStarted | events.TaskEnded | events.TaskRetried
    ) -> Sequence[str]:
        name = event.task_name
        return name if any(name in app.tasks for app in self.apps) else OTHER, event.queue_name

    def _on_sent(self, event: events.TasksSent) -> None:
        self._sent.labels(event.task_name, event.queue_name).inc(event.count)
        self._send.labels(event.queue_name).observe(event.duration_s)

    def _on_started(self, event: events.TaskStarted) -> None:
        self._started.labels(*self._labels(event)).inc()
        self._wait.labels(event.queue_name).observe(event.wait_s)

    def _on_ended(self, event: events.TaskEnded) -> None:
        self._ended.labels(*self._labels(event), event.status).inc()
        self._on_attempt_ended(event)

    def _on_retried(self, event: events.TaskRetried) -> None:
        self._retried.labels(*self._labels(event)).inc()
        self._on_attempt_ended(event)

    def _on_attempt_ended(self, event: events.TaskEnded | events.TaskRetried) -> None:
        self._duration.labels(*self._labels(event)).observe(event.duration_s)
        if event.error_code == OperationalErrorCode.WORKER_CRASHED:
            self._crashed.labels(*self._labels(event)).inc()


# -- read at each scrape


class QueueDepths:
    """The queue depths of one app. One thread queries at a time, and a scrape does not wait long for its result."""

    def __init__(self, app: Horsies) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._is_read = threading.Event()
        self._is_reading = False
        self._broker: PostgresBroker | None = None
        self._depths: Sequence[QueueDepth] | None = None
        self._read_at = 0.0

    def read(self) -> Sequence[QueueDepth] | None:
        """Return the depths, or None when the database does not answer in time."""
        with self._lock:
            if time.monotonic() - self._read_at < FRESH_S:
                return self._depths
            if not self._is_reading:
                self._is_reading = True
                self._is_read.clear()
                threading.Thread(target=self._query, name="horsies-depths", daemon=True).start()
        return self._depths if self._is_read.wait(QUERY_TIMEOUT_S) else None

    def pool_stats(self) -> PoolStats | None:
        """Return the state of the app's connection pools, or None while there are none."""
        return None if self._broker is None else self._broker.pools.stats()

    def _query(self) -> None:
        depths = None
        try:
            self._broker = self._app.broker
            depths = self._broker.run(partial(get_queue_depths, [queue.name for queue in self._app.config.queues]))
        except HorsiesError:
            pass  # horsies_database_up reports it
        finally:
            with self._lock:
                self._depths, self._read_at, self._is_reading = depths, time.monotonic(), False
            self._is_read.set()


class StateCollector(Collector):
    """The present state: queues, connections, and the worker if this process is one."""

    def __init__(self) -> None:
        self.depths: dict[Horsies, QueueDepths] = {}
        self.stats: Callable[[], WorkerStats | None] = lambda: None

    def describe(self) -> Iterable[Metric]:
        """Return the families without values, so that registration needs no database."""
        return [*_queue_metrics([]), *_pool_metrics([]), *_worker_metrics(None), _up(is_up=False)]

    def collect(self) -> Iterator[Metric]:
        reads = [depths.read() for depths in self.depths.values()]
        yield _up(is_up=None not in reads)
        yield from _queue_metrics([depth for depths in reads for depth in depths or ()])
        yield from _pool_metrics([pool_stats for depths in self.depths.values() if (pool_stats := depths.pool_stats())])
        if stats := self.stats():
            yield from _worker_metrics(stats)


def _up(*, is_up: bool) -> Metric:
    return GaugeMetricFamily(
        "horsies_database_up", "1 if the database answered this scrape or one of the last seconds.", is_up
    )


def _queue_metrics(depths: Sequence[QueueDepth]) -> Iterator[Metric]:
    def gauge(name: str, help_text: str, value: Callable[[QueueDepth], float]) -> Metric:
        family = GaugeMetricFamily(f"horsies_queue_{name}", help_text, labels=["queue"])
        for queue_name, number in {depth.queue_name: value(depth) for depth in depths}.items():
            family.add_metric([queue_name], number)
        return family

    yield gauge("waiting", f"Tasks that are due and wait, counted up to {MAX_COUNTED}.", lambda depth: depth.waiting)
    yield gauge("oldest_seconds", "How long the oldest of these has been waiting.", lambda depth: depth.oldest_s)
    yield gauge("in_flight", "Tasks that are CLAIMED or RUNNING in the whole cluster.", lambda depth: depth.in_flight)
    yield gauge("paused", "1 while the queue is paused.", lambda depth: depth.is_paused)
    yield gauge(
        "unknown",
        f"Tasks that no living worker can run, counted up to {MAX_COUNTED}.",
        lambda depth: depth.unknown,
    )


def _pool_metrics(pools: Sequence[PoolStats]) -> Iterator[Metric]:
    def gauge(name: str, help_text: str, value: Callable[[PoolStats], int]) -> Metric:
        return GaugeMetricFamily(f"horsies_pool_{name}", help_text, sum(map(value, pools)) if pools else None)

    yield gauge("connections", "Connections in the pools of this process.", lambda pool: pool.size)
    yield gauge("connections_free", "Connections of these that are free.", lambda pool: pool.available)
    yield gauge("callers_waiting", "Calls that wait for a free connection.", lambda pool: pool.waiting)


def _worker_metrics(stats: WorkerStats | None) -> Iterator[Metric]:
    def gauge(name: str, help_text: str, value: Callable[[WorkerStats], float | None]) -> Metric:
        return GaugeMetricFamily(f"horsies_{name}", help_text, None if stats is None else value(stats))

    yield gauge("worker_running", "Tasks that this worker is running.", lambda stats: stats.running)
    yield gauge("worker_buffered", "Tasks that this worker has prefetched.", lambda stats: stats.buffered)
    yield gauge("worker_slots", "Tasks that this worker can run at the same time.", lambda stats: stats.slots)
    yield gauge("worker_children", "Child processes that are ready.", lambda stats: stats.children)
    yield gauge(
        "worker_children_wanted",
        "Child processes that the worker is configured to have.",
        lambda stats: stats.children_wanted,
    )
    yield gauge("worker_memory_bytes", "Resident memory of the worker process.", lambda stats: stats.memory_bytes)
    yield gauge(
        "worker_children_memory_bytes",
        "Resident memory of all its children together.",
        lambda stats: stats.children_memory_bytes,
    )
    yield gauge(
        "worker_maintenance_leader", "1 while this worker is the maintenance leader.", lambda stats: stats.is_leader
    )
    yield gauge(
        "heartbeat_age_seconds", "Seconds since the last heartbeat was saved.", lambda stats: stats.heartbeat_age_s
    )
    yield gauge(
        "listener_working",
        "1 while notifications arrive, 0 while this worker polls.",
        lambda stats: not stats.is_polling,
    )
    yield gauge(
        "notification_age_seconds", "Seconds since the last notification.", lambda stats: stats.notification_age_s
    )
