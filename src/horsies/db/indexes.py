"""For sessions that are not ours, where it is not said once and for all (`session.py`): an index is the only way into a table."""

from horsies.db.load import load
from horsies.db.op import Query

SQL = load(__file__)


def keep_to_indexes() -> Query:
    """To be said first in a transaction that looks for few rows among many, whatever the statistics say."""
    return SQL["disable_sequential_scans"]()
