"""Suppress sends while a worker imports modules: importing a module again must not repeat its side effects.

An app can also suppress its sends with `app.suppress_sends(True)` or $HORSIES_SUPPRESS_SENDS.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager

from horsies.model.errors import ConfigError

VARIABLE = "HORSIES_SUPPRESS_SENDS"
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_depth = 0


def sends_are_suppressed() -> bool:
    """Return whether a worker is importing modules in this process."""
    return _depth > 0


def environment_suppresses_sends() -> bool:
    """Read $HORSIES_SUPPRESS_SENDS. Raises ConfigError if it means neither yes nor no."""
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word not in (*_YES, *_NO):
        raise ConfigError("the environment", [f"${VARIABLE} is {word!r}; set it to 1 or 0, or leave it unset"])
    return word in _YES


@contextmanager
def suppress_sends() -> Generator[None]:
    """Suppress sends of the whole process, because an import may start threads that send."""
    global _depth  # noqa: PLW0603 - the state is per process
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
