"""The NOTIFY channels. Their names carry a hash of the schema: two installations in one database do not wake each other.

**Anyone may listen, and anyone may notify**: PostgreSQL asks for no privilege but to connect to the database. So payloads hold nothing but ids, names of
queues, priorities and times, and whoever receives one takes it for a hint to look now: it is checked before it is used, it cannot make a statement fail, and
the rows decide what is done. Where a look is dear, hints lead to a limited number of them.

**Somebody must wait.** A notification wakes every session of the database that listens, to whatever channel, so one that nobody waits for is
better not sent. Whoever listens to DONE holds an advisory lock meanwhile, shared with all others who do. It can be had alone only when nobody
listens, and that is what an ending asks for after its COMMIT. No wake-up is lost: a waiter takes the lock before it listens, and looks only after
that, so an ending that was committed before the lock was taken is seen, and one that was committed later finds it taken. A waiter that
dies lets go of it with its session.
"""

import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import TypeAlias


class Channel(StrEnum):
    NEW = "new"
    """Something can be claimed. Payload: `priority enqueued_at_us queue_name`, the oldest row of them; `later us`, the time until it is due; `freed`, when
    capped capacity is; or `*`, when there may be something anywhere.
    """

    DONE = "done"
    """Tasks have ended: their ids, or `*` when they are too many to name; only while somebody listens. Or runs of workflows: theirs, in any case,
    because that is said inside the transaction, where nobody can ask for the lock without holding it until the COMMIT.
    """

    CONTROL = "control"
    """Asks one worker to look at its rows and to beat. Payload: `worker_id cancel task_id`, or `worker_id ping`."""

    SCHEDULES = "schedules"
    """Schedules were changed: when the next slot is may be another moment now. No payload."""

    TEST = "test"
    """The listener's own self-test. Payload: a token that only one listener knows."""

    def name_in(self, schema: str) -> str:
        return f"horsies_{_hash(schema)[:8]}_{self.value}"

    @property
    def is_for_waiters(self) -> bool:
        """Whoever listens to it holds the lock of those who wait."""
        return self is Channel.DONE


def waiters_lock(schema: str) -> int:
    """The key of the advisory lock that says that somebody waits."""
    return int(_hash(f"{schema} waiters")[:16], 16) - (1 << 63)


def worker_lock_scope(schema: str) -> str:
    """What stands before the id of a worker in the name of its advisory lock, whose key is `hashtextextended(name, 0)`.

    Two sessions of a worker hold it together, that of its heartbeat and that of its listener. The server lets go of it when both are gone.
    """
    return f"horsies {_hash(schema)[:8]} worker "


@lru_cache(maxsize=64)
def _hash(schema: str) -> str:
    return sha256(schema.encode()).hexdigest()


# --------
# Who wants to be woken for what. Thread-safe; knows nothing of connections.
#
# A payload may come from anyone: LISTEN and NOTIFY need no privilege. A subscriber must take it for a hint to look now, and nothing else.

Wake: TypeAlias = Callable[[str | None], None]
"""Called with the payload, or with None when anything may have happened. Must be quick and safe from any thread."""

ALL_KEYS = "*"

log = logging.getLogger("horsies.listen")


class Subscriptions:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: dict[Channel, dict[str | None, list[Wake]]] = {}

    def add(self, channel: Channel, key: str | None, wake_callback: Wake) -> None:
        """Ring this bell for payloads that name this key; None means for every payload."""
        with self._lock:
            self._subscriptions.setdefault(channel, {}).setdefault(key, []).append(wake_callback)

    def remove(self, channel: Channel, key: str | None, wake_callback: Wake) -> None:
        with self._lock:
            by_key = self._subscriptions[channel]
            by_key[key].remove(wake_callback)
            if not by_key[key]:
                del by_key[key]

    def channels(self) -> set[Channel]:
        with self._lock:
            return {channel for channel, by_key in self._subscriptions.items() if by_key}

    def wake_subscribers(self, channel: Channel, payload: str) -> None:
        with self._lock:
            by_key = self._subscriptions.get(channel, {})
            keys = list(by_key) if payload == ALL_KEYS else [None, *payload.split(" ")]
            found = [wake_callback for key in keys for wake_callback in by_key.get(key, ())]
        _wake(found, payload)

    def wake_all(self, channel: Channel | None = None) -> None:
        """Something may have been missed: everyone looks again."""
        with self._lock:
            channels = [channel] if channel else list(self._subscriptions)
            found = [
                wake_callback
                for name in channels
                for subscriptions in self._subscriptions.get(name, {}).values()
                for wake_callback in subscriptions
            ]
        _wake(found, None)


def _wake(subscriptions: list[Wake], payload: str | None) -> None:
    """One that fails must not keep the others from being rung, nor end the thread or the reader that rings them."""
    for wake_callback in subscriptions:
        try:
            wake_callback(payload)
        except Exception:
            log.exception("a subscriber failed on a notification")
