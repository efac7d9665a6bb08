"""Promote: tasks that were put off become claimable when they are due."""

from horsies.db.load import load
from horsies.db.op import Query

BATCH = 500

SQL = load(__file__)


def promote() -> Query:
    """The lanes that got something, as they are notified."""
    return SQL["promote_tasks"](limit=BATCH)


def get_next_due() -> Query:
    return SQL["get_next_due"]()
