"""Purge: finished tasks are deleted before their retention would take them. What is live is never touched."""

from collections.abc import Sequence

from horsies.db.indexes import keep_to_indexes
from horsies.db.load import load
from horsies.db.op import Op, ask
from horsies.tasks.list import TaskLine

SQL = load(__file__)


def purge(lines: Sequence[TaskLine]) -> Op[int]:
    """Delete these very endings; one that has been retried since is another, or none. How many there were."""
    ordered = sorted((line.id, line.claim_no, line.finished_at) for line in lines if line.finished_at is not None)
    if not ordered:
        return 0
    moments = [finished_at for _, _, finished_at in ordered]
    _, _, deleted, _ = yield from ask(
        SQL["begin_purge"](),
        keep_to_indexes(),
        SQL["purge_finished"](
            ids=[task_id for task_id, _, _ in ordered],
            claim_nos=[claim_no for _, claim_no, _ in ordered],
            since=min(moments),
            until=max(moments),
        ),
        SQL["commit_purge"](),
    )
    return len(deleted)
