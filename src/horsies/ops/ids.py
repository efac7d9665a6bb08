"""Find ids of tasks, workflows and workers by a prefix, as ranges of their indexes."""

import re
from typing import Final

from horsies.db.statement import Op, load, rows

ID_LENGTH: Final = 36  # characters
ID_PREFIX: Final = re.compile(r"[0-9a-fA-F-]{1,36}")
_DIGITS: Final = 32  # hexadecimal digits of a UUID

SQL = load(__file__)


def find_ids(kind: str, prefix: str, *, limit: int) -> Op[list[str]]:
    """Return the first ids with this prefix. `kind` is tasks, workflows or workers. Text that cannot begin an id has none."""
    digits = prefix.replace("-", "")
    if not ID_PREFIX.fullmatch(prefix) or not 0 < len(digits) <= _DIGITS:
        return []
    query = SQL[f"find_{kind}"](lowest=digits.ljust(_DIGITS, "0"), highest=digits.ljust(_DIGITS, "f"), limit=limit)
    return [found for (found,) in (yield from rows(query))]
