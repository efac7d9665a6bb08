"""How many bytes of JSON a payload may have, and who hears of a big one.

A queue is a poor place for big things: each is written to the log of the database, copied between processes and read again
by every look at its row. Something big is told of in the log of whoever wrote it, here because only the codec sees the size.
"""

import logging
from typing import Final

from horsies.model.errors import PayloadError
from horsies.model.value import Value

DEFAULT_WARNING_BYTES: Final = 256 * 1024
MAX_NAME: Final = 200
"""Characters of the name of a task."""
DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024
MOST_BYTES: Final = 256 * 1024 * 1024  # quoted it may double, and PostgreSQL takes messages of one gigabyte

log = logging.getLogger("horsies.payload")


class PayloadLimits(Value):
    """`warning_bytes` None: nothing is told."""

    warning_bytes: int | None = DEFAULT_WARNING_BYTES
    max_bytes: int = DEFAULT_MAX_BYTES


class SizeWatch:
    """Looks at the payloads of one kind: refuses the too big, tells of the big.

    It tells again only of one twice as big, or a busy producer would fill its log with a single fact.
    """

    def __init__(self, whose: str, limits: PayloadLimits | None = None) -> None:
        self._whose = whose
        self.limits = limits or PayloadLimits()
        self._told_bytes = 0

    def look(self, payload: bytes, what: str) -> None:
        size, limits = len(payload), self.limits
        if size > limits.max_bytes:
            raise PayloadError(
                f"{what}: as JSON it has {size:,} bytes, and AppConfig.max_payload_bytes is {limits.max_bytes:,}; "
                "keep the data elsewhere and pass where it is, or raise the limit"
            )
        if limits.warning_bytes is not None and size > limits.warning_bytes and size >= 2 * self._told_bytes:
            self._told_bytes = size
            log.warning(
                "%s: %s bytes of JSON, above payload_warning_bytes=%s; keep big data elsewhere and pass where it is",
                self._whose,
                f"{size:,}",
                f"{limits.warning_bytes:,}",
            )
