"""While a worker imports modules, sends enqueue nothing: importing a module again must not run its side effects again.

An app may also be told to suppress its sends, by `app.suppress_sends(True)` or by $HORSIES_SUPPRESS_SENDS.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager

from horsies.model.errors import ConfigError

VARIABLE = "HORSIES_SUPPRESS_SENDS"
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_depth = 0


def sends_are_suppressed() -> bool:
    """A worker is importing modules."""
    return _depth > 0


def environment_suppresses_sends() -> bool:
    """Read $HORSIES_SUPPRESS_SENDS. Raises ConfigError if it says neither yes nor no."""
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word not in (*_YES, *_NO):
        raise ConfigError("the environment", [f"${VARIABLE} is {word!r}; set it to 1 or 0, or leave it unset"])
    return word in _YES


@contextmanager
def suppress_sends() -> Generator[None]:
    """Process-wide, because an import may start threads of its own."""
    global _depth  # noqa: PLW0603 - a fact about the process
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
