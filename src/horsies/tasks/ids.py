"""Task ids: UUID version 7, so that they sort by time. They strictly increase within a process."""

import os
import threading
import time
from uuid import UUID

from horsies.model.task import TaskId

_RANDOM_BITS = 74
_LOWER_BITS = 62
_LOWER = (1 << _LOWER_BITS) - 1
_lock = threading.Lock()
_last = 0


def _renew_lock() -> None:
    """Replace the lock after a fork: a thread that held it does not exist in the new process."""
    global _lock  # noqa: PLW0603 - the state is per process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def new_task_id() -> TaskId:
    return new_task_ids(1)[0]


def new_task_ids(count: int) -> list[TaskId]:
    """Return new ids: 48 bits of milliseconds, then 74 random bits. Within one millisecond, an id is the last one plus a random step."""
    global _last  # noqa: PLW0603 - the state is per process
    noise = os.urandom(10 + 4 * count)
    value = (time.time_ns() // 1_000_000) << _RANDOM_BITS | int.from_bytes(noise[:10]) >> 6
    steps = memoryview(noise)[10:].cast("I")
    with _lock:
        value = value if value >> _RANDOM_BITS > _last >> _RANDOM_BITS else _last
        values = [value := value + 1 + step for step in steps]
        _last = value
    ids, upper, start = list[TaskId](), -1, ""
    for value in values:  # version (7) and variant (2) go between the 122 bits
        if value >> _LOWER_BITS != upper:  # most neighbours have the same first half, which is formatted once
            upper = value >> _LOWER_BITS
            head = f"{upper >> 12:012x}7{upper & 0xFFF:03x}"
            start = f"{head[:8]}-{head[8:12]}-{head[12:]}-"
        tail = f"{value & _LOWER | 1 << 63:016x}"
        ids.append(f"{start}{tail[:4]}-{tail[4:]}")
    return ids


def to_task_id(given: str | UUID) -> TaskId:
    """Return an id in the form in which all ids are written. Raises ValueError if it is not a UUID."""
    return to_id(given, "task id", "pass the value of `handle.task_id`, a UUID as text")


def to_workflow_id(given: str | UUID) -> str:
    return to_id(given, "workflow id", "pass the value of `handle.workflow_id`, or a UUID of your own")


def to_id(given: str | UUID, what: str, advice: str) -> str:
    try:
        return str(UUID(str(given)))
    except ValueError:
        raise ValueError(f"{given!r} is not a valid {what}; {advice}") from None
