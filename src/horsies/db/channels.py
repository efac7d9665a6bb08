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

from enum import StrEnum
from functools import lru_cache
from hashlib import sha256


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
