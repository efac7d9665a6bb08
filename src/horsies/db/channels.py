"""The NOTIFY channels. Their names carry a hash of the schema: two installations in one database do not wake each other."""

from enum import StrEnum
from functools import lru_cache
from hashlib import sha256


class Channel(StrEnum):
    NEW = "new"
    """Something can be claimed. Payload: `priority enqueued_at_us queue_name`, the oldest row of them."""

    DONE = "done"
    """Tasks have ended. Payload: their ids, or `*` when they are too many to name."""

    CONTROL = "control"
    """A word to one worker. Payload: `worker_id cancel task_id`, or `worker_id ping`."""

    SCHEDULES = "schedules"
    """Schedules were changed: when the next slot is may be another moment now. No payload."""

    TEST = "test"
    """The listener's own self-test. Payload: a token that only one listener knows."""

    def name_in(self, schema: str) -> str:
        return f"horsies_{_hash(schema)}_{self.value}"


@lru_cache(maxsize=64)
def _hash(schema: str) -> str:
    return sha256(schema.encode()).hexdigest()[:8]
