"""Release: claims that have not begun go back to PENDING, uncounted."""

from collections.abc import Sequence

from horsies.db.load import load
from horsies.db.op import Query
from horsies.model.task import Claim

SQL = load(__file__)


def release(worker: str, claims: Sequence[Claim]) -> Query:
    ordered = sorted(claims, key=lambda claim: claim.id)
    return SQL["release_tasks"](
        worker=worker,
        ids=[claim.id for claim in ordered],
        claim_nos=[claim.claim_no for claim in ordered],
    )


def notify_new(claims: Sequence[Claim]) -> list[Query]:
    """Wake workers for what was put back: one notification per queue and priority, naming the oldest."""
    oldest: dict[tuple[str, int], Claim] = {}
    for claim in claims:
        lane = claim.queue_name, claim.priority
        if lane not in oldest or claim.enqueued_at < oldest[lane].enqueued_at:
            oldest[lane] = claim
    return [
        SQL["notify_new"](queue=claim.queue_name, priority=claim.priority, enqueued_at=claim.enqueued_at)
        for claim in oldest.values()
    ]


def get_held(worker: str) -> Query:
    return SQL["get_held"](worker=worker)
