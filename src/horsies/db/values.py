"""Statements whose plan depends on their values: filters that may be left out, for those who look from outside."""

from horsies.db.load import load
from horsies.db.op import Op, Query, Rows, ask

SQL = load(__file__)


def planned_for_values(query: Query) -> Op[Rows]:
    """The rows of a statement that only reads, in a transaction of its own."""
    _, _, found, _ = yield from ask(SQL["begin_read"](), SQL["force_custom_plans"](), query, SQL["end_read"]())
    return found
