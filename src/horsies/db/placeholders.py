"""From `%(name)s` to `$1`, and from values to text: for those who number their parameters, libpq itself and asyncpg.

Text serves for everything, because every parameter in our statements is cast.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from horsies.db.op import render

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


@lru_cache(maxsize=1024)
def numbered(text: str, schema: str, cast: str = "") -> tuple[str, tuple[str, ...]]:
    """The statement with numbers for names, each followed by the cast, and the names in their order."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1]
        return f"${names.setdefault(name, len(names) + 1)}{cast}" if name else "%"

    return render(_PLACEHOLDER.sub(number, text), schema), tuple(names)


def texts(params: Mapping[str, object], names: Sequence[str]) -> list[str | None]:
    """In the order of the names. Most are text already, or nothing."""
    values = [params[name] for name in names]
    return [value if value is None or isinstance(value, str) else text(value) for value in values]


def text(value: object) -> str:
    """Of what is neither text nor nothing."""
    match value:
        case bool():
            return "t" if value else "f"
        case int() | float():
            return str(value)
        case datetime():
            return value.isoformat()
        case _:
            raise TypeError(f"PostgreSQL is never told a {type(value).__name__}")
