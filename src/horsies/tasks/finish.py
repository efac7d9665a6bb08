"""End or release claimed tasks. Both are accepted only with the current claim number.

A released task returns to PENDING, and the attempt does not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType

from horsies.db.statement import Query, load
from horsies.model.task import Claim, Ending, TaskId
from horsies.tasks.claim import HeldTask, claim_params

# All statements lock rows in this order, and `width_bucket` finds the number of a claim by it.
_LOCK_ORDER = attrgetter("id", "claim_no")
MAX_NOTIFIED_IDS = 200  # 37 bytes each; the server refuses a payload of 8,000 bytes or more

SQL = load(__file__)


def finish_tasks(worker: str, endings: Sequence[Ending]) -> Query:
    """End these claims. Returns the ids of those that this worker still held."""
    ordered = sorted(endings, key=_LOCK_ORDER)
    return SQL["finish_tasks"](
        worker=worker,
        ids=[ending.id for ending in ordered],
        claim_nos=[ending.claim_no for ending in ordered],
        statuses=[ending.status.value for ending in ordered],
        results=[ending.result for ending in ordered],
        error_codes=[ending.error_code for ending in ordered],
        errors=[ending.error for ending in ordered],
        child_pids=[ending.child_pid for ending in ordered],
    )


def end_or_retry_tasks(worker: str, endings: Sequence[Ending]) -> Query:
    """End these failed attempts or schedule their retries. Returns those that this worker still held: the id, the seconds until its retry
    or None if it has ended, its name, the number of the attempt and of how many, and its code.
    """
    ordered = sorted(endings, key=_LOCK_ORDER)
    return SQL["end_or_retry_tasks"](
        worker=worker,
        ids=[ending.id for ending in ordered],
        claim_nos=[ending.claim_no for ending in ordered],
        statuses=[ending.status.value for ending in ordered],
        error_codes=[ending.error_code for ending in ordered],
        errors=[ending.error for ending in ordered],
        child_pids=[ending.child_pid for ending in ordered],
        wants_retry=[ending.wants_retry for ending in ordered],
        retry_after_ms=[ending.retry_after_ms for ending in ordered],
    )


def store_logs(worker: str, endings: Iterable[Ending]) -> Query:
    """Store what these claims have logged, before they are ended in the same transaction. Those that this worker no longer holds are left out."""
    logged = [(ending, ending.log) for ending in sorted(endings, key=_LOCK_ORDER) if ending.log is not None]
    return SQL["store_logs"](
        worker=worker,
        ids=[ending.id for ending, _ in logged],
        claim_nos=[ending.claim_no for ending, _ in logged],
        attempts=[log.attempt for _, log in logged],
        records=[log.records for _, log in logged],
        left_out=[log.left_out for _, log in logged],
    )


def notify_done(ids: Sequence[TaskId]) -> Query:
    """Wake the waiters. Sent after COMMIT: a NOTIFY inside the transaction holds a cluster-wide lock during the fsync."""
    return SQL["notify_done"](payload=" ".join(ids) if len(ids) <= MAX_NOTIFIED_IDS else "*")


def release_tasks(
    worker: str, claims: Iterable[HeldTask], child_deaths: Mapping[TaskId, int] = MappingProxyType({})
) -> Query:
    """Release these claims. `child_deaths`: how many children died with a task before it started."""
    held = claim_params(claims)
    return SQL["release_tasks"](
        worker=worker, child_deaths=[child_deaths.get(task_id, 0) for task_id in held["ids"]], **held
    )


def release_interrupted_tasks(worker: str, endings: Sequence[Ending]) -> Query:
    """Release those of these tasks that have a retry policy and attempts left. The interrupted attempt does not count."""
    ordered = sorted(endings, key=_LOCK_ORDER)
    return SQL["release_interrupted_tasks"](
        worker=worker,
        ids=[ending.id for ending in ordered],
        claim_nos=[ending.claim_no for ending in ordered],
        error_codes=[ending.error_code for ending in ordered],
        errors=[ending.error for ending in ordered],
        child_pids=[ending.child_pid for ending in ordered],
    )


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
    """Read the claims of this worker, without their payloads."""
    return SQL["get_held_tasks"](worker=worker)
