"""Task ids: UUID version 7, so that they sort by time, strictly increasing within a process."""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import groupby
from uuid import UUID

from horsies.model.task import TaskId

_RANDOM_BITS = 74
_LOWER_BITS = 62
_LOWER = (1 << _LOWER_BITS) - 1
_lock = threading.Lock()
_last = 0


def _renew_lock() -> None:
    """After a fork: the thread that held it, if one did, is not in this process."""
    global _lock  # noqa: PLW0603 - a fact about the process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def new_task_id() -> TaskId:
    return new_task_ids(1)[0]


def new_task_ids(count: int) -> list[TaskId]:
    """48 bits of milliseconds, then 74 random bits; within one millisecond the last id plus a random step."""
    global _last  # noqa: PLW0603 - the one thing that makes ids increase is remembering the last
    noise = os.urandom(10 + 4 * count)
    value = (time.time_ns() // 1_000_000) << _RANDOM_BITS | int.from_bytes(noise[:10]) >> 6
    steps = memoryview(noise)[10:].cast("I")
    with _lock:
        value = value if value >> _RANDOM_BITS > _last >> _RANDOM_BITS else _last
        values = [value := value + 1 + step for step in steps]
        _last = value
    return list(_formatted(values))


def as_task_id(given: str | UUID) -> TaskId:
    """An id from elsewhere, as all ids are written; what is none is refused."""
    try:
        return str(UUID(str(given)))
    except ValueError:
        raise ValueError(f"{given!r} is no task id; pass what `handle.task_id` was, a UUID as text") from None


def _formatted(values: Iterable[int]) -> Iterator[TaskId]:
    """Put version (7) and variant (2) between the 122 bits that are ours. Neighbours mostly begin alike."""
    for upper, alike in groupby(values, lambda value: value >> _LOWER_BITS):
        head = f"{upper >> 12:012x}7{upper & 0xFFF:03x}"
        start = f"{head[:8]}-{head[8:12]}-{head[12:]}-"
        for value in alike:
            tail = f"{value & _LOWER | 1 << 63:016x}"
            yield f"{start}{tail[:4]}-{tail[4:]}"
