"""Finish: the one way a claimed task ends."""

from collections.abc import Sequence

from horsies.db.statement import Query, load
from horsies.model.task import Ending, TaskId

SQL = load(__file__)

NAMED_AT_MOST = 200  # 37 bytes each: a payload over 8 000 bytes would be refused by the server


def finish_tasks(worker: str, endings: Sequence[Ending]) -> Query:
    """End these claims; the ids of those that were still this worker's come back."""
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
    """End these failed attempts, or put them off for a retry; what was still this worker's comes back, with the seconds until
    its retry or None.
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


def notify_done(ids: Sequence[TaskId]) -> Query:
    """Wake the waiters. Sent after COMMIT: NOTIFY inside the transaction would take a cluster-wide lock for its fsync."""
    return SQL["notify_done"](payload=" ".join(ids) if len(ids) <= NAMED_AT_MOST else "*")


def _ordered(endings: Sequence[Ending]) -> list[Ending]:
    """Everyone locks rows in order of their ids, and the statement finds a claim's number by that order."""
    return sorted(endings, key=lambda ending: (ending.id, ending.claim_no))
