"""Release claims: tasks that have not started return to PENDING, and the attempt does not count."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from horsies.db.statement import Query, load
from horsies.model.task import Claim, TaskId
from horsies.tasks.claim import HeldTask, claim_params

SQL = load(__file__)


def release_tasks(
    worker: str, claims: Iterable[HeldTask], child_deaths: Mapping[TaskId, int] = MappingProxyType({})
) -> Query:
    """Release these claims. `child_deaths`: how many children died with a task before it started."""
    held = claim_params(claims)
    return SQL["release_tasks"](
        worker=worker, child_deaths=[child_deaths.get(task_id, 0) for task_id in held["ids"]], **held
    )


def release_interrupted_tasks(worker: str, endings: Iterable[HeldTask]) -> Query:
    """Release those of these tasks that have a retry policy and attempts left. The interrupted attempt does not count."""
    return SQL["release_interrupted_tasks"](worker=worker, **claim_params(endings))


def notify_new_tasks(claims: Sequence[Claim]) -> list[Query]:
    """Notify workers of released tasks: once for each queue and priority, with the oldest task."""
    oldest: dict[tuple[str, int], Claim] = {}
    for claim in claims:
        lane = claim.queue_name, claim.priority
        if lane not in oldest or claim.enqueued_at < oldest[lane].enqueued_at:
            oldest[lane] = claim
    return [
        SQL["notify_new_tasks"](queue=claim.queue_name, priority=claim.priority, enqueued_at=claim.enqueued_at)
        for claim in oldest.values()
    ]


def notify_capacity_freed() -> Query:
    """Notify workers that a capped queue, or the cluster, has capacity again."""
    return SQL["notify_capacity_freed"]()


def notify_all_queues() -> Query:
    """Notify workers that tasks may have returned to any queue, so that they claim from the start of each."""
    return SQL["notify_all_queues"]()


def report_progress(worker: str, reports: Sequence[tuple[TaskId, int, str]]) -> Query:
    """Store progress reports: id, claim number and JSON."""
    return SQL["report_progress"](
        worker=worker,
        ids=[task_id for task_id, _, _ in reports],
        claim_nos=[claim_no for _, claim_no, _ in reports],
        progress=[progress for _, _, progress in reports],
    )


def get_held_tasks(worker: str) -> Query:
    return SQL["get_held_tasks"](worker=worker)
