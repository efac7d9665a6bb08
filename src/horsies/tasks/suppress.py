"""While a worker imports modules, sends enqueue nothing: importing a module again must not run its side effects again."""

from collections.abc import Generator
from contextlib import contextmanager

_depth = 0


def sends_are_suppressed() -> bool:
    return _depth > 0


@contextmanager
def suppress_sends() -> Generator[None]:
    """Process-wide, because an import may start threads of its own."""
    global _depth  # noqa: PLW0603 - a fact about the process
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
