"""The states of a task and the moves between them."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType


class TaskStatus(StrEnum):
    """Where a task is on its journey."""

    PENDING = "PENDING"
    CLAIMED = "CLAIMED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def is_final(self) -> bool:
        """It has ended, and nothing will change that."""
        return not LEGAL_MOVES[self]


LEGAL_MOVES: Mapping[TaskStatus, frozenset[TaskStatus]] = MappingProxyType(
    {
        TaskStatus.PENDING: frozenset(
            {
                TaskStatus.CLAIMED,
                TaskStatus.RUNNING,  # a claim with a free slot needs no stop on the way
                TaskStatus.FAILED,  # no worker could run it, for as long as it may wait for one
                TaskStatus.CANCELLED,
                TaskStatus.EXPIRED,
            }
        ),
        TaskStatus.CLAIMED: frozenset(
            {
                TaskStatus.RUNNING,
                TaskStatus.PENDING,  # released: not begun, so nothing is lost
                TaskStatus.CANCELLED,
                TaskStatus.EXPIRED,
            }
        ),
        TaskStatus.RUNNING: frozenset(
            {
                TaskStatus.COMPLETED,
                TaskStatus.FAILED,
                TaskStatus.PENDING,  # a retry, or a release of what had not begun
                TaskStatus.CANCELLED,
            }
        ),
        TaskStatus.COMPLETED: frozenset(),
        TaskStatus.FAILED: frozenset(),
        TaskStatus.CANCELLED: frozenset(),
        TaskStatus.EXPIRED: frozenset(),
    }
)


class Misfit(IntEnum):
    """Why a worker cannot run a task that it has claimed. Another release of the app may."""

    NONE = 0
    UNKNOWN = 1
    """It has no task of this name."""
    PARAMETERS = 2
    """The payload has other parameters than the task."""
    VALUES = 3
    """An argument cannot be read."""
