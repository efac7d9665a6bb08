"""Metrics for Prometheus: `pip install horsies[prometheus]`.

A worker or a scheduler started with `--metrics-port` serves them. A producer that has its own `/metrics` adds ours to it:

    from horsies.contrib import prometheus
    prometheus.instrument(app)

Counters are fed by events, in the process where they are emitted: children run tasks, and their worker counts them. The state of
the queues is read when a scrape arrives, at most every few seconds, by one query whose cost does not grow with the backlog.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
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
from horsies.worker.health import WorkerStats

M = TypeVar("M", Counter, Histogram)

FRESH_S = 5.0  # a scrape within this time gets the result of the one before
QUERY_TIMEOUT_S = 3.0
OTHER = "(other)"
"""The label of tasks that this app does not define: any client may insert rows, and the number of labels must stay small."""

QUICK_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LONG_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

_TASK = ("task", "queue")
_ATTEMPT_ENDS = (events.TaskEnded, events.TaskRetried)

# Name, help, labels, and the events that are counted, each as often as its `count`, if it has one.
_COUNTERS: Sequence[tuple[str, str, Sequence[str], Sequence[type]]] = (
    ("tasks_sent", "Tasks sent by this process.", _TASK, [events.TasksSent]),
    ("tasks_claimed", "Tasks claimed.", _TASK, [events.TasksClaimed]),
    ("tasks_started", "Attempts started.", _TASK, [events.TaskStarted]),
    ("tasks_ended", "Tasks ended, by status.", (*_TASK, "status"), [events.TaskEnded]),
    ("tasks_retried", "Attempts that failed and are retried.", _TASK, [events.TaskRetried]),
    ("tasks_crashed", "Attempts whose child process died, or was killed.", _TASK, _ATTEMPT_ENDS),
    ("tasks_rescued", "Tasks of dead workers that this maintenance leader rescued.", (), [events.TasksRescued]),
    ("tasks_expired", "Tasks that did not start in time, found by this maintenance leader.", (), [events.TasksExpired]),
    ("schedule_slots", "Schedule slots, by outcome.", ["outcome"], [events.ScheduleSlotDecided]),
    ("workflows_started", "Workflows started by this process.", (), [events.WorkflowStarted]),
    ("workers_declared_dead", "Workers that this maintenance leader declared dead.", (), [events.WorkerDeclaredDead]),
    ("children_started", "Child processes started.", (), [events.ChildStarted]),
    ("children_died", "Child processes that died unexpectedly.", (), [events.ChildDied]),
    ("children_recycled", "Child processes replaced because of their task count or memory.", (), [events.ChildRecycled]),
    ("database_errors", "Batches that failed and were repeated, by kind.", ["kind"], [events.DatabaseError]),
    ("heartbeats_missed", "Heartbeats that could not be saved.", (), [events.HeartbeatMissed]),
    ("notifications_lost", "Times that notifications stopped arriving.", (), [events.NotificationsLost]),
)  # fmt: skip
# Name, help, labels, buckets, the field that is observed, and the events that have it.
_HISTOGRAMS: Sequence[tuple[str, str, Sequence[str], Sequence[float], str, Sequence[type]]] = (
    ("task_duration_seconds", "Duration of attempts.", _TASK, LONG_BUCKETS, "duration_s", _ATTEMPT_ENDS),
    ("task_wait_seconds", "Time from sent, or due, to started.", ["queue"], LONG_BUCKETS, "wait_s", [events.TaskStarted]),
    ("send_duration_seconds", "Duration of sends.", ["queue"], QUICK_BUCKETS, "duration_s", [events.TasksSent]),
    ("batch_duration_seconds", "Duration of batches.", (), QUICK_BUCKETS, "duration_s", [events.BatchCommitted]),
)  # fmt: skip

_installed: "WeakKeyDictionary[CollectorRegistry, tuple[EventCounters, StateCollector]]" = WeakKeyDictionary()


def instrument(app: Horsies, *, registry: CollectorRegistry = REGISTRY) -> None:
    """Add the metrics of this process and of the app's queues to a registry. A second call has no effect."""
    _install(app, registry)


def exposition(app: Horsies, stats: Callable[[], WorkerStats | None]) -> Callable[[], tuple[bytes, str]]:
    """Return a function that renders `/metrics` for a worker or a scheduler, with its content type. Metrics of the user are included."""
    _install(app, REGISTRY).stats = stats
    return lambda: (generate_latest(REGISTRY), CONTENT_TYPE_LATEST)


def _install(app: Horsies, registry: CollectorRegistry) -> "StateCollector":
    if registry not in _installed:
        counters, gauges = _installed[registry] = EventCounters(registry), StateCollector()
        registry.register(gauges)
        events.subscribe(counters)
    counters, gauges = _installed[registry]
    counters.apps.add(app)
    if app not in gauges.depths:
        gauges.depths[app] = QueueDepths(app)
    return gauges


class EventCounters:
    """Count events. An instance is an event subscriber."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.apps: set[Horsies] = set()
        self._handlers: defaultdict[type, list[Callable[[Any], None]]] = defaultdict(list)
        for name, text, labels, kinds in _COUNTERS:
            counter = Counter(f"horsies_{name}", text, labels, registry=registry)
            for kind in kinds:
                only = {"error_code": OperationalErrorCode.WORKER_CRASHED} if name == "tasks_crashed" else {}
                self._handlers[kind].append(partial(self._count, counter, labels, only))
        for name, text, labels, buckets, observed, kinds in _HISTOGRAMS:
            histogram = Histogram(f"horsies_{name}", text, labels, registry=registry, buckets=buckets)
            for kind in kinds:
                self._handlers[kind].append(partial(self._observe, histogram, labels, observed))

    def __call__(self, event: events.Event) -> None:
        for handle in self._handlers.get(type(event), ()):
            handle(event)

    def _count(self, counter: Counter, labels: Sequence[str], only: Mapping[str, str], event: Any) -> None:
        if all(getattr(event, name) == value for name, value in only.items()):
            self._labelled(counter, labels, event).inc(getattr(event, "count", 1))

    def _observe(self, histogram: Histogram, labels: Sequence[str], observed: str, event: Any) -> None:
        self._labelled(histogram, labels, event).observe(getattr(event, observed))

    def _labelled(self, metric: M, labels: Sequence[str], event: Any) -> M:
        return metric.labels(*(self._label(event, name) for name in labels)) if labels else metric

    def _label(self, event: Any, label: str) -> str:
        if label == "task":
            name: str = event.task_name
            is_ours = isinstance(event, events.TasksSent) or any(name in app.tasks for app in self.apps)
            return name if is_ours else OTHER
        return event.queue_name if label == "queue" else getattr(event, label)


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
        return [
            *_queue_metrics([]),
            *_pool_metrics([]),
            *_worker_metrics(None),
            _gauge("database_up", _UP, value=False),
        ]

    def collect(self) -> Iterator[Metric]:
        reads = [depths.read() for depths in self.depths.values()]
        yield _gauge("database_up", _UP, value=None not in reads)
        yield from _queue_metrics([depth for depths in reads for depth in depths or ()])
        yield from _pool_metrics([pool_stats for depths in self.depths.values() if (pool_stats := depths.pool_stats())])
        if stats := self.stats():
            yield from _worker_metrics(stats)


_UP = "1 if the database answered this scrape or one of the last seconds."
_QUEUE_GAUGES: Sequence[tuple[str, str, Callable[[QueueDepth], float]]] = (
    ("waiting", f"Tasks that are due and wait, counted up to {MAX_COUNTED}.", lambda depth: depth.waiting),
    ("oldest_seconds", "How long the oldest of these has been waiting.", lambda depth: depth.oldest_s),
    ("in_flight", "Tasks that are CLAIMED or RUNNING in the whole cluster.", lambda depth: depth.in_flight),
    ("paused", "1 while the queue is paused.", lambda depth: depth.is_paused),
    ("unknown", f"Tasks that no living worker can run, counted up to {MAX_COUNTED}.", lambda depth: depth.unknown),
)
_POOL_GAUGES: Sequence[tuple[str, str, Callable[[PoolStats], int]]] = (
    ("connections", "Connections in the pools of this process.", lambda pool: pool.size),
    ("connections_free", "Connections of these that are free.", lambda pool: pool.available),
    ("callers_waiting", "Calls that wait for a free connection.", lambda pool: pool.waiting),
)
_WORKER_GAUGES: Sequence[tuple[str, str, Callable[[WorkerStats], float | None]]] = (
    ("worker_running", "Tasks that this worker is running.", lambda stats: stats.running),
    ("worker_buffered", "Tasks that this worker has prefetched.", lambda stats: stats.buffered),
    ("worker_slots", "Tasks that this worker can run at the same time.", lambda stats: stats.slots),
    ("worker_children", "Child processes that are ready.", lambda stats: stats.children),
    ("worker_children_wanted", "Child processes that the worker is configured to have.", lambda stats: stats.children_wanted),
    ("worker_memory_bytes", "Resident memory of the worker process.", lambda stats: stats.memory_bytes),
    ("worker_children_memory_bytes", "Resident memory of all its children together.", lambda stats: stats.children_memory_bytes),
    ("worker_maintenance_leader", "1 while this worker is the maintenance leader.", lambda stats: stats.is_leader),
    ("heartbeat_age_seconds", "Seconds since the last heartbeat was saved.", lambda stats: stats.heartbeat_age_s),
    ("listener_working", "1 while notifications arrive, 0 while this worker polls.", lambda stats: not stats.is_polling),
    ("notification_age_seconds", "Seconds since the last notification.", lambda stats: stats.notification_age_s),
)  # fmt: skip


def _gauge(name: str, text: str, *, value: float | None) -> Metric:
    return GaugeMetricFamily(f"horsies_{name}", text, value)


def _queue_metrics(depths: Sequence[QueueDepth]) -> Iterator[Metric]:
    for name, text, value in _QUEUE_GAUGES:
        family = GaugeMetricFamily(f"horsies_queue_{name}", text, labels=["queue"])
        for queue_name, number in {depth.queue_name: value(depth) for depth in depths}.items():
            family.add_metric([queue_name], number)
        yield family


def _pool_metrics(pools: Sequence[PoolStats]) -> Iterator[Metric]:
    for name, text, value in _POOL_GAUGES:
        yield _gauge(f"pool_{name}", text, value=sum(map(value, pools)) if pools else None)


def _worker_metrics(stats: WorkerStats | None) -> Iterator[Metric]:
    for name, text, value in _WORKER_GAUGES:
        yield _gauge(name, text, value=None if stats is None else value(stats))
