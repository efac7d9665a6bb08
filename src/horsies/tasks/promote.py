"""Promote: tasks that were put off become claimable when they are due."""

from horsies.db.load import load
from horsies.db.op import Query

BATCH = 500

SQL = load(__file__)


def promote() -> Query:
    """The lanes that got something, as they are notified. A row that cannot be changed stays as it is, and keeps no other."""
    return SQL["promote_tasks"](limit=BATCH)


def get_next_due() -> Query:
    """In how many seconds the next one is due, or None; and whether one is due that was not promoted."""
    return SQL["get_next_due"]()
