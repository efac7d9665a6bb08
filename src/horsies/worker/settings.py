"""From what the app and the worker were told to what the pump works by."""

from horsies.model.config import AppConfig, CustomQueueConfig
from horsies.model.errors import ConfigError
from horsies.model.status import TaskStatus
from horsies.model.worker import WorkerConfig
from horsies.tasks.claim import Caps
from horsies.worker.frames import Frames
from horsies.worker.marks import Marks
from horsies.worker.room import Limits


def queues_of(app: AppConfig, config: WorkerConfig) -> list[CustomQueueConfig]:
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


def marks_of(app: AppConfig, config: WorkerConfig) -> Marks:
    return Marks([queue.name for queue in queues_of(app, config)])


def frames_of(app: AppConfig, config: WorkerConfig) -> Frames:
    return Frames(app.prefetch_buffer, config.process_count, config.concurrency)


def limits_of(app: AppConfig, config: WorkerConfig) -> Limits:
    is_soft = app.prefetch_buffer != 0
    caps = Caps(
        cluster_wide=app.cluster_wide_cap,
        queues={q.name: q.max_concurrency for q in queues_of(app, config) if q.max_concurrency is not None},
        # With a buffer only what runs counts against a queue's cap.
        counted=(TaskStatus.RUNNING,) if is_soft else (TaskStatus.CLAIMED, TaskStatus.RUNNING),
    )
    return Limits(
        lease_ms=app.lease_ms,
        caps=caps,
        max_claim_batch=config.max_claim_batch,
        max_claim_per_worker=config.max_claim_per_worker,
    )
