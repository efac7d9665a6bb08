"""From `%(name)s` to `$1`, and from values to the texts that PostgreSQL reads: what libpq itself takes.

Text serves for everything, because every parameter in our statements is cast.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from horsies.db.op import render

_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")


@lru_cache(maxsize=1024)
def numbered(text: str, schema: str) -> tuple[bytes, tuple[str, ...]]:
    """The statement with numbers for names, and the names in their order."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1]
        return f"${names.setdefault(name, len(names) + 1)}" if name else "%"

    return render(_PLACEHOLDER.sub(number, text), schema).encode(), tuple(names)


def texts(params: Mapping[str, object], names: Sequence[str]) -> list[bytes | None]:
    return [_text(params[name]) for name in names]


def _text(value: object) -> bytes | None:
    match value:
        case None:
            return None
        case str():
            return value.encode()
        case bool():
            return b"t" if value else b"f"
        case int() | float():
            return b"%a" % value
        case datetime():
            return value.isoformat().encode()
        case _:
            raise TypeError(f"PostgreSQL is never told a {type(value).__name__}")
