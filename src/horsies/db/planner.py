"""For sessions that are not ours, where it is not said once and for all (`session.py`): an index is the only way into a table."""

from horsies.db.statement import Op, Query, Rows, execute, load

SQL = load(__file__)


def disable_sequential_scans() -> Query:
    """To be said first in a transaction that looks for few rows among many, whatever the statistics say."""
    return SQL["disable_sequential_scans"]()


# --------
# Statements whose plan depends on their values: filters that may be left out, for those who look from outside.


def plan_for_values(query: Query) -> Op[Rows]:
    """The rows of a statement that only reads, in a transaction of its own."""
    _, _, found, _ = yield from execute(SQL["begin_read"](), SQL["force_custom_plans"](), query, SQL["end_read"]())
    return found
