"""End claimed tasks. A result is accepted only with the current claim number."""

from collections.abc import Sequence

from horsies.db.statement import Query, load
from horsies.model.task import Ending, TaskId

MAX_NOTIFIED_IDS = 200  # 37 bytes each; the server refuses a payload of 8,000 bytes or more

SQL = load(__file__)


def finish_tasks(worker: str, endings: Sequence[Ending]) -> Query:
    """End these claims. Returns the ids of those that this worker still held."""
    ordered = _ordered(endings)
    return SQL["finish_tasks"](
        worker=worker,
        ids=[ending.id for ending in ordered],
        claim_nos=[ending.claim_no for ending in ordered],
        statuses=[ending.status.value for ending in ordered],
        results=[ending.result for ending in ordered],
        error_codes=[ending.error_code for ending in ordered],
        errors=[ending.error for ending in ordered],
    )


def end_or_retry_tasks(worker: str, endings: Sequence[Ending]) -> Query:
    """End these failed attempts or schedule their retries. Returns the ids of those that this worker still held, each with the
    seconds until its retry, or None if it has ended.
    """
    ordered = _ordered(endings)
    return SQL["end_or_retry_tasks"](
        worker=worker,
        ids=[ending.id for ending in ordered],
        claim_nos=[ending.claim_no for ending in ordered],
        statuses=[ending.status.value for ending in ordered],
        error_codes=[ending.error_code for ending in ordered],
        errors=[ending.error for ending in ordered],
        wants_retry=[ending.wants_retry for ending in ordered],
        retry_after_ms=[ending.retry_after_ms for ending in ordered],
    )


def _ordered(endings: Sequence[Ending]) -> list[Ending]:
    """Sort by id: all statements lock rows in this order, and `width_bucket` finds the number of a claim by it."""
    return sorted(endings, key=lambda ending: (ending.id, ending.claim_no))


def notify_done(ids: Sequence[TaskId]) -> Query:
    """Wake the waiters. Sent after COMMIT: a NOTIFY inside the transaction holds a cluster-wide lock during the fsync."""
    return SQL["notify_done"](payload=" ".join(ids) if len(ids) <= MAX_NOTIFIED_IDS else "*")
