"""Release: claims that have not begun go back to PENDING, uncounted."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol, TypedDict

from horsies.db.statement import Query, load
from horsies.model.task import Claim, TaskId

SQL = load(__file__)


class Held(Protocol):
    """A claim, however it is known: only this very one is given back."""

    @property
    def id(self) -> TaskId: ...
    @property
    def claim_no(self) -> int: ...


class _Arrays(TypedDict):
    ids: list[TaskId]
    claim_nos: list[int]


def release_tasks(
    worker: str, claims: Iterable[Held], child_deaths: Mapping[TaskId, int] = MappingProxyType({})
) -> Query:
    """Give these back; `child_deaths` of those that child processes have died with before they began."""
    held = _arrays(claims)
    return SQL["release_tasks"](
        worker=worker, child_deaths=[child_deaths.get(task_id, 0) for task_id in held["ids"]], **held
    )


def release_interrupted_tasks(worker: str, endings: Iterable[Held]) -> Query:
    """Give back, uncounted, those of these that have a retry policy and attempts left."""
    return SQL["release_interrupted_tasks"](worker=worker, **_arrays(endings))


def _arrays(claims: Iterable[Held]) -> _Arrays:
    """Sorted: the statements find a claim's number by its place."""
    ordered = sorted((claim.id, claim.claim_no) for claim in claims)
    return _Arrays(ids=[task_id for task_id, _ in ordered], claim_nos=[claim_no for _, claim_no in ordered])


def notify_new_tasks(claims: Sequence[Claim]) -> list[Query]:
    """Wake workers for what was put back: one notification per queue and priority, naming the oldest."""
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
    """Capped capacity is free again: whoever has room may try."""
    return SQL["notify_capacity_freed"]()


def notify_all_queues() -> Query:
    """Something was put back, wherever it belongs: everyone looks from the start."""
    return SQL["notify_all_queues"]()


def report_progress(worker: str, reports: Sequence[tuple[TaskId, int, str]]) -> Query:
    """Progress by id, claim number and JSON."""
    return SQL["report_progress"](
        worker=worker,
        ids=[task_id for task_id, _, _ in reports],
        claim_nos=[claim_no for _, claim_no, _ in reports],
        progress=[progress for _, _, progress in reports],
    )


def get_held_tasks(worker: str) -> Query:
    return SQL["get_held_tasks"](worker=worker)
