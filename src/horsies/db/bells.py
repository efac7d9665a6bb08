"""Who wants to be woken for what. Thread-safe; knows nothing of connections.

A payload may come from anyone: LISTEN and NOTIFY need no privilege. A subscriber must take it for a hint to look now, and nothing else.
"""

import logging
import threading
from collections.abc import Callable
from typing import TypeAlias

from horsies.db.channels import Channel

Bell: TypeAlias = Callable[[str | None], None]
"""Called with the payload, or with None when anything may have happened. Must be quick and safe from any thread."""

EVERYONE = "*"

log = logging.getLogger("horsies.listen")


class Bells:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bells: dict[Channel, dict[str | None, list[Bell]]] = {}

    def add(self, channel: Channel, key: str | None, bell: Bell) -> None:
        """Ring this bell for payloads that name this key; None means for every payload."""
        with self._lock:
            self._bells.setdefault(channel, {}).setdefault(key, []).append(bell)

    def remove(self, channel: Channel, key: str | None, bell: Bell) -> None:
        with self._lock:
            by_key = self._bells[channel]
            by_key[key].remove(bell)
            if not by_key[key]:
                del by_key[key]

    def channels(self) -> set[Channel]:
        with self._lock:
            return {channel for channel, by_key in self._bells.items() if by_key}

    def ring(self, channel: Channel, payload: str) -> None:
        with self._lock:
            by_key = self._bells.get(channel, {})
            keys = list(by_key) if payload == EVERYONE else [None, *payload.split(" ")]
            found = [bell for key in keys for bell in by_key.get(key, ())]
        _ring(found, payload)

    def ring_all(self, channel: Channel | None = None) -> None:
        """Something may have been missed: everyone looks again."""
        with self._lock:
            channels = [channel] if channel else list(self._bells)
            found = [bell for name in channels for bells in self._bells.get(name, {}).values() for bell in bells]
        _ring(found, None)


def _ring(bells: list[Bell], payload: str | None) -> None:
    """One that fails must not keep the others from being rung, nor end the thread or the reader that rings them."""
    for bell in bells:
        try:
            bell(payload)
        except Exception:
            log.exception("a subscriber failed on a notification")
