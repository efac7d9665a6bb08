"""Rows as COPY reads them: a line each, with a tab between the fields.

The driver's own way adapts every field of every row, though all but two are the same in a whole batch: half of the time of a bulk send.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from horsies.db.placeholders import text

LINES_AT_ONCE = 1_000


def field(value: object) -> str:
    if value is None:
        return "\\N"
    written = value if isinstance(value, str) else text(value)
    return written.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def in_pieces(lines: Iterable[str]) -> Iterator[str]:
    """So many together that writing them is worth a call."""
    left = iter(lines)
    while piece := "".join(islice(left, LINES_AT_ONCE)):
        yield piece
