"""Metrics for Prometheus: `pip install horsies[prometheus]`.

A worker or a scheduler started with `--metrics-port` serves them. A producer that has its own `/metrics` adds ours to it:

    from horsies.contrib import prometheus
    prometheus.instrument(app)

What happens is counted from events, in the process where it happens: a worker's children run tasks, but their worker counts them. How queues are is
asked of the database when somebody scrapes, by one query whose cost does not grow with the backlog, at most every few seconds.
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
from horsies.worker.health import WorkerStats

FRESH_S = 5.0
PATIENCE_S = 3.0
OTHER = "(other)"
"""The label of tasks that this process does not know: anybody may insert rows, and labels must stay few."""

QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

_installed: "WeakKeyDictionary[CollectorRegistry, _Installed]" = WeakKeyDictionary()


def instrument(app: Horsies, *, registry: CollectorRegistry = REGISTRY) -> None:
    """Count what this process sends and does, and tell how the app's queues are, in this registry. Calling it again changes nothing."""
    _installed_in(registry).add(app)


def exposition(app: Horsies, stats: Callable[[], WorkerStats | None]) -> Callable[[], tuple[bytes, str]]:
    """For a worker or a scheduler: what its `/metrics` says, the user's own metrics included, and the type of it."""
    installed = _installed_in(REGISTRY)
    installed.add(app)
    installed.gauges.stats = stats
    return lambda: (generate_latest(REGISTRY), CONTENT_TYPE_LATEST)


def _installed_in(registry: CollectorRegistry) -> "_Installed":
    if registry not in _installed:
        _installed[registry] = _Installed(registry)
    return _installed[registry]


class _Installed:
    """All there is in one registry."""

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
    """A subscriber: counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.apps: set[Horsies] = set()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        task, kind = ["task", "queue"], ["task", "queue", "status"]
        self._sent = counter("horsies_tasks_sent", "Tasks sent by this process.", task)
        self._claimed = counter("horsies_tasks_claimed", "Tasks claimed.", task)
        self._started = counter("horsies_tasks_started", "Attempts begun.", task)
        self._ended = counter("horsies_tasks_ended", "Tasks ended, by status.", kind)
        self._retried = counter("horsies_tasks_retried", "Attempts that failed and are retried.", task)
        self._crashed = counter("horsies_tasks_crashed", "Attempts whose child process died, or was killed.", task)
        self._rescued = counter("horsies_tasks_rescued", "Tasks of dead workers that this leader took care of.")
        self._expired = counter("horsies_tasks_expired", "Tasks that did not begin in time, found by this leader.")
        self._slots = counter("horsies_schedule_slots", "What became of slots of schedules, by outcome.", ["outcome"])
        self._workflows = counter("horsies_workflows_started", "Workflows started by this process.")
        self._declared_dead = counter("horsies_workers_declared_dead", "Workers that this leader found dead.")
        self._born = counter("horsies_children_started", "Child processes started.")
        self._died = counter("horsies_children_died", "Child processes that died unexpectedly.")
        self._recycled = counter("horsies_children_recycled", "Child processes replaced because of their age or size.")
        self._troubles = counter("horsies_database_errors", "Turns that failed and were repeated, by kind.", ["kind"])
        self._missed = counter("horsies_heartbeats_missed", "Heartbeats that the database did not take.")
        self._deaf = counter("horsies_notifications_lost", "How often notifications ceased to arrive.")
        self._duration = histogram("horsies_task_duration_seconds", "How long attempts ran.", task, buckets=LONG)
        self._wait = histogram("horsies_task_wait_seconds", "From sent or due to begun.", ["queue"], buckets=LONG)
        self._send = histogram("horsies_send_duration_seconds", "How long a send took.", ["queue"], buckets=QUICK)
        self._batch = histogram("horsies_batch_duration_seconds", "How long a turn took.", buckets=QUICK)
        self._on_message: dict[type[Any], Callable[[Any], None]] = {
            events.TasksSent: self._hear_sent,
            events.TasksClaimed: lambda event: self._claimed.labels(*self._who(event)).inc(event.count),
            events.TaskStarted: self._hear_started,
            events.TaskEnded: self._hear_ended,
            events.TaskRetried: self._hear_retried,
            events.TasksRescued: lambda event: self._rescued.inc(event.count),
            events.TasksExpired: lambda event: self._expired.inc(event.count),
            events.ScheduleSlotDecided: lambda event: self._slots.labels(event.outcome).inc(),
            events.WorkflowStarted: lambda _: self._workflows.inc(),
            events.WorkerDeclaredDead: lambda _: self._declared_dead.inc(),
            events.ChildStarted: lambda _: self._born.inc(),
            events.ChildDied: lambda _: self._died.inc(),
            events.ChildRecycled: lambda _: self._recycled.inc(),
            events.DatabaseError: lambda event: self._troubles.labels(event.kind).inc(),
            events.HeartbeatMissed: lambda _: self._missed.inc(),
            events.NotificationsLost: lambda _: self._deaf.inc(),
            events.BatchCommitted: lambda event: self._batch.observe(event.duration_s),
        }

    def __call__(self, event: events.Event) -> None:
        if receive_message := self._on_message.get(type(event)):
            receive_message(event)

    def _who(
        self, event: events.TasksClaimed | events.TaskStarted | events.TaskEnded | events.TaskRetried
    ) -> Sequence[str]:
        name = event.task_name
        return name if any(name in app.tasks for app in self.apps) else OTHER, event.queue_name

    def _hear_sent(self, event: events.TasksSent) -> None:
        self._sent.labels(event.task_name, event.queue_name).inc(event.count)
        self._send.labels(event.queue_name).observe(event.duration_s)

    def _hear_started(self, event: events.TaskStarted) -> None:
        self._started.labels(*self._who(event)).inc()
        self._wait.labels(event.queue_name).observe(event.wait_s)

    def _hear_ended(self, event: events.TaskEnded) -> None:
        self._ended.labels(*self._who(event), event.status).inc()
        self._hear_end_of_attempt(event)

    def _hear_retried(self, event: events.TaskRetried) -> None:
        self._retried.labels(*self._who(event)).inc()
        self._hear_end_of_attempt(event)

    def _hear_end_of_attempt(self, event: events.TaskEnded | events.TaskRetried) -> None:
        self._duration.labels(*self._who(event)).observe(event.duration_s)
        if event.error_code == OperationalErrorCode.WORKER_CRASHED:
            self._crashed.labels(*self._who(event)).inc()


# -- what is asked when somebody scrapes


class QueueDepths:
    """How the queues of one app are: asked by one scrape at a time, and none waits long for an answer."""

    def __init__(self, app: Horsies) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._is_asking = False
        self._broker: PostgresBroker | None = None
        self._found: Sequence[QueueDepth] | None = None
        self._found_at = 0.0

    def look(self) -> Sequence[QueueDepth] | None:
        """None: the database does not answer."""
        with self._lock:
            if time.monotonic() - self._found_at < FRESH_S:
                return self._found
            if not self._is_asking:
                self._is_asking = True
                self._answered.clear()
                threading.Thread(target=self._ask, name="horsies-depths", daemon=True).start()
        return self._found if self._answered.wait(PATIENCE_S) else None

    def pool_stats(self) -> PoolStats | None:
        """How its connections are; None: the app has none yet."""
        return None if self._broker is None else self._broker.pools.stats()

    def _ask(self) -> None:
        found = None
        try:
            self._broker = self._app.broker
            found = self._broker.run(partial(get_queue_depths, [queue.name for queue in self._app.config.queues]))
        except HorsiesError:
            pass  # `horsies_database_up` tells
        finally:
            with self._lock:
                self._found, self._found_at, self._is_asking = found, time.monotonic(), False
            self._answered.set()


class StateCollector(Collector):
    """How things are now: queues, connections, and the worker if this process is one."""

    def __init__(self) -> None:
        self.depths: dict[Horsies, QueueDepths] = {}
        self.stats: Callable[[], WorkerStats | None] = lambda: None

    def describe(self) -> Iterable[Metric]:
        """Their names, without asking anybody."""
        return [*_of_queues([]), *_of_pools([]), *_of_worker(None), _up(is_up=False)]

    def collect(self) -> Iterator[Metric]:
        looks = [depths.look() for depths in self.depths.values()]
        yield _up(is_up=None not in looks)
        yield from _of_queues([depth for look in looks for depth in look or ()])
        yield from _of_pools([pool_stats for depths in self.depths.values() if (pool_stats := depths.pool_stats())])
        if stats := self.stats():
            yield from _of_worker(stats)


def _up(*, is_up: bool) -> Metric:
    return GaugeMetricFamily("horsies_database_up", "The database has answered this scrape, or the one before.", is_up)


def _of_queues(depths: Sequence[QueueDepth]) -> Iterator[Metric]:
    def gauge(name: str, words: str, value: Callable[[QueueDepth], float]) -> Metric:
        family = GaugeMetricFamily(f"horsies_queue_{name}", words, labels=["queue"])
        for queue, found in {depth.queue_name: value(depth) for depth in depths}.items():
            family.add_metric([queue], found)
        return family

    yield gauge("waiting", f"Tasks that are due and wait, counted up to {MAX_COUNTED}.", lambda depth: depth.waiting)
    yield gauge("oldest_seconds", "How long the oldest of these has waited.", lambda depth: depth.oldest_s)
    yield gauge("in_flight", "Tasks that workers hold, all over the cluster.", lambda depth: depth.in_flight)
    yield gauge("paused", "1 while nothing is claimed from it.", lambda depth: depth.is_paused)
    yield gauge(
        "unknown",
        f"Tasks that no living worker can run, counted up to {MAX_COUNTED}.",
        lambda depth: depth.unknown,
    )


def _of_pools(found: Sequence[PoolStats]) -> Iterator[Metric]:
    def gauge(name: str, words: str, value: Callable[[PoolStats], int]) -> Metric:
        return GaugeMetricFamily(f"horsies_pool_{name}", words, sum(map(value, found)) if found else None)

    yield gauge("connections", "Connections of this process that its calls share.", lambda pool_stats: pool_stats.size)
    yield gauge("connections_free", "Those that nobody uses.", lambda pool_stats: pool_stats.available)
    yield gauge("callers_waiting", "Calls that wait for one to be free.", lambda pool_stats: pool_stats.waiting)


def _of_worker(stats: WorkerStats | None) -> Iterator[Metric]:
    def gauge(name: str, words: str, value: Callable[[WorkerStats], float | None]) -> Metric:
        found = None if stats is None else value(stats)
        return GaugeMetricFamily(f"horsies_{name}", words, found)

    yield gauge("worker_running", "Tasks that run in this worker.", lambda seen: seen.running)
    yield gauge("worker_buffered", "Tasks that this worker has claimed ahead.", lambda seen: seen.buffered)
    yield gauge("worker_slots", "Tasks that it can run at once.", lambda seen: seen.slots)
    yield gauge("worker_children", "Child processes that are ready.", lambda seen: seen.children)
    yield gauge("worker_children_wanted", "Child processes that there should be.", lambda seen: seen.children_wanted)
    yield gauge("worker_memory_bytes", "Resident memory of the worker itself.", lambda seen: seen.memory_bytes)
    yield gauge(
        "worker_children_memory_bytes", "The same of its children together.", lambda seen: seen.children_memory_bytes
    )
    yield gauge(
        "worker_maintenance_leader", "1 while this worker is the maintenance leader.", lambda seen: seen.is_leader
    )
    yield gauge("heartbeat_age_seconds", "Since its last sign of life was taken.", lambda seen: seen.heartbeat_age_s)
    yield gauge(
        "listener_working", "1 while notifications arrive; 0: this worker polls.", lambda seen: not seen.is_polling
    )
    yield gauge("notification_age_seconds", "Since the last notification.", lambda seen: seen.notification_age_s)
