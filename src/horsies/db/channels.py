"""The NOTIFY channels of an installation, and the locks that go with them.

The name of a channel contains a hash of the schema: two installations in one database do not wake each other.

**Any user may listen and notify.** PostgreSQL requires no privilege except to connect to the database. So payloads contain only
ids, names of queues, priorities and times, and a receiver treats them as a hint to read now: a payload is checked before it is used,
it cannot make a statement fail, and the rows decide what is done. Where a read is expensive, hints cause a limited number of reads.

**Notify only if there is a waiter.** A notification wakes every session of the database that listens, on any channel, so one without
a waiter should not be sent. Every process that listens on DONE holds an advisory lock, shared with the others. A session can take
it exclusively only if no process listens; an ending tries this after its COMMIT. No wake-up is lost: a waiter takes the lock before it
listens, and reads after that. So it sees an ending that was committed before it took the lock, and one that was committed later finds
the lock taken. If a waiter dies, its session releases the lock.

**Only a few processes listen on DONE**: those that hold one of a few slots (`listen_group.py`). The waiters of the others poll. Before this, each
process that waited made every NOTIFY of the database slower. A slot is taken before the lock of the waiters, and given up soon after the last waiter has
left. A role that takes all slots makes waiters poll, and nothing worse.
"""

from enum import StrEnum
from functools import lru_cache
from hashlib import sha256

ALL_KEYS = "*"
FOR_ANY = "any "
"""Before the payload of a notification about tasks: any worker may take them."""


class Channel(StrEnum):
    NEW = "new"
    """Tasks can be claimed. Payload: `priority enqueued_at_us queue_name` of the oldest row; the same with `any ` before it, for all workers and not only
    the one whose turn it is; `later us`, the time until a row is due; `freed`, when capped capacity is free; or `*`, when there may be tasks anywhere.
    Among the workers: `listeners group`, when other workers listen than before (`listen_group.py`).
    """

    DONE = "done"
    """Tasks have ended: their ids, or `*` if there are too many to name; only while a process listens. Or runs of workflows: their ids, always,
    because this is sent inside the transaction, which would hold the lock of the waiters until its COMMIT.
    """

    CONTROL = "control"
    """A request to one worker to read its rows and send a heartbeat. Payload: `worker_id cancel task_id`, or `worker_id ping`."""

    SCHEDULES = "schedules"
    """Schedules were changed, so the next slot may be at another time. No payload."""

    TEST = "test"
    """The listener's self-test. Payload: a token that only one listener knows."""

    def name_in(self, schema: str) -> str:
        return f"horsies_{_hash(schema)[:8]}_{self.value}"


def waiters_lock(schema: str) -> int:
    """Return the key of the advisory lock that processes with waiters hold."""
    return int(_hash(f"{schema} waiters")[:16], 16) - (1 << 63)


def waiters_slot_group(schema: str) -> int:
    """Return the first key of the advisory locks that are the slots of processes with waiters."""
    return int(_hash(f"{schema} waiter slots")[:8], 16) >> 1


def worker_lock_scope(schema: str) -> str:
    """Return the prefix of the name of a worker's advisory lock, whose key is `hashtextextended(prefix + worker_id, 0)`.

    Two sessions of a worker hold it, shared: the heartbeat's and the listener's. The server releases it when both are gone.
    """
    return f"horsies {_hash(schema)[:8]} worker "


@lru_cache(maxsize=64)
def _hash(schema: str) -> str:
    return sha256(schema.encode()).hexdigest()
